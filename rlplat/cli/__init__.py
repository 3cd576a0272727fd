"""The command `rlplat`: one file per subcommand, imported when it is used, so that `rlplat --help` is instant.

Exit codes: 0 done · 2 bad usage, config or resources · 1 failure · 130 interrupted (checkpoint saved) ·
143 terminated · 129 its terminal was closed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlplat.given.say import open_streams, spare_stderr

if TYPE_CHECKING:
    from rlplat.cli.parser import Command

_GROUPS = {
    "train": {
        "train": "train an agent, or resume a run",
        "check-env": "look for mistakes in an environment before training on it",
        "new": "a commented file to begin with: algorithm, environment, policy, callback",
        "configs": "list the configs that come with rlplat",
        "settings": "all settings of an algorithm: type, default, meaning",
    },
    "look at results": {
        "runs": "list the runs with their latest metrics",
        "plot": "learning curves with their interval over seeds, as PDF, PNG or SVG",
        "compare": "groups of seeds with intervals, beside each other and beside published values",
        "bench": "train many configs with several seeds each, beside other work, and compare them",
        "dashboard": "runs, curves, trials, the cluster and servers in a browser",
        "evaluate": "play episodes with a trained agent and report its returns",
        "play": "watch a trained agent, in a video or in a window",
        "record": "write episodes of a trained agent to a data set, to learn from",
        "track": "copy a run to wandb, mlflow, trackio or aim, while it trains or later",
    },
    "tune": {"tune": "search for the best config: many trials, from a file or from flags"},
    "export and serve": {
        "export": "a trained policy as one .onnx file, for programs without rlplat",
        "serve": "put a trained agent, or any Python, behind a port",
    },
    "a cluster of several machines, described by CLUSTER.yaml": {
        "up": "start a cluster on the machines of the file",
        "down": "end the cluster, and what runs on it",
        "submit": "run a program on the cluster that outlives this terminal",
        "jobs": "the programs submitted: list, logs, stop",
        "exec": "run a command on the head",
        "attach": "open a shell on the head",
        "rsync-up": "copy files to the nodes",
        "rsync-down": "copy files from the head",
        "port-forward": "reach a port of the head from here",
    },
    "machines of one owner, without a launcher": {
        "start": "make this machine a part of a cluster: its head, or one that works for it",
        "stop": "end what start does on this machine",
    },
    "a running program on this machine": {
        "status": "what its cluster has, does and waits for; or a CLUSTER.yaml",
        "list": "its tasks, actors, objects, nodes, workers, placement groups",
        "logs": "what its workers printed",
        "stack": "what every process of it is doing right now",
        "timeline": "its last calls as a trace for Perfetto",
        "memory": "its objects: who owns them and who holds them",
    },
    "this installation": {
        "doctor": "cores, limits, GPU, extras, /dev/shm: what rlplat finds here, and what to mend",
        "completion": "the TAB key for bash, zsh or fish",
    },
}
HIDDEN = {"join": "one task of a job that submit sent to SLURM"}
COMMANDS = {name: line for group in _GROUPS.values() for name, line in group.items()} | HIDDEN
_MODULES = {
    "runs": "view.runs",
    "dashboard": "view.dashboard",
    "plot": "view.plot",
    "compare": "view.compare",
    "track": "view.track",
    "status": "look.status",
    "logs": "look.logs",
    "stack": "look.stack",
    "timeline": "look.timeline",
    "memory": "look.memory",
    "list": "look.listing",  # a module `list` would take the place of the builtin here
    "up": "cluster.nodes:up",
    "down": "cluster.nodes:down",
    "start": "cluster.start",
    "stop": "cluster.start:stop",
    "exec": "cluster.programs:exec_",
    "attach": "cluster.programs:attach",
    "submit": "cluster.programs:submit",
    "jobs": "cluster.programs:jobs",
    "join": "cluster.programs:join",
    "rsync-up": "cluster.nodes:rsync_up",
    "rsync-down": "cluster.nodes:rsync_down",
    "port-forward": "cluster.nodes:port_forward",
}
"""The modules of commands that are not called as they are, and the function where it is not `run`."""

_HELP = """\
usage: rlplat COMMAND [options]

Reinforcement learning from one command.

{commands}

examples:
  rlplat train --algo ppo --env CartPole-v1        train; the tuned config of that env is used if there is one
  rlplat train --algo ppo --env Pong --set learning_rate=3e-4 --stop.env-steps 2000000
  rlplat train ppo/LunarLander-v3                  a config that comes with rlplat; `rlplat configs` lists them
  rlplat settings ppo --env LunarLander-v3         what can be set, and what that config sets
  rlplat train --resume runs/ppo-Pong-20261121-0915
  rlplat evaluate runs/demo --episodes 20
  rlplat tune configs/tune/ppo-cartpole.yaml       many trials: which settings are best?
  rlplat play runs/demo
  rlplat export runs/demo --out policy.onnx
  rlplat serve runs/demo --port 8000               ask it for actions over HTTP
  rlplat runs
  rlplat dashboard                                 the same in a browser, with curves and videos
  rlplat status                                    of the cluster that runs on this machine, from another terminal

`rlplat COMMAND --help` says more. After any command: --quiet prints errors only, --debug the traceback of an error.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. argv: None for the words of this program, which ends with the command."""
    open_streams()
    if argv is None:
        spare_stderr()
    try:
        return _main(list(sys.argv[1:] if argv is None else argv), is_program=argv is None)
    except KeyboardInterrupt:  # while a command is imported: nothing has begun
        return 130
    except BrokenPipeError:  # `rlplat runs | head`: nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _main(arguments: list[str], *, is_program: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        groups = [
            "\n".join([f"{title}:", *(f"  {name:<14}{line}" for name, line in group.items())])
            for title, group in _GROUPS.items()
        ]
        print(_HELP.format(commands="\n\n".join(groups)), end="")
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        import rlplat

        print(f"rlplat {rlplat.__version__}")
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        from rlplat.config import closest

        print(f"rlplat: unknown command '{command}'{closest(command, COMMANDS)}", file=sys.stderr)
        print(
            f"commands: {', '.join(name for name in COMMANDS if name not in HIDDEN)}; see rlplat --help",
            file=sys.stderr,
        )
        return 2
    from rlplat.cli.exit_codes import run_and_report

    return run_and_report(command_of(command), arguments[1:], is_program=is_program)


def command_of(name: str) -> Command:
    module, _, function = _MODULES.get(name, name.replace("-", "_")).partition(":")
    found: Command = getattr(importlib.import_module(f"rlplat.cli.{module}"), function or "run")
    return found
