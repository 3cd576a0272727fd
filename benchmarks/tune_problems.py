"""Problems for trial schedulers: what a trial's curve looks like, and what its config is worth. No training here.

problem = load_problems(["crossing", "cartpole"])[0]
curve, worth = problem.draw(np.random.default_rng(1))       # 81 scores; the config's true value at the last of them

- `ranked`: power laws. Who is ahead early is ahead at the end, but for noise.
- `crossing`: exponentials. Slow learners end up to 15 % higher: some of those that are ahead early are not at the end.
- `inverted`: the same with 30 % and slower ones still: who is ahead early is mostly behind at the end.
- `cartpole`: real runs of PPO (tune_curves.py), each config with several seeds; it is worth the mean of their ends.
- `cartpole short`: a whole training is 27 reports (27,648 env steps) instead of 81, and good configs are rare.

Scores are what a trial reports, noise included; `worth` and `optimum` are without noise (ranked, crossing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tune_curves import REPORTS, load

Array = npt.NDArray[np.float64]
NOISE = 0.02
"""Standard deviation of a report of the synthetic problems, whose optimum is near 1."""
CARTPOLE = Path(__file__).parent / "results" / "tune-cartpole-curves_epyc-2c_202611.csv.gz"


@dataclass(frozen=True)
class Curve:
    """One trial: what it reports, and what a config like this is worth."""

    reports: Sequence[float]
    """REPORTS of them, or fewer where the trial fails."""
    trained: Sequence[float]
    """What it is worth at each report, without noise where that is known."""
    worth: float
    """Of the config after REPORTS."""


@dataclass(frozen=True)
class Problem:
    name: str
    draw: Callable[[np.random.Generator], Curve]
    optimum: float
    """The best `worth` of any config."""
    max_progress: int = REPORTS
    """Reports of a whole training."""


def load_problems(names: Sequence[str]) -> list[Problem]:
    makers: dict[str, Callable[[], Problem]] = {
        "ranked": _ranked,
        "crossing": lambda: _crossing("crossing", 0.15, 0.05),
        "inverted": lambda: _crossing("inverted", 0.3, 0.5),
        "cartpole": lambda: _table("cartpole", CARTPOLE, REPORTS),
        "cartpole short": lambda: _table("cartpole short", CARTPOLE, REPORTS // 3),
    }
    return [makers[name]() for name in names]


def _synthetic(name: str, value: Callable[[Array, Array], Array]) -> Problem:
    """value: (configs float64[N, 3] in the unit cube, progress float64[T] in (0, 1]) -> float64[N, T]."""
    steps = np.arange(1, REPORTS + 1) / REPORTS

    def draw(random: np.random.Generator) -> Curve:
        trained = value(random.random((1, 3)), steps)[0]
        return Curve((trained + NOISE * random.standard_normal(REPORTS)).tolist(), trained.tolist(), trained[-1])

    axis = np.linspace(0.0, 1.0, 101)
    grid = np.stack(np.meshgrid(axis, axis, axis), axis=-1).reshape(-1, 3)
    return Problem(name, draw, float(value(grid, steps[-1:]).max()))


def _quality(configs: Array) -> Array:
    """A bowl with its top, 1, at (0.6, *, 0.3)."""
    return 1.0 - (configs[:, :1] - 0.6) ** 2 * 2.0 - (configs[:, 2:] - 0.3) ** 2


def _ranked() -> Problem:
    def value(configs: Array, progress: Array) -> Array:
        power = 0.3 + 0.2 * _quality(configs)
        return np.asarray(_quality(configs) - 0.5 * (1 + REPORTS * progress) ** -power)

    return _synthetic("ranked", value)


def _crossing(name: str, gain: float, slowest: float) -> Problem:
    """gain: what the slowest learner ends higher; slowest: its time constant, as a part of a whole training."""

    def value(configs: Array, progress: Array) -> Array:
        slowness = configs[:, 1:2]
        time_constant = 0.01 * (slowest / 0.01) ** slowness
        learned = 1 - np.exp(-progress / time_constant)
        return np.asarray(_quality(configs) * (1 - gain + gain * slowness) * learned)

    return _synthetic(name, value)


def _table(name: str, path: Path, reports: int) -> Problem:
    runs: dict[int, list[Sequence[float]]] = {}
    for run in load(path):
        runs.setdefault(run.config, []).append(run.curve[:reports])
    worths = [float(np.mean([curve[-1] for curve in curves])) for curves in runs.values()]
    by_config = list(zip(runs.values(), worths, strict=True))

    def draw(random: np.random.Generator) -> Curve:
        curves, worth = by_config[int(random.integers(len(by_config)))]
        reported = curves[int(random.integers(len(curves)))]
        return Curve(reported, reported, worth)

    return Problem(name, draw, max(worths), reports)
