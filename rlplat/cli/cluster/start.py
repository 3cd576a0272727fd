"""`rlplat start`, `rlplat stop`: this machine as a part of a cluster of one owner, without a launcher."""

from __future__ import annotations

import argparse
import sys

from rlplat.cli.parser import command
from rlplat.errors import UsageError

_HELP = """\
Make this machine a part of a cluster of several.

--head  write a join file for a new cluster, whose programs will run on this machine
--file FILE:rlplat-cluster.json  with --head: where to (mode 0600: it lets its holder run code on every machine)
--host HOST:127.0.0.1  with --head: the address of this machine that the others reach
--port N:0  with --head: the port that programs open; 0 takes one that is free
--address FILE  join the cluster of this join file: work for its programs until `rlplat stop` or Ctrl-C
--num-cpus N  with --address: CPUs for tasks and actors; all that there are
--num-gpus N  with --address: GPUs
--resource NAME=AMOUNT*  with --address: of a custom resource

examples:
  rlplat start --head --host 10.0.0.1        on the head; then copy the file (scp keeps its mode with -p)
  rlplat start --address rlplat-cluster.json      on each other machine
  python program.py                          on the head: rlplat.init(address="rlplat-cluster.json")

Between programs nothing runs on the head. One program at a time, up to 32 machines, with the same versions of Python
and rlplat.
"""


@command("start", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.head == (options.address is not None):
        raise UsageError("rlplat start: either --head, or --address FILE")
    from rlplat import machines

    if options.host in ("0.0.0.0", "::"):
        raise UsageError(f"rlplat start: --host {options.host} is no address that others reach: name this machine's")
    if options.head:
        address = machines.start_head(str(options.file), options.host, options.port)
        print(f"{options.file}: the join file of a new cluster; its head listens at {address} while a program runs")
        if address.startswith(("127.", "localhost", "[::1]")):
            print("only this machine can join it: --host names an address that others reach", file=sys.stderr)
        return 0
    resources = {}
    for text in options.resource:
        name, _, amount = text.partition("=")
        try:
            resources[name] = float(amount)
        except ValueError:
            raise UsageError(f"rlplat start: --resource {text}: NAME=AMOUNT") from None
    machines.work(str(options.address), options.num_cpus, options.num_gpus, resources)
    return 0


_STOP_HELP = """\
End what `rlplat start --address` does on this machine, and the workers that it has for a program.

--address FILE  only for the cluster of this join file

examples:
  rlplat stop
"""


@command("stop", _STOP_HELP)
def stop(options: argparse.Namespace) -> int:
    from rlplat import machines

    num = machines.stop(None if options.address is None else str(options.address))
    print(f"{num} stopped" if num else "nothing of rlplat start runs here")
    return 0
