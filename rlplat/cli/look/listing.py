"""`rlplat list WHAT`: the tasks, actors, objects, nodes, workers or placement groups of a running cluster."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlplat.cli.look.cluster_view import (
    chosen,
    looking,
    print_silent,
    print_table,
    size_of,
)
from rlplat.cli.output import print_json
from rlplat.errors import ConfigError

_HELP = """\
List what is in a running cluster.

what@{tasks,actors,objects,nodes,workers,placement-groups,clusters}  what to list
--limit N>0:100  most rows
--filter COLUMN=VALUE*  only such rows; may be repeated
--summary  tasks: counts by name and state
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm
--json  print JSON

examples:
  rlplat list tasks --filter state=running
  rlplat list actors --filter class=Learner --json
  rlplat list objects --limit 20                  the biggest 20
  rlplat list tasks --summary                     counts by name and state, however many there are
  rlplat list clusters                            what is running on this machine
"""
COLUMNS = {
    "tasks": "task name kind state worker node owner waits resources",
    "actors": "actor class name namespace state worker node client resources restarts reason",
    "objects": "id owner node size where refs borrowers made_by call_site",
    "nodes": "node machine address state pid workers total available",
    "workers": "worker pid node state client actor resources rss cpu_s",
    "placement-groups": "group name state strategy bundles nodes",
    "clusters": "pid session command",
}
_OPTIONAL = {"namespace", "call_site", "reason"}
"""Columns that are left out of the table when they are empty."""


@looking("list", _HELP)
def run(options: argparse.Namespace) -> int:
    filters = dict(map(_filter, options.filter))
    if options.summary and (options.what != "tasks" or filters):
        raise ConfigError("--summary counts all tasks: rlplat list tasks --summary")
    from rlplat import state

    if options.summary:
        return _summary(state.summarize_tasks(cluster=chosen(options)), options.json)
    if options.what == "clusters":
        rows = state.list_clusters()
    else:
        lister = getattr(state, f"list_{options.what.replace('-', '_')}")
        rows = lister(filters=filters, limit=options.limit, cluster=chosen(options))
    if options.json:
        print_json(rows)
    else:
        columns = [
            column
            for column in COLUMNS[options.what].split()
            if column not in _OPTIONAL or any(row.get(column) for row in rows)
            if column != "node"
            or options.what in ("nodes", "workers")
            or any(row["node"] not in ("", "node") for row in rows)
        ]
        print_table(columns, [[_shown(row, column) for column in columns] for row in rows])
        if len(rows) < rows.total:
            print(f"{len(rows):,} of {rows.total:,}; --limit shows more", file=sys.stderr)
    print_silent(rows.silent)
    return 0


def _filter(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column:
        raise ConfigError(f"--filter takes COLUMN=VALUE, for example state=running, not {text!r}")
    return column, value


def _shown(row: dict[str, Any], column: str) -> Any:
    if column == "size":
        return size_of(row["size"])
    if column == "rss":
        return size_of(row["rss_bytes"])
    return row.get(column)


def _summary(counts: dict[str, dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print_json(counts)
        return 0
    states = ["running", "queued", "waiting-worker", "waiting-actor", "waiting-args", "ended", "failed"]
    states = [state for state in states if any(row.get(state) for row in counts.values())]
    rows = [
        [
            name,
            *(row.get(state, 0) for state in states),
            f"{row['mean_s'] * 1e3:.3g} ms" if "mean_s" in row else None,
        ]
        for name, row in counts.items()
    ]
    print_table(["name", *states, "mean"], rows)
    return 0
