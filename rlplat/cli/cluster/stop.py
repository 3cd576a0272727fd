"""`rlplat stop`: the end of what `rlplat start --address` does here."""

from __future__ import annotations

from rlplat.cli.parser import Parser, command

_HELP = """\
End what `rlplat start --address` does on this machine, and the workers that it has for a program.

--address FILE  only for the cluster of this join file

examples:
  rlplat stop
"""


def build_parser() -> Parser:
    return command("stop", _HELP)


def run(arguments: list[str]) -> int:
    options = build_parser().parse_args(arguments)
    from rlplat import machines

    num = machines.stop(None if options.address is None else str(options.address))
    print(f"{num} stopped" if num else "nothing of rlplat start runs here")
    return 0
