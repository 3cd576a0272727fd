"""`rlplat logs [WORKER]`: what workers printed, of a running cluster or of one that has ended."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rlplat.cli.look.cluster_view import chosen, looking, print_table, size_of
from rlplat.cli.output import print_json
from rlplat.errors import ConfigError

_HELP = """\
Show what workers printed, of a running cluster or of one that has ended.

WORKER?  a worker's id or pid, an actor's name or class, or all (default: a list)
-f --follow  continue as lines come, until the cluster ends
--tail N:100  last lines of each worker
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm
--json  print JSON

examples:
  rlplat logs                      which workers have printed something
  rlplat logs w3 --tail 20
  rlplat logs Learner -f           of the actor of that class, or of a named one, as it comes
  rlplat logs all -f               of everybody, each line with its worker
  rlplat logs w3 --pid 4711        of a cluster that has ended: the last five are kept
"""


@looking("logs", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.tail < 0:
        raise ConfigError(f"--tail is a number of lines, not {options.tail}")
    from rlplat.state import open_logs

    logs = open_logs(cluster=chosen(options))
    if options.worker is None and not options.follow:
        found = logs.workers()
        if options.json:
            names = ("worker", "node", "pid", "actor")
            print_json([{**{name: getattr(log, name) for name in names}, "file": log.path} for log in found])
        else:
            columns = ["worker", *["node"] * any(log.node for log in found), "pid", "actor", "size"]
            print_table(columns, [[_shown(log, column) for column in columns] for log in found])
            print(f"in {logs.folder}", file=sys.stderr)
        return 0
    name = options.worker or "all"
    picked = logs.choose(name)
    is_one = name != "all" and len(picked) == 1
    for log, line in logs.lines(name, picked, options.tail, options.follow):
        who = " ".join(filter(None, [log.worker, log.actor, log.node and f"on {log.node}"]))
        print(line if is_one else f"({who}) {line}", flush=options.follow)
    return 0


def _shown(log: Any, column: str) -> str:
    if column == "size":
        return size_of(log.num_bytes)
    return str(getattr(log, column) or ("node" if column == "node" else ""))
