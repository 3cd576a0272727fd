"""Runs that differ by their seed as one curve: the interquartile mean and its 95 % interval.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021): the interquartile
mean (the mean of the middle half) of the runs, and percentiles of it over stratified bootstrap samples of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]
"""float64[M] each: x, y."""
Middle = Literal["iqm", "mean"]
NUM_POINTS = 200
NUM_RESAMPLES = 1000
MOST_NUMBERS = 1_000_000
"""Of the resampled curves that are in memory at once."""


@dataclass(frozen=True)
class Band:
    x: np.ndarray
    """float64[P], ascending."""
    middle: np.ndarray
    """float64[P]: the interquartile mean of the runs that have reached x; with up to 3 runs their mean."""
    low: np.ndarray
    high: np.ndarray
    """float64[P]: the 2.5th and the 97.5th percentile of `middle` over bootstrap samples; equal to it for one run."""
    num_runs: np.ndarray
    """int64[P]: the runs that have reached x."""


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """values: float64[N, ...], N >= 1. The mean over axis 0 of what is left without the lowest and highest N // 4."""
    cut = len(values) // 4
    ordered = np.sort(values, axis=0)
    mean: np.ndarray = ordered[cut : len(values) - cut].mean(axis=0)
    return mean


def _mean(values: np.ndarray) -> np.ndarray:
    mean: np.ndarray = values.mean(axis=0)
    return mean


def interval(values: Sequence[float], middle_of: Middle = "iqm") -> tuple[float, float, float]:
    """(middle, 2.5th, 97.5th percentile) of numbers of several runs, as in a `Band`; NaN of none (a NaN is none)."""
    found = band([(np.zeros(1), np.array([value])) for value in values], middle_of=middle_of)
    if not len(found.middle):
        return float("nan"), float("nan"), float("nan")
    return float(found.middle[0]), float(found.low[0]), float(found.high[0])


def summary(scores: Sequence[float]) -> dict[str, Any]:
    """scores: of each run of a group, N >= 1, finite. What a table of groups says of them."""
    iqm, low, high = interval(scores)
    mean, mean_low, mean_high = interval(scores, "mean")
    return {
        "runs": len(scores), "iqm": iqm, "iqm_interval": [low, high], "mean": mean,
        "mean_interval": [mean_low, mean_high], "worst": float(min(scores)), "best": float(max(scores)),
    }  # fmt: skip


def improvements(scores: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Of each pair of groups a, b: `probability_of_improvement` of a over b. scores: of each group, by its name."""
    found = []
    for (a, ours), (b, theirs) in combinations(scores.items(), 2):
        share, low, high = probability_of_improvement(np.asarray(ours), np.asarray(theirs))
        found.append({"a": a, "b": b, "p": share, "interval": [low, high]})
    return found


def probability_of_improvement(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """(P(X > Y) + P(X = Y) / 2, its 2.5th and 97.5th percentile) of a run X of a and Y of b (Agarwal et al. 2021,
    section 4.3; the Mann-Whitney U by the number of pairs). a: float64[N], b: float64[M]."""
    wins = (a[:, None] > b).astype(float) + 0.5 * (a[:, None] == b)
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(len(each), size=(NUM_RESAMPLES, len(each))) for each in (a, b))
    shares = [wins[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
    low, high = np.percentile(shares, [2.5, 97.5])
    return float(wins.mean()), float(low), float(high)


def performance_profile(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(tau, share of runs with a score above tau, its 2.5th and 97.5th percentile), float64[P] each (Agarwal et al.
    2021, section 4.2). scores: float64[N]."""
    tau = np.unique(scores)
    tau = np.concatenate([[tau[0] - max(1e-9, 0.02 * np.ptp(tau))], tau])
    samples = np.random.default_rng(0).integers(len(scores), size=(NUM_RESAMPLES, len(scores)))
    above = scores[:, None] > tau
    low, high = np.percentile(above[samples].mean(axis=1), [2.5, 97.5], axis=0)
    return tau, above.mean(axis=0), low, high


def curve_of(rows: Sequence[Mapping[str, Any]], metric: str, x: str = "env_steps") -> Curve:
    """A metric of a run over env steps or wall seconds: the rows of metrics.jsonl that have both, x ascending.

    An evaluation plays beside the training, and its figures come with a later row: they are at the env steps of the
    weights that played (`eval/env_steps`), and at the second in which the training was there.
    """
    of_weights = "eval/env_steps" if metric.startswith("eval/") else ""
    line = [(row["env_steps"], row[x]) for row in rows if None not in (row.get("env_steps"), row.get(x))]
    steps, at_steps = np.array(line, float).reshape(-1, 2).T
    found: dict[float, float] = {}
    for row in rows:
        value, at = row.get(metric), row.get(x)
        if of_weights and row.get(of_weights) is not None and len(steps):
            at = np.interp(row[of_weights], steps, at_steps) if x != "env_steps" else row[of_weights]
        if value is not None and at is not None:
            found[float(at)] = float(value)
    points = sorted(found.items())
    return np.array([at for at, _ in points], float), np.array([value for _, value in points], float)


def band(curves: Sequence[Curve], num_points: int = NUM_POINTS, middle_of: Middle = "iqm") -> Band:
    """curves: (x, y) of each run, both float64[M], x ascending, without NaN; those without a point are left out.

    Between its points a curve is a straight line; before its first and after its last point it has no value.
    """
    cut = interquartile_mean if middle_of == "iqm" else _mean
    curves = [(np.asarray(x, float), np.asarray(y, float)) for x, y in curves if len(x)]
    if not curves:
        nothing = np.zeros(0)
        return Band(nothing, nothing, nothing, nothing, np.zeros(0, np.int64))
    first, last = min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    grid = np.linspace(first, last, num_points) if last > first else np.array([first])
    at_grid = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves])
    num_runs = np.sum(~np.isnan(at_grid), axis=0)
    middle, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    present = ~np.isnan(at_grid)
    rng = np.random.default_rng(0)
    for members in {tuple(column) for column in present.T}:  # stretches in which the same runs have a value
        chosen = np.flatnonzero(members)
        if not len(chosen):
            continue
        where = (present == np.asarray(members)[:, None]).all(axis=0)
        values = at_grid[np.ix_(chosen, np.flatnonzero(where))]
        samples = rng.integers(len(chosen), size=(NUM_RESAMPLES, len(chosen)))
        num_chunks = 1 + samples.size * values.shape[1] // MOST_NUMBERS
        chunks = np.array_split(samples, num_chunks)  # many samples at once, in bounded memory
        means = np.concatenate([cut(values[chunk.T]) for chunk in chunks])
        middle[where] = cut(values)
        low[where], high[where] = np.percentile(means, [2.5, 97.5], axis=0)
    there = num_runs > 0
    return Band(grid[there], middle[there], low[there], high[there], num_runs[there])
