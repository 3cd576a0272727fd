"""`rlplat train ... --seeds 1-5`: the same run with several seeds, one after the other or (`--together`) in one
program, and what they say together.

    runs/five/  seed-1/  seed-2/  ...       a run each

The same command again goes on where it was: runs that have ended stay as they are, one that was cut off is resumed. A
seed that fails is named at the end, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rlplat.cli.view.plot import FEW
from rlplat.config import Layer
from rlplat.errors import ConfigError
from rlplat.figures import figure
from rlplat.given.spelling import CALLED_AS, called_as, spelled
from rlplat.paths import expanded, shown

MOST_SEEDS = 1000
_OURS = ("--seeds", "--out", "--resume")


def parse_seeds(text: str) -> list[int]:
    """`1-3,7` -> [1, 2, 3, 7]; ConfigError where it is something else, or names a seed twice."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise ConfigError(f"--seeds takes 1-5 or 1,2,7, not '{text}'")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first >= MOST_SEEDS:
            raise ConfigError(f"--seeds {text} are more than {MOST_SEEDS:,} runs")
        seeds += range(first, last + 1)
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ConfigError(f"--seeds {text} names {twice[0]} twice")
    return seeds


def train_seeds(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """One after the other. options: of `rlplat train`, parsed from the arguments."""
    seeds, base = _seeds_and_base(options)
    rest = _without(list(arguments), _OURS)
    codes: dict[int, int] = {}
    for number, seed in enumerate(seeds, start=1):
        directory = base / f"seed-{seed}"
        print(f"seed {seed} ({number} of {len(seeds)}): {shown(directory)}", flush=True)
        codes[seed] = _train(rest, seed, directory)
        if codes[seed] == 2 and number == 1:
            return 2  # what is wrong with the first is wrong with all
        if codes[seed] in (129, 130, 143):
            command = f"rlplat train {shlex.join([*rest, '--seeds', options.seeds, '--out', str(base)])}"
            print(spelled(f"to go on: {command}"), file=sys.stderr)
            return codes[seed]
    print("\n".join(["", *summary(base, codes)]))
    return 1 if any(codes.values()) else 0


def train_seeds_together(options: argparse.Namespace, layers: Sequence[Layer], callbacks: Sequence[Any]) -> int:
    """In this process; layers: the settings that were given."""
    from rlplat.rl.run.training_loop import TrainOptions
    from rlplat.rl.together.training import train_seeds

    seeds, base = _seeds_and_base(options)
    print(f"{len(seeds)} seeds together: {shown(base)}", flush=True)
    given = TrainOptions(config=False if options.no_config else options.config, init_from=options.init_from)
    try:
        ended = train_seeds(options.algo, layers, seeds, base, given, callbacks)
    except KeyboardInterrupt:
        print(f"to go on: the same command again, with --out {shown(base)}", file=sys.stderr)
        raise
    codes = {seed: int(isinstance(what, Exception)) for seed, what in ended.items()}
    print("\n".join(["", *summary(base, codes)]))
    return 1 if any(codes.values()) else 0


def _seeds_and_base(options: argparse.Namespace) -> tuple[list[int], Path]:
    seeds = parse_seeds(options.seeds)
    if options.seed is not None:
        raise ConfigError("--seeds and --seed exclude each other: omit --seed")
    if options.resume == "auto":  # so it does anyway
        options.resume = None
    if options.out and options.resume:
        raise ConfigError("--seeds goes on in the directory of --out; omit --resume")
    if options.env == "external":
        raise ConfigError("--seeds goes with environments of this machine, not with --env external")
    given = options.out or options.resume
    return seeds, expanded(given) if given else _default_base(options)


def _default_base(options: argparse.Namespace) -> Path:
    what = [Path(each).stem for each in (options.algo, options.config, options.env) if each]
    name = re.sub(r"[^\w.-]+", "-", "-".join(what)).strip("-") or "runs"
    return Path("runs") / f"{name}-seeds-{datetime.now():%Y%m%d-%H%M%S}"


def _train(rest: list[str], seed: int, directory: Path) -> int:
    """One run, in a process of its own: its exit code."""
    place = ["--seed", str(seed), "--out", str(directory), "--resume", "auto"]
    command = [sys.executable, "-m", "rlplat.cli", "train", *rest, *place]
    with subprocess.Popen(command, env={**os.environ, CALLED_AS: called_as()}) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the run has heard it too, and saves a checkpoint
                continue


def _without(arguments: list[str], names: Sequence[str]) -> list[str]:
    """The arguments without these flags and their values."""
    kept: list[str] = []
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        if name in names:
            at += 1 if equals else 2
            continue
        kept.append(arguments[at])
        at += 1
    return kept


def summary(base: Path, codes: dict[int, int]) -> list[str]:
    """A table of the runs, and of those that ended the mean, the interquartile mean and its interval."""
    from rlplat.catalog import describe_run
    from rlplat.cli.view.runs import cell, table
    from rlplat.dashboard.bands import interval

    cells, ended = [], []
    for seed, code in codes.items():
        row: dict[str, Any] = describe_run(base / f"seed-{seed}") if (base / f"seed-{seed}").is_dir() else {}
        cells.append(
            [
                str(seed),
                cell(row.get("env_steps"), "{:,d}".format),
                *(cell(row.get(name), figure) for name in ("episode_return_mean", "eval_return_mean")),
                "ended" if code == 0 else f"failed (exit code {code})",
            ]
        )
        ended += [row] if code == 0 else []
    lines = [table(cells, ["seed", "env steps", "return", "eval", "state"])]
    for name, key in (("evaluation", "eval_return_mean"), ("return", "episode_return_mean")):
        values = [row[key] for row in ended if isinstance(row.get(key), int | float)]
        if len(values) > 1 and len(values) == len(ended):
            mean, mean_low, mean_high = interval(values, "mean")
            middle, low, high = interval(values)
            lines.append(
                f"{name} of {len(values)} seeds: mean {figure(mean)} (95 % interval {figure(mean_low)} to "
                f"{figure(mean_high)}), interquartile mean {figure(middle)} ({figure(low)} to {figure(high)})"
            )
    if 1 < len(ended) < FEW:
        lines.append(f"{len(ended)} seeds: such an interval says little; run at least {FEW}")
    if failed := [str(seed) for seed, code in codes.items() if code]:
        lines.append(f"failed: seed {', '.join(failed)}; the log is in {shown(base)}/seed-{failed[0]}/log.txt")
    if ended:
        pattern = f"{shlex.quote(str(shown(base)))}/seed-*"
        lines.append(spelled(f"the curves: rlplat plot {pattern} --out curves.pdf"))
    return lines
