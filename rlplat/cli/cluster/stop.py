"""`rlplat stop`: the end of what `rlplat start --address` does here."""

from __future__ import annotations

import argparse

from rlplat.cli.parser import command

_HELP = """\
End what `rlplat start --address` does on this machine, and the workers that it has for a program.

--address FILE  only for the cluster of this join file

examples:
  rlplat stop
"""


@command("stop", _HELP)
def run(options: argparse.Namespace) -> int:
    from rlplat import machines

    num = machines.stop(None if options.address is None else str(options.address))
    print(f"{num} stopped" if num else "nothing of rlplat start runs here")
    return 0
