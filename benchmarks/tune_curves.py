"""A table of real learning curves: PPO on CartPole-v1, configs drawn at random, so that tuning is compared in seconds.

    python -m benchmarks.tune_curves --configs 200 --seeds 1 2 --out /tmp/curves.csv        # goes on where it was
    python -m benchmarks.tune_curves --pack benchmarks/results/tune-cartpole-curves_epyc-2c_202611.csv.gz --out ...

One line per run: config's number, seed, the drawn values, how it ended, and `r1 ... r81`: the mean raw return of the
last 100 training episodes at the first round beyond each 1,024 env steps (82,944 in all). All configs with the first
seed come first. A run that ends in NaN or infinity keeps the reports up to there. PPO runs in this process, on one
thread.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.paths import expanded

REPORTS = 81
"""3^4: every rung of a halving by 3 falls on a report."""
ENV_STEPS_PER_REPORT = 1_024
SPACE: dict[str, tuple[Any, ...]] = {
    "learning_rate": ("loguniform", 1e-5, 1e-1),
    "num_epochs": ("choice", 1, 2, 4, 8),
    "minibatch_size": ("choice", 64, 128, 256),
    "num_envs_per_worker": ("choice", 8, 16),
    "rollout_length": ("choice", 32, 64),
    "gae_lambda": ("uniform", 0.8, 1.0),
    "discount": ("choice", 0.95, 0.98, 0.99, 0.999),
    "clip_range": ("uniform", 0.05, 0.5),
    "entropy_coef": ("loguniform", 1e-5, 1e-1),
}
"""A round (environments x length: 256 to 1,024) is never longer than the way between two reports."""
COLUMNS = ("config", "seed", *SPACE, "end", *(f"r{i}" for i in range(1, REPORTS + 1)))


@dataclass(frozen=True)
class Run:
    """One line of the table."""

    config: int
    seed: int
    values: dict[str, float]
    curve: tuple[float, ...]
    """episode_return_mean at each report; shorter than REPORTS where the run failed."""


def draw(number: int) -> dict[str, Any]:
    """The values of config `number`; the same at any time."""
    random = np.random.default_rng([5, number])
    values: dict[str, Any] = {}
    for name, (kind, *bounds) in SPACE.items():
        if kind == "choice":
            values[name] = bounds[int(random.integers(len(bounds)))]
        elif kind == "uniform":
            values[name] = round(float(random.uniform(*bounds)), 4)
        else:
            low, high = np.log(bounds)
            values[name] = float(f"{np.exp(random.uniform(low, high)):.4g}")
    return values


def train(values: dict[str, Any], seed: int) -> tuple[str, list[float]]:
    """("complete" or the failure, curve)."""
    import rlplat
    from rlplat.algorithms.ppo import PPO, PPOConfig
    from rlplat.errors import NonFiniteError

    env_steps = REPORTS * ENV_STEPS_PER_REPORT
    config = PPOConfig(env="CartPole-v1", seed=seed, num_rollout_workers=0, stop={"env_steps": env_steps}, **values)
    curve: list[float] = []
    end = "complete"
    with PPO(config) as ppo:
        try:
            for result in rlplat.training_loop(ppo):
                if result.env_steps >= (len(curve) + 1) * ENV_STEPS_PER_REPORT:
                    mean = result.episode_return_mean
                    curve.append(float("nan") if mean is None else round(mean, 1))
        except NonFiniteError:
            end = "non-finite"
    rlplat.shutdown()
    return end, curve


def load(path: Path) -> list[Run]:
    """The runs of a table, packed or not."""
    opened = gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")
    with opened as file:
        return [
            Run(
                int(line["config"]),
                int(line["seed"]),
                {name: float(line[name]) for name in SPACE},
                tuple(float(line[f"r{i}"]) for i in range(1, REPORTS + 1) if line[f"r{i}"]),
            )
            for line in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune_curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=expanded, required=True, help="the table, a line per run; kept and continued")
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pack", type=expanded, help="only: write the table compressed to here")
    options = parser.parse_args()
    if options.pack:
        # mtime 0: the same table gives the same bytes.
        options.pack.write_bytes(gzip.compress(options.out.read_bytes(), 9, mtime=0))
        return
    done = {(run.config, run.seed) for run in load(options.out)} if options.out.exists() else set()
    if not options.out.exists():
        options.out.write_text(",".join(COLUMNS) + "\n")
    for seed in options.seeds:
        for number in range(options.configs):
            if (number, seed) in done:
                continue
            started = time.monotonic()
            values = draw(number)
            end, curve = train(values, seed)
            cells = [str(number), str(seed), *(str(value) for value in values.values()), end]
            cells += [f"{value:g}" for value in curve] + [""] * (REPORTS - len(curve))
            with options.out.open("a") as file:
                file.write(",".join(cells) + "\n")
            last = f"{curve[-1]:g}" if curve else "nothing"
            wall_s = time.monotonic() - started
            print(f"config {number}, seed {seed}: {end}, {last}, {wall_s:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
