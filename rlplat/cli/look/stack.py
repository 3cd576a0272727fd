"""`rlplat stack [WORKER]`: what every process of a running cluster is doing right now."""

from __future__ import annotations

import argparse
import linecache
import os
from typing import Any

from rlplat.cli.look.cluster_view import chosen, looking, on_node
from rlplat.cli.output import print_json

_HELP = """\
Show the stack of every Python thread of a running cluster.

WORKER?all  driver, node, a worker's id or pid, an actor's name or class
--native  with native frames, by py-spy (it must be installed)
--all  also the runtime's own threads and frames
--pid PID  the cluster of this driver, when several are running
--session FOLDER  the same, by its folder in /dev/shm
--json  print JSON

examples:
  rlplat stack                     the driver, the node and every worker
  rlplat stack w3
  rlplat stack learner             the worker of the actor of that name or class
  rlplat stack w3 --all            with the frames of the runtime
  rlplat stack w3 --native         with C frames, by py-spy

Processes answer by themselves, whatever their code does. One that native code keeps from answering is asked by a
signal, to which faulthandler replies.
"""


@looking("stack", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat.state import stacks

    rows = stacks(options.worker, cluster=chosen(options), native=options.native)
    if options.json:
        print_json(rows)
        return 0
    for number, row in enumerate(rows):
        if number:
            print()
        doing = f", {row['doing']}" if row["doing"] else ""
        print(f"== {row['client']} (pid {row['pid']}{on_node(row)}{doing})")
        for thread in row["threads"]:
            _print_thread(thread, options.all)
        if row["text"]:
            print(row["text"])
    return 0


def _print_thread(thread: dict[str, Any], shows_all: bool) -> None:
    frames = thread["frames"]
    if not shows_all:
        if thread["thread"] == "rlplat-io":
            return
        shown = [index for index, frame in enumerate(frames) if not _is_plumbing(frame[0])]
        if not shown:
            print("  waits for work")
            return
        inner = [frame[2] for frame in frames[shown[-1] + 1 :]]
        frames = [frames[index] for index in shown]
    if shows_all or not thread["is_main"]:
        print(f"-- {thread['thread']}" + (f": {thread['note']}" if thread["note"] and shows_all else ""))
    for file, line, function in frames:
        source = linecache.getline(file, line).strip()
        print(f"  {file}:{line} in {function}" + (f"\n      {source}" if source else ""))
    if not shows_all and inner:
        print(f"      ... in rlplat's {inner[0].rpartition('.')[2]}()")


_RUNTIME = os.path.join("rlplat", "runtime") + os.sep


def _is_plumbing(file: str) -> bool:
    """Frames that every process of a cluster has: they say nothing about the user's program."""
    return _RUNTIME in file or file == "<string>" or os.path.basename(file) == "threading.py"
