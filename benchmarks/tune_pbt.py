"""Population based training on two problems in which a schedule beats every fixed value, and how far is known exactly.

    ./scripts/bench tune_pbt --peer ray --seeds 10 --markdown FILE.md --plot FILE.png

A trial is trained for twenty reports; a population of eight may change its hyper-parameter after each. What counts is
not the noisy metric but what the schedule of the winner is worth in expectation, beside the best fixed value (by brute
force over a fine grid) and the best schedule (the same, report by report). So nobody wins by luck.

noisy quadratic   SGD on x^2 / 2 in 100 dimensions from x = 10, gradients with noise 1, 10 steps a report. The learning
                  rate must be large at first and fall.
moving target     each report is worth 1 - (h - c)^2, and c moves from 0.2 to 0.8.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Report, Sample, add_output_options, hardware, summarize
from rlplat.paths import expanded

PACKAGES = ("rlplat", "ray", "numpy", "scipy", "scikit-learn")
NUM_TRIALS, NUM_REPORTS = 8, 20
STEPS_A_REPORT, DIMENSIONS, START = 10, 100, 10.0
METHODS = ("random", "pbt", "pbt, synchronous", "pb2", "pb2, synchronous")
NOTES = (
    "Expected loss (noisy quadratic) or regret (moving target) of the schedule of the trial with the best metric, as "
    "a multiple of the best fixed value's; 1 is the best fixed value, lower is better. Brackets: smallest, largest of "
    "the seeds.",
    f"Everybody: {NUM_TRIALS} trials of {NUM_REPORTS} reports, a change after each report at the most, quantile 0.25, "
    "resampling 0.25, factors 0.8 and 1.2, the same ranges. Random: the best of eight fixed values.",
    "Ray's PB2 knows no logarithmic range, so its parameter is the place in the range, from 0 to 1.",
)


class NoisyQuadratic:
    name, low, high, is_log = "noisy quadratic", 1e-3, 1.0, True

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = np.full(DIMENSIONS, START)
        self.path: list[float] = []

    def report(self, value: float) -> float:
        """One report with this learning rate; the score, higher is better."""
        for _ in range(STEPS_A_REPORT):
            self.x = self.x - value * (self.x + self.rng.standard_normal(DIMENSIONS))
        self.path.append(value)
        return -math.log10(float(np.mean(self.x**2)))

    @staticmethod
    def worth(path: Any, mean_square: Any = START**2) -> Any:
        """The expected mean square after these learning rates; each may be an array of them."""
        for value in path:
            for _ in range(STEPS_A_REPORT):
                mean_square = (1 - value) ** 2 * mean_square + value**2
        return mean_square

    @staticmethod
    def best_schedule() -> list[float]:
        """One value a report. A smaller mean square after a report is never worse later, so each report for itself."""
        grid = np.geomspace(NoisyQuadratic.low, NoisyQuadratic.high, 20_001)
        mean_square, schedule = START**2, []
        for _ in range(NUM_REPORTS):
            after = NoisyQuadratic.worth([grid], mean_square)
            schedule.append(float(grid[np.argmin(after)]))
            mean_square = float(np.min(after))
        return schedule


class MovingTarget:
    name, low, high, is_log = "moving target", 0.0, 1.0, False

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.total = 0.0
        self.path: list[float] = []

    def report(self, value: float) -> float:
        target = 0.2 + 0.6 * len(self.path) / NUM_REPORTS
        self.total += 1 - (value - target) ** 2 + 0.02 * float(self.rng.standard_normal())
        self.path.append(value)
        return self.total

    @staticmethod
    def worth(path: Any) -> Any:
        """The regret."""
        return sum((value - (0.2 + 0.6 * at / NUM_REPORTS)) ** 2 for at, value in enumerate(path))

    @staticmethod
    def best_schedule() -> list[float]:
        return [0.2 + 0.6 * at / NUM_REPORTS for at in range(NUM_REPORTS)]


Problem = type[NoisyQuadratic] | type[MovingTarget]
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in (NoisyQuadratic, MovingTarget)}


def best_fixed(problem: Problem) -> tuple[float, float]:
    """(value, what it is worth), by brute force."""
    grid = np.geomspace(problem.low, problem.high, 20_001) if problem.is_log else np.linspace(0, 1, 20_001)
    worth = problem.worth([grid] * NUM_REPORTS)
    return float(grid[np.argmin(worth)]), float(np.min(worth))


@dataclass(frozen=True)
class Found:
    """What a method came to."""

    path: list[float]
    """Of the winner: the value of each report of its weights."""
    num_reports: int
    """Of the whole population."""


# ---------------------------------------------------------------- rlplat


class Trial:
    def __init__(self, config: dict[str, Any], context: Any) -> None:
        self.config, self.model = config, PROBLEMS[config["problem"]](context.seed)

    def step(self) -> dict[str, Any]:
        return {
            "score": self.model.report(self.config["value"]),
            "path": " ".join(map(repr, self.model.path)),
        }

    def save(self) -> dict[str, Any]:
        return vars(self.model) | {"rng": self.model.rng.bit_generator.state}

    def load(self, state: dict[str, Any]) -> None:
        rng = self.model.rng
        rng.bit_generator.state = state["rng"]
        vars(self.model).update(state | {"rng": rng})


def with_rlplat(problem: Problem, method: str, seed: int, directory: Path) -> Found:
    from rlplat import tune

    domain = (tune.loguniform if problem.is_log else tune.uniform)(problem.low, problem.high)
    name = method.partition(",")[0]
    settings: dict[str, Any] = {"name": name, "perturbation_period": 1}
    settings["synch"] = "synchronous" in method
    analysis = tune.run(
        Trial,
        {"problem": problem.name, "value": domain},
        metric="score",
        num_samples=NUM_TRIALS,
        stop={"step": NUM_REPORTS},
        scheduler="fifo" if method == "random" else settings,
        resources={"cpu": 0.25},
        seed=seed,
        out=directory,
        progress=False,
    )
    best = max(analysis.trials, key=lambda trial: trial.values[0])
    path = [float(value) for value in str(best.last["path"]).split()]
    return Found(path, sum(trial.step for trial in analysis.trials))


# ---------------------------------------------------------------- Ray Tune


def with_ray(problem: Problem, method: str, seed: int, directory: Path) -> Found:
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.schedulers.pb2 import PB2

    np.random.seed(seed)
    random.seed(seed)
    common: dict[str, Any] = {
        "time_attr": "training_iteration",
        "quantile_fraction": 0.25,
        "perturbation_interval": 1,
        "synch": "synchronous" in method,
    }
    domain = (tune.loguniform if problem.is_log else tune.uniform)(problem.low, problem.high)
    space: dict[str, Any] = {"problem": problem.name, "seed": tune.randint(0, 2**31), "value": domain}
    scheduler: Any = None
    if method.startswith("pb2"):
        space["value"] = tune.uniform(0, 1)
        space["is_place"] = True
        scheduler = PB2(hyperparam_bounds={"value": [0.0, 1.0]}, **common)
    elif method != "random":
        scheduler = PopulationBasedTraining(
            hyperparam_mutations={"value": domain},
            resample_probability=0.25,
            perturbation_factors=(1.2, 0.8),
            **common,
        )
    counter = directory / "reports"
    counter.parent.mkdir(parents=True, exist_ok=True)
    space["counter"] = str(counter)
    results = tune.Tuner(
        tune.with_resources(ray_trainable(), {"cpu": 0.25}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples=NUM_TRIALS, scheduler=scheduler, reuse_actors=True
        ),
        run_config=tune.RunConfig(stop={"training_iteration": NUM_REPORTS}, storage_path=str(directory), verbose=0),
    ).fit()
    best: Any = results.get_best_result()
    return Found([float(value) for value in best.metrics["path"].split()], counter.stat().st_size)


def ray_trainable() -> Any:
    from ray import tune

    class RayTrial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.model = PROBLEMS[config["problem"]](config["seed"])
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            problem, value = PROBLEMS[new_config["problem"]], float(new_config["value"])
            if new_config.get("is_place"):
                low, high = problem.low, problem.high
                value = low * (high / low) ** value if problem.is_log else low + (high - low) * value
            self.value = value
            self.model = problem(new_config["seed"])
            return True

        def step(self) -> dict[str, Any]:
            descriptor = os.open(self.config["counter"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, b".")
            os.close(descriptor)
            return {"score": self.model.report(self.value), "path": " ".join(map(repr, self.model.path))}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return dict(vars(self.model))

        def load_checkpoint(self, checkpoint: Any) -> None:
            vars(self.model).update(checkpoint)

    return RayTrial


# ---------------------------------------------------------------- the table and the picture


def main() -> None:
    options = build_parser().parse_args()
    seeds = range(1 if options.quick else options.seeds)
    peers = ["rlplat", *dict.fromkeys(options.peer)]
    info = hardware(PACKAGES)
    samples: list[Sample] = []
    paths: dict[tuple[str, str, str], list[list[float]]] = {}
    for peer in peers:
        with tempfile.TemporaryDirectory() as scratch, cluster(peer):
            for problem in (PROBLEMS[name] for name in options.problems):
                fixed = best_fixed(problem)[1]
                for method in options.methods:
                    for seed in seeds:
                        run = with_rlplat if peer == "rlplat" else with_ray
                        found = run(problem, method, seed, Path(scratch) / f"{problem.name}-{method}-{seed}")
                        paths.setdefault((peer, problem.name, method), []).append(found.path)
                        worth = float(problem.worth(found.path)) / fixed
                        samples.append(Sample(peer, f"{problem.name}, {method}", "", "of the best fixed", worth))
                        samples.append(Sample(peer, f"{method}: reports of the population", "", "", found.num_reports))
                        print(
                            peer,
                            problem.name,
                            method,
                            seed,
                            f"{worth:.3f}",
                            found.num_reports,
                            file=sys.stderr,
                            flush=True,
                        )
    notes = [*NOTES, *(known(PROBLEMS[name]) for name in options.problems), *wins(samples)]
    report = Report("Population based training", peers, summarize(samples), set(), info, notes)
    report.publish(options.json, options.markdown)
    if options.plot:
        draw(paths, [PROBLEMS[name] for name in options.problems], options.plot)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune_pbt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, ["ray"])
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--plot", type=expanded, metavar="FILE.png", help="the schedules found")
    return parser


@contextlib.contextmanager
def cluster(peer: str) -> Any:
    if peer == "rlplat":
        import rlplat

        rlplat.init(num_cpus=2, num_gpus=0)
        try:
            yield
        finally:
            rlplat.shutdown()
    else:
        import ray

        ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()


def known(problem: Problem) -> str:
    value, worth = best_fixed(problem)
    best = float(problem.worth(problem.best_schedule()))
    return (
        f"{problem.name}: the best fixed value is {value:.4g}, worth {worth:.4g}; the best schedule is worth "
        f"{best / worth:.2f} of that."
    )


def wins(samples: Sequence[Sample]) -> list[str]:
    found: dict[tuple[str, str], list[bool]] = {}
    for sample in samples:
        if sample.unit:
            found.setdefault((sample.peer, sample.row), []).append(sample.value < 1)
    told = [f"{peer} {row} {sum(won)}/{len(won)}" for (peer, row), won in found.items()]
    return ["Seeds that beat the best fixed value: " + "; ".join(told) + "."]


def draw(paths: dict[tuple[str, str, str], list[list[float]]], problems: Sequence[Problem], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [method for method in METHODS if method != "random" and any(key[2] == method for key in paths)]
    figure, axes = plt.subplots(
        len(problems), len(shown), figsize=(4 * len(shown), 3.2 * len(problems)), squeeze=False, sharey="row"
    )
    for row, problem in zip(axes, problems, strict=True):
        for axis, method in zip(row, shown, strict=True):
            for path in paths.get(("rlplat", problem.name, method), []):
                axis.step(range(len(path)), path, where="post", color="tab:blue", alpha=0.35, linewidth=1)
            axis.plot([], [], color="tab:blue", label="found, each seed")
            axis.axhline(best_fixed(problem)[0], color="tab:red", linestyle="--", label="best fixed value")
            axis.step(
                range(NUM_REPORTS),
                problem.best_schedule(),
                where="post",
                color="black",
                label="best schedule",
            )
            axis.set_title(f"{problem.name}, {method}", fontsize=10)
            axis.set_xlabel("reports")
            if problem.is_log:
                axis.set_yscale("log")
        row[0].set_ylabel("learning rate" if problem.is_log else "h")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
