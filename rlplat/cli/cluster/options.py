"""What the commands with a CLUSTER.yaml have in common."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rlplat.cli.parser import Parser
from rlplat.errors import UsageError
from rlplat.rl.run.interruption import Interrupted

if TYPE_CHECKING:
    from rlplat.cluster.launcher import Launcher
    from rlplat.cluster.settings import ClusterSettings


def cluster_parser(command: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    parser = Parser(prog=f"rlplat {command}", description=description, epilog=epilog)
    parser.add_argument("cluster", metavar="CLUSTER.yaml", help="the file that describes the cluster")
    return parser


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="providers kubernetes and sky: print what would be sent, and send nothing",
    )


def refuse_dry_run(cluster: ClusterSettings) -> None:
    raise UsageError(
        f"--dry-run is for provider: kubernetes or sky, and provider={cluster.provider}: omit it"
    )


def with_program(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`options -- program` -> (options, program): the program's own flags are none of ours."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


@contextmanager
def launcher_of(path: str) -> Iterator[Launcher]:
    """SIGTERM and a closed terminal are as Ctrl-C: the connections end, and their sockets go."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupt)
    try:
        with _launcher_of(path) as launcher:
            yield launcher
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell and the kernel both send it: once is enough
    raise Interrupted(number)


def _launcher_of(path: str) -> Launcher:
    from rlplat.cluster.launcher import Launcher
    from rlplat.cluster.settings import read_cluster

    cluster = read_cluster(path)
    if cluster.provider == "kubernetes":
        from rlplat.cluster.kubernetes.kubectl import look_command

        raise UsageError(
            "with provider: kubernetes there are rlplat up, submit and down; the rest is kubectl's: "
            f"{look_command(cluster)}"
        )
    if cluster.provider == "sky":
        raise UsageError(
            f"with provider: sky the machines come with a program: rlplat submit {path} -- PROGRAM; the rest is "
            f"SkyPilot's: sky status, sky logs {cluster.title}, ssh {cluster.title}, sky down {cluster.title}"
        )
    if cluster.provider == "slurm":
        raise UsageError(
            f"with provider: slurm the nodes live as long as a job: rlplat submit {path} -- PROGRAM, squeue, scancel"
        )
    return Launcher(cluster, lambda line: print(line, flush=True), file=path)
