"""Trial schedulers at an equal budget: random search, median rule, ASHA, HyperBand, beside Optuna's and Ray Tune's.

    ./scripts/bench tune_schedulers --peer optuna --peer ray --seeds 30 --markdown FILE.md --plot FILE.png
    ./scripts/bench tune_schedulers --rows cartpole --seeds 5
    ./scripts/bench tune_schedulers --methods hyperband --first-seed 100 --seeds 100 --peer optuna

No training runs here: workers on a virtual clock run trials whose curves are drawn from a problem (tune_problems.py:
three synthetic ones with a known optimum, and real runs of PPO on CartPole-v1), as a scheduler says (tune_judges.py:
the real classes of all three houses; each with its own defaults, told only how long a whole training is). `decisions`
measures what a report costs those that have seen many trials.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Report, Row, add_output_options, hardware
from benchmarks.tune_judges import GO, METHODS, make_judge
from benchmarks.tune_problems import Problem, load_problems
from benchmarks.tune_simulation import MARK, Trace, simulate
from rlplat.paths import expanded

PACKAGES = ("rlplat", "optuna", "ray", "numpy")
PROBLEMS = ("ranked", "crossing", "inverted", "cartpole", "cartpole short")
BUDGET = 25
"""Whole trainings; one round of HyperBand (81, 3) costs about as much."""
EARLY = 5
"""Whole trainings after which the regret is looked at for the first time."""
NUM_TRIALS = (100, 1_000, 10_000)
"""Seen before a decision is timed; by a peer 100, since each of its decisions looks at all trials again."""
SEEDS_OF_SLOW = {("ray", "median"): 10}
"""At most so many seeds of what takes ten seconds and more a seed."""
NOTES = (
    f"Budget: as many reports as {BUDGET} whole trainings, for every scheduler. 4 workers. Trial n of a seed is the "
    "same config with the same noise under every scheduler.",
    "Regret: how much worse than the optimum the config is that a user would take (highest last score), if it is "
    f"trained in full; after {EARLY} and after {BUDGET} trainings. Ray's median rule: 10 seeds, for its time.",
    f"Mark: whole trainings until some trial was trained to {MARK:.0%} of the optimum; {BUDGET} where none was.",
    "`asha, min_progress R/9` is a setting of rlplat's; the rest are defaults, in each house.",
    "rlplat is its real Experiment and scheduler, Optuna a real study in memory (it cannot pause trials, so its "
    "HyperBand is a mixture of asynchronous halvings), Ray its scheduler classes under a stand-in for its controller. "
    "Nobody stores, starts, saves or pauses anything: that costs nothing here.",
)
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """The regret of one method of one house on one problem: quartiles over the seeds, at even steps of the budget."""

    problem: str
    house: str
    method: str
    quartiles: Array
    """float64[3, POINTS]"""


POINTS = 250
NUM_TIMED = 2_000


def main() -> None:
    options = build_parser().parse_args()
    houses = ["rlplat", *dict.fromkeys(options.peer)]
    info = hardware(PACKAGES)
    rows: list[Row] = []
    curves: list[Curve] = []
    first = options.first_seed
    seeds = range(first, first + (2 if options.quick else options.seeds))
    for problem in (load_problems([name])[0] for name in PROBLEMS if name in options.rows):
        for house in houses:
            for method in (method for method in METHODS[house] if method in options.methods):
                started = time.monotonic()
                few = seeds[: SEEDS_OF_SLOW.get((house, method))]
                traces = [_run(problem, house, method, options.workers, seed) for seed in few]
                rows += _rows(problem, house, method, traces)
                curves.append(_curve(problem, house, method, traces))
                took = f"{time.monotonic() - started:.0f} s"
                print(f"{problem.name}: {house} {method}: {took}", file=sys.stderr, flush=True)
    if "decisions" in options.rows:
        for house in houses:
            rows += _decisions(house, options.methods, options.repeats, options.quick)
    if options.plot:
        draw(curves, options.plot)
    rows.sort(key=lambda row: [*PROBLEMS, "decisions"].index(row.row.split(":")[0]))
    notes = (["a --quick run: two seeds, the figures mean nothing"] if options.quick else []) + list(NOTES)
    report = Report("Trial schedulers", houses, rows, set(), info, notes, spread="lower quartile, upper quartile")
    report.publish(options.json, options.markdown)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tune_schedulers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_output_options(parser, ["optuna", "ray"])
    rows = [*PROBLEMS, "decisions"]
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows)
    methods = METHODS["rlplat"]
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--seeds", type=int, default=30, metavar="N", help="default: 30")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--plot", type=expanded, metavar="FILE.png", help="regret against budget")
    return parser


def _run(problem: Problem, house: str, method: str, workers: int, seed: int) -> Trace:
    judge = make_judge(house, method, problem.max_progress, seed)
    budget = BUDGET * problem.max_progress
    return simulate(problem, judge, workers=workers, budget=budget, max_progress=problem.max_progress, seed=seed)


def _rows(problem: Problem, house: str, method: str, traces: Sequence[Trace]) -> list[Row]:
    unit = problem.max_progress
    early = [100 * trace.regret[EARLY * unit - 1] / problem.optimum for trace in traces]
    end = [100 * trace.regret[-1] / problem.optimum for trace in traces]
    mark = [BUDGET if trace.reached_at is None else trace.reached_at / unit for trace in traces]
    name = f"{problem.name}: {method}"
    regret = f"{name}: regret after {EARLY} / {BUDGET} trainings, % of the optimum"
    return [
        _quartiles(house, regret, "early", "%", early),
        _quartiles(house, regret, "end", "%", end),
        _quartiles(house, f"{name}: trainings to the {MARK:.0%} mark", "", "trainings", mark),
    ]


def _quartiles(house: str, row: str, part: str, unit: str, values: Sequence[float]) -> Row:
    low, median, high = (float(value) for value in np.quantile(values, [0.25, 0.5, 0.75]))
    return Row(house, row, part, median, unit, low, high, len(values))


def _curve(problem: Problem, house: str, method: str, traces: Sequence[Trace]) -> Curve:
    regrets = 100 * np.array([trace.regret for trace in traces]) / problem.optimum
    at = np.linspace(0, regrets.shape[1] - 1, POINTS).round().astype(int)
    return Curve(problem.name, house, method, np.quantile(regrets[:, at], [0.25, 0.5, 0.75], axis=0))


# ---------------------------------------------------------------- what a decision costs


def _decisions(house: str, methods: Sequence[str], repeats: int, quick: bool) -> list[Row]:
    rows = []
    for method in (method for method in METHODS[house] if method in methods):
        for num_trials in NUM_TRIALS[: 1 if quick else None]:
            if house != "rlplat" and num_trials > NUM_TRIALS[0]:
                continue
            costs = [_cost_us(house, method, num_trials, seed) for seed in range(repeats)]
            name = f"decisions: {method}: µs of CPU per report after {' / '.join(f'{n:,}' for n in NUM_TRIALS)} trials"
            rows.append(_quartiles(house, name, f"{num_trials}", "µs", costs))
    return rows


def _cost_us(house: str, method: str, num_trials: int, seed: int) -> float:
    """Microseconds of CPU per report, with 4 trials running, after `num_trials` have been begun; NUM_TIMED reports."""
    judge = make_judge(house, method, 81, seed)
    random = np.random.default_rng(seed)
    quality: dict[int, float] = {}
    progress: dict[int, int] = {}
    running = [judge.next() for _ in range(4)]
    num_reports, spent_s, turn = 0, 0.0, 0
    while num_reports < NUM_TIMED:
        turn += 1
        number = running[turn % 4]
        quality.setdefault(number, float(random.standard_normal()))
        progress[number] = progress.get(number, 0) + 1
        score = quality[number] + 0.1 * float(random.standard_normal())
        started = time.process_time()
        fate = judge.report(number, progress[number], score)
        if fate == GO and progress[number] == 81:
            judge.end(number, is_complete=True)
            fate = "end"
        if fate != GO:
            running[turn % 4] = judge.next()
        if len(quality) >= num_trials:
            spent_s += time.process_time() - started
            num_reports += 1
    return spent_s / num_reports * 1e6


# ---------------------------------------------------------------- the picture

COLORS = {"rlplat": "#d62728", "optuna": "#1f77b4", "ray": "#2ca02c"}
PICTURES = ("median", "asha", "hyperband")


def draw(curves: Sequence[Curve], path: Path) -> None:
    """A row of pictures per method, a column per problem: median regret, and rlplat's quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    problems = list(dict.fromkeys(curve.problem for curve in curves))
    figure, axes = pyplot.subplots(
        len(PICTURES),
        len(problems),
        figsize=(3.4 * len(problems), 8),
        squeeze=False,
        sharex=True,
        sharey="col",
    )
    budget = np.linspace(0, BUDGET, POINTS)
    for row, method in enumerate(PICTURES):
        for column, problem in enumerate(problems):
            axis: Any = axes[row][column]
            for curve in (curve for curve in curves if curve.problem == problem):
                if curve.method == "random":
                    axis.plot(budget, curve.quartiles[1], color="0.6", linewidth=2, label="random search")
                elif curve.method == method:
                    label = f"{curve.house} {method}"
                    axis.plot(budget, curve.quartiles[1], color=COLORS[curve.house], linewidth=1.3, label=label)
                    if curve.house == "rlplat":
                        low, _, high = curve.quartiles
                        axis.fill_between(budget, low, high, color=COLORS["rlplat"], alpha=0.12, linewidth=0)
            if problem == "ranked":
                axis.set_yscale("log")
                axis.set_ylim(0.1, 20)
            else:
                axis.set_ylim(0, 50 if problem.startswith("cartpole") else 25)
            axis.grid(alpha=0.25)
            axis.legend(fontsize=7)
            if row == 0:
                axis.set_title(problem)
            if row == len(PICTURES) - 1:
                axis.set_xlabel("budget, whole trainings")
            if column == 0:
                axis.set_ylabel("regret, % of the optimum")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
