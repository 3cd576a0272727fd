"""`rlplat status`: what a running cluster has, does and waits for."""

from __future__ import annotations

import argparse
from typing import Any

from rlplat.cli.look.cluster_view import amounts, chosen, print_silent, print_table, size_of, store_text
from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.durations import duration_text

_HELP = """\
Show what a running cluster has, does and waits for.

cluster@CLUSTER.yaml?  a cluster of several machines, by its file
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm
--json  print JSON

examples:
  rlplat status
  rlplat status --pid 4711           when several clusters are running
  rlplat status --json
  rlplat status lab.yaml             of the nodes that `rlplat up lab.yaml` has started

Exit code 2: no cluster of this user is running here; 1: a node of CLUSTER.yaml is not as it should be.
"""
_ORDER = ("running", "queued", "waiting-worker", "waiting-actor", "waiting-args", "ended", "failed")


@command("status", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.cluster is not None:
        from rlplat.cli.cluster.nodes import status as status_of_nodes

        return status_of_nodes(options.cluster)
    from rlplat.state import cluster_status

    status = cluster_status(cluster=chosen(options))
    if options.json:
        print_json(status)
    else:
        _print(status)
        print_silent(status["silent"])
    return 0


def _print(status: dict[str, Any]) -> None:
    print(f"cluster of pid {status['pid']} ({status['command']}), up {duration_text(status['uptime_s'])}")
    print(f"session {status['session']}")
    print()
    rows = [[name, use["used"], use["total"]] for name, use in status["resources"].items()]
    print_table(["resource", "used", "total"], rows)
    print(f"object store: {store_text(status['store'])}")
    print()
    alive = [row for row in status["nodes"] if row["state"] == "alive"]
    print(
        f"nodes    {len(alive)}"
        + (f" ({len(status['nodes']) - len(alive)} lost)" if len(alive) < len(status["nodes"]) else "")
    )
    print(f"workers  {_counted(status['workers'])}")
    print(f"actors   {_counted(status['actors'])}")
    print(f"tasks    {_counted(status['tasks'])}")
    if len(status["nodes"]) > 1:
        print()
        header = ["node", "machine", "state", "workers", "free", "total", "object store"]
        print_table(header, [_of_machine(row) for row in status["nodes"]])
    if status["waiting"]:
        print()
        print("waiting for resources:")
        print_table(
            ["count", "kind", "client", "needs", "why"],
            [
                [row["count"], row["kind"], row["client"], amounts(row["resources"]) or "-", row["reason"]]
                for row in status["waiting"]
            ],
            indent="  ",
        )


def _of_machine(row: dict[str, Any]) -> list[Any]:
    store = size_of(row["store"]["bytes"]) if row["store"] else None
    return [row["node"], row["machine"], row["state"], row["workers"], row["available"], row["total"], store]


def _counted(counts: dict[str, int]) -> str:
    places = {state: place for place, state in enumerate(_ORDER)}
    states = sorted(counts, key=lambda state: (places.get(state, -1), state))
    return ", ".join(f"{counts[state]:,} {state}" for state in states if counts[state]) or "none"
