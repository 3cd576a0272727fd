"""`rlplat memory`: which process owns which objects of a running cluster, how big they are, and who needs them."""

from __future__ import annotations

from typing import Any

from rlplat.cli.look.cluster_view import (
    check_limit,
    chosen,
    on_node,
    print_silent,
    print_table,
    refuse_cluster_file,
    size_of,
    store_text,
)
from rlplat.cli.output import print_json
from rlplat.cli.parser import Parser, command

_HELP = """\
Show the objects of a running cluster, by owner, and who holds refs to them.

--limit N:10  most objects of each owner
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


def build_parser() -> Parser:
    return command("memory", _HELP)


def run(arguments: list[str]) -> int:
    refuse_cluster_file("memory", arguments)
    options = build_parser().parse_args(arguments)
    check_limit(options.limit)
    from rlplat.state import memory_report, summarize_objects

    if options.summary:
        groups = summarize_objects(cluster=chosen(options))
        if options.json:
            print_json(groups)
        else:
            _print_groups(groups)
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
            _print_objects(owner["objects"], has_sites)
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


def _print_objects(rows: list[dict[str, Any]], has_sites: bool) -> None:
    header = ["object", "size", "where", "refs", "lent to", "made by"] + ["call site"] * has_sites
    cells = [
        [
            row["id"],
            size_of(row["size"]),
            row["where"],
            row["refs"],
            row["borrowers"],
            row["made_by"],
            *([row["call_site"]] if has_sites else []),
        ]
        for row in rows
    ]
    print_table(header, cells, indent="  ")


def _print_groups(groups: list[dict[str, Any]]) -> None:
    has_sites = any(group["call_site"] for group in groups)
    header = ["count", "size", "where", "made by"] + ["call site"] * has_sites
    cells = [
        [
            group["count"],
            size_of(group["bytes"]),
            group["where"],
            group["made_by"],
            *([group["call_site"]] if has_sites else []),
        ]
        for group in groups
    ]
    print_table(header, cells)
