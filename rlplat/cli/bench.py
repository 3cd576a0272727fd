"""`rlplat bench learning CELLS`: algorithms on environments with several seeds each, for days, beside other work.

    runs/bench/ppo-CartPole-v1/  seed-1/ ... seed-5/       a run each

Each run has one core and idle priority (whatever else wants the core goes first), as many at once as there are cores;
two of these commands share the cores.
The same command again goes on where it was: runs that have ended stay, one that was cut off continues from its
checkpoint, one that failed begins again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlplat.cli.parser import command
from rlplat.cli.seeds import parse_seeds
from rlplat.cli.train import split_setting_flags
from rlplat.config import layer_from_flags
from rlplat.errors import ConfigError, UsageError
from rlplat.figures import figure
from rlplat.paths import shown

_HELP = """\
Train many cells with several seeds each, and compare them: `rlplat bench learning CELL...`.

what@WHAT  learning
cells@CELL...  ALGO/ENV, with the config that goes with it (ppo/CartPole-v1, sac/Hopper-v5), or a YAML file
--seeds LIST:1-5  of each
--out DIR:runs/bench  a directory for each cell, and in it a run for each seed
--jobs N>0  runs at once, a core each (default: one for each core)
--against FILE  published values, as of rlplat compare

examples:
  rlplat bench learning ppo/CartPole-v1 dqn/CartPole-v1 a3c/CartPole-v1
  rlplat bench learning sac/HalfCheetah-v5 sac/Hopper-v5 --seeds 1-3 --stop.env-steps 300000 --against benchmark.md

Settings of `rlplat train` as flags are those of all cells. Runs have idle priority and one thread. The same command
again goes on; Ctrl-C saves a checkpoint of each run.
"""


class Cell(NamedTuple):
    algo: str | None
    env: str | None
    config: str | None

    def words(self) -> list[str]:
        """Of `rlplat train`."""
        return [self.config] if self.config else ["--algo", str(self.algo), "--env", str(self.env)]


@command("bench", _HELP, takes_words=True)
def run(arguments: list[str]) -> int:
    parser = run.parser()
    known, flags = split_setting_flags(parser, arguments)
    options = parser.parse_args(known)
    if options.what != "learning":
        raise UsageError(f"rlplat bench learning CELL...: there is no bench '{options.what}'")
    cells = {_name(cell): _cell_of(cell) for cell in options.cells}
    if len(cells) < len(options.cells):
        raise ConfigError(f"two of {', '.join(options.cells)} have one name")
    from rlplat.rl.run.training_plan import plan_training

    for algo, env, config in cells.values():  # before the first run, which may take hours
        named = [("env", env)] if env is not None else []
        plan_training(algo, config, [layer_from_flags([*named, *flags])])
    settings = [f"--{key}" if text is None else f"--{key}={text}" for key, text in flags]
    runs = deque(
        ([*cell.words(), *settings], seed, options.out / name / f"seed-{seed}")
        for seed in parse_seeds(options.seeds)  # a first seed of all cells before a second of any
        for name, cell in cells.items()
    )
    num_cores = len(os.sched_getaffinity(0))
    failed = _train_all(runs, min(options.jobs or num_cores, num_cores))
    if failed is None:
        return 130
    from rlplat.cli.view import compare

    done = [name for name in cells if any((options.out / name).glob("seed-*/metrics.jsonl"))]
    if done:
        print()
        against = ["--against", str(options.against)] if options.against else []
        compare.run([*(f"{name}={options.out / name}" for name in done), *against])
    for path in failed:
        print(f"failed: {shown(path)} ({shown(path)}.log)", file=sys.stderr)
    return 1 if failed else 0


def _name(cell: str) -> str:
    return cell.removesuffix(".yaml").removeprefix("configs/").strip("./").replace("/", "-")


def _cell_of(text: str) -> Cell:
    """`ppo/Hopper-v5` has no file of its own, and is `--algo ppo --env Hopper-v5`."""
    from rlplat.rl.run.registry import algorithm_homes, find_config

    algo, _, env = text.partition("/")
    if env and algo in algorithm_homes() and find_config(text) is None:
        return Cell(algo, env, None)
    return Cell(None, None, text)


def _train_all(runs: deque[tuple[list[str], int, Path]], jobs: int) -> list[Path] | None:
    """Directories of the runs that failed; None: it was interrupted, and each run has saved a checkpoint."""
    total, ended, failed = len(runs), 0, []
    going: dict[subprocess.Popen[bytes], tuple[Path, float]] = {}
    try:
        while runs or going:
            while runs and len(going) < jobs:
                words, seed, path = runs.popleft()
                path.parent.mkdir(parents=True, exist_ok=True)
                going[_start(words, seed, path, _free_core())] = path, time.monotonic()
            for child in [each for each in going if each.poll() is not None]:
                path, began_s = going.pop(child)
                ended += 1
                failed += [path] if child.returncode else []
                print(
                    f"{ended} of {total}: {_said(path, child.returncode, time.monotonic() - began_s)}",
                    flush=True,
                )
            time.sleep(0.2)
    except KeyboardInterrupt:
        for child in going:
            child.send_signal(signal.SIGINT)
        for child in going:
            child.wait()
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        return None
    return failed


def _free_core() -> int:
    """Where the fewest processes run as these do: those of another `rlplat bench` count, and of one that was killed."""
    taken: Counter[int] = Counter()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ends just now
            cores = os.sched_getaffinity(int(name))
            if len(cores) == 1 and os.sched_getscheduler(int(name)) == os.SCHED_IDLE:
                taken.update(cores)
    return min(sorted(os.sched_getaffinity(0)), key=taken.__getitem__)


def _start(words: Sequence[str], seed: int, path: Path, core: int) -> subprocess.Popen[bytes]:
    def be_modest() -> None:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    place = ["--seed", str(seed), "--out", str(path), "--resume", "auto"]
    with open(f"{path}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rlplat.cli", "train", *words, *place],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=be_modest,
            start_new_session=True,  # Ctrl-C is sent on, once
        )


def _said(path: Path, code: int, seconds: float) -> str:
    from rlplat.catalog import describe_run

    if code:
        return f"{shown(path)} failed (exit code {code})"
    row = describe_run(path)
    value = row["eval_return_mean"] if row["eval_return_mean"] is not None else row["episode_return_mean"]
    return f"{shown(path)}: return {figure(value) if value is not None else '-'} after {seconds:,.0f} s"
