"""`rlplat memory`: which process owns which objects of a running cluster, how big they are, and who needs them."""

from __future__ import annotations

import argparse
from typing import Any

from rlplat.cli.look.cluster_view import (
    chosen,
    looking,
    on_node,
    print_silent,
    print_table,
    size_of,
    store_text,
)
from rlplat.cli.output import print_json

_HELP = """\
Show the objects of a running cluster, by owner, and who holds refs to them.

--limit N>0:10  most objects of each owner
--summary  counts of all objects by what made them (and where)
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm
--json  print JSON

examples:
  rlplat memory
  rlplat memory --limit 5 --json
  rlplat memory --summary                        what makes most of them: for leaks
  RLPLAT_RECORD_CALLSITES=1 python train.py      then `rlplat memory` says where each object was made
"""


@looking("memory", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat.state import memory_report, summarize_objects

    if options.summary:
        groups = summarize_objects(cluster=chosen(options))
        if options.json:
            print_json(groups)
        else:
            _print_rows(groups, _OF_GROUP, any(group["call_site"] for group in groups))
            print_silent(groups.silent)
        return 0
    report = memory_report(limit=options.limit, cluster=chosen(options))
    if options.json:
        print_json(report)
        return 0
    has_sites = any(row.get("call_site") for owner in report["owners"] for row in owner["objects"])
    for owner in report["owners"]:
        print(
            f"{owner['owner']} (pid {owner['pid']}{on_node(owner)}) owns {owner['owned']:,} objects"
            f", {size_of(owner['bytes'])} ({owner['pending']:,} pending), borrows {owner['borrowed']:,}"
        )
        if owner["objects"]:
            _print_rows(owner["objects"], _OF_OBJECT, has_sites, indent="  ")
        print()
    store = report["store"]
    makers = ", ".join(f"{client} {size_of(size)}" for client, size in store["by_creator"].items())
    print(f"object store: {store_text(store)}{f', written by {makers}' if makers else ''}")
    for node, elsewhere in report["stores_elsewhere"].items():
        print(f"  on {node}: {store_text(elsewhere)}")
    if not has_sites:
        print("(start the program with RLPLAT_RECORD_CALLSITES=1 to see where objects were made)")
    print_silent(report["silent"])
    return 0


def _print_rows(rows: list[dict[str, Any]], columns: dict[str, str], has_sites: bool, indent: str = "") -> None:
    """columns: of the table, and what they show of a row."""
    shown = columns | ({"call site": "call_site"} if has_sites else {})
    cells = [[size_of(row[key]) if name == "size" else row[key] for name, key in shown.items()] for row in rows]
    print_table(list(shown), cells, indent)


_OF_OBJECT = {
    "object": "id", "size": "size", "where": "where", "refs": "refs", "lent to": "borrowers", "made by": "made_by",
}  # fmt: skip
_OF_GROUP = {"count": "count", "size": "bytes", "where": "where", "made by": "made_by"}
