"""Runs that differ by their seed as one curve: the interquartile mean and its 95 % interval.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021): the interquartile
mean (the mean of the middle half) of the runs, and percentiles of it over stratified bootstrap samples of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]], num_points: int = NUM_POINTS) -> Band:
    """curves: (x, y) of each run, both float64[M], x ascending, without NaN; those without a point are left out.

    Between its points a curve is a straight line; before its first and after its last point it has no value.
    """
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
        means = np.concatenate([interquartile_mean(values[chunk.T]) for chunk in chunks])
        middle[where] = interquartile_mean(values)
        low[where], high[where] = np.percentile(means, [2.5, 97.5], axis=0)
    there = num_runs > 0
    return Band(grid[there], middle[there], low[there], high[there], num_runs[there])
