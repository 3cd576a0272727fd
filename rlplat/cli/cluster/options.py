"""What the commands with a CLUSTER.yaml have in common."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlplat.cli.parser import Command, Parser, parser_from
from rlplat.errors import UsageError
from rlplat.rl.run.interruption import Interrupted

if TYPE_CHECKING:
    from rlplat.cluster.launcher import Launcher
    from rlplat.cluster.settings import ClusterSettings


_FILE = "cluster@CLUSTER.yaml  the file that describes the cluster"
_DRY_RUN = "--dry-run  providers kubernetes and sky: print what would be sent, and send nothing"
HELP = {
    "up": f"""\
Copy files to the machines, run the setup commands there, start the nodes. What runs already stays.

{_FILE}
{_DRY_RUN}

Exit code 2: a machine cannot be used as it is, and nothing was started; 1: a setup command or a node
failed, and what this command had started is ended again.
""",
    "down": f"""\
End the jobs and the nodes of a cluster. Files and logs stay on the machines.

{_FILE}

Exit code 1: a machine could not be reached, and its node may be running.
""",
    "submit": f"""\
Run a program on the cluster. It goes on when this terminal is closed.

{_FILE}
{_DRY_RUN}
--wait  show its log, and end with its exit code

example:
  rlplat submit lab.yaml -- rlplat train --algo ppo --env CartPole-v1 --out runs/a
""",
    "jobs": f"""\
The programs that were submitted to a cluster.

{_FILE}
action@{{list,logs,stop}}?list  what is done
job@ID?  with which job
-f --follow  logs: until the job ends
--json  list: one JSON object per job

examples:
  rlplat jobs lab.yaml
  rlplat jobs lab.yaml logs 3 -f      ends with the exit code of the job
  rlplat jobs lab.yaml stop 3         SIGTERM, 30 s to save a checkpoint, SIGKILL
""",
    "exec": f"""\
Run a command on the head and pass on its input, output and exit code.

{_FILE}
--node NAME  on this node instead

example:
  rlplat exec lab.yaml -- nvidia-smi
""",
    "attach": f"""\
Open a shell on the head, where programs find the cluster.

{_FILE}
--node NAME  on this node instead
""",
    "rsync-up": f"""\
Copy a file, or what is in a folder, to every node. Nothing is deleted there.

{_FILE}
SOURCE?  a file or folder here (default: workdir)
TARGET?.  a folder there; . is where commands run

examples:
  rlplat rsync-up lab.yaml                    the workdir of the file, again
  rlplat rsync-up lab.yaml data /scratch/data
""",
    "rsync-down": f"""\
Copy a file or folder from the head into a folder of this machine.

{_FILE}
SOURCE  there; relative to where commands run
TARGET?.  a folder here
--node NAME  from this node instead

example:
  rlplat rsync-down lab.yaml runs/demo runs
""",
    "port-forward": f"""\
Let a port of this machine's loopback lead to a port of the head's loopback, until Ctrl-C.

{_FILE}
ports@[LOCAL:]PORT  here, where it is another one, and there
--node NAME  a port of this node instead

example:
  rlplat port-forward lab.yaml 6006          then http://127.0.0.1:6006
""",
    "join": """\
One task of a job that `rlplat submit` sent to SLURM: rank 0 is the head, the others join it.

FOLDER  the folder of the job's files
""",
}
_USAGE = {"exec": "[--node NAME] -- COMMAND ...", "submit": "[--wait] [--dry-run] -- PROGRAM ..."}


def of_cluster(name: str, *, takes_words: bool = False) -> Callable[[Callable[[Any], int]], Command]:
    """As `command`, with the help text that is here."""
    return lambda does: Command(lambda: _parser_of(name), does, takes_words)


def _parser_of(name: str) -> Parser:
    parser = parser_from(name, HELP[name], {"[LOCAL:]PORT": ports})
    if name in _USAGE:
        parser.usage = f"%(prog)s CLUSTER.yaml {_USAGE[name]}"
    return parser


def ports(text: str) -> tuple[int, int]:
    local, _, port = text.rpartition(":")
    try:
        numbers = int(local or port), int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not PORT or LOCAL:PORT") from None
    if not all(0 < number < 65536 for number in numbers):
        raise argparse.ArgumentTypeError("a port is from 1 to 65535")
    return numbers


def refuse_dry_run(cluster: ClusterSettings) -> None:
    raise UsageError(f"--dry-run is for provider: kubernetes or sky, and provider={cluster.provider}: omit it")


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
