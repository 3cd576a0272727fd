"""What the commands with a CLUSTER.yaml have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlplat.errors import UsageError

if TYPE_CHECKING:
    from rlplat.cluster.launcher import Launcher


def cluster_parser(command: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"rlplat {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("cluster", metavar="CLUSTER.yaml", help="the file that describes the cluster")
    return parser


def with_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`options -- program` -> (options, program): the program's own flags are none of ours."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def launcher_of(path: str) -> Launcher:
    from rlplat.cluster.launcher import Launcher
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(path)
    if cluster.provider == "slurm":
        raise UsageError(
            f"with provider: slurm the nodes live as long as a job: rlplat submit {path} -- PROGRAM, squeue, scancel"
        )
    return Launcher(cluster, lambda line: print(line, flush=True))
