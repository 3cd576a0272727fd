"""Which parameters matter: PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023, theorem 4.2 and algorithm 1).

A parameter matters where the good trials have other values of it than all trials have. With the densities p(x) of all
trials' values and q(x) of the best tenth's, its importance is the Pearson divergence E_p[(q(x)/p(x) - 1)^2], computed
for one parameter at a time, so its price grows with parameters times trials. Densities: a Gaussian kernel estimate with
Scott's bandwidth on a grid of 50 cells of the (logarithmic) range, or the shares of the options.

A handful of good trials differ from all trials by chance, too. So the same is computed for random handfuls: their mean
is taken off, and what is not above 19 of 20 of them is called chance. Importances then sum to 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_TRIALS = 20
"""With fewer there is nothing to be said."""
_BEST_SHARE = 0.1
_MIN_BEST = 10
"""So many, or a quarter of all while that is fewer: of four, anything could be said."""
_NUM_CELLS = 50
_NUM_HANDFULS = 100


@dataclass(frozen=True)
class Importance:
    name: str
    share: float
    """Of all parameters' importance: 0 to 1."""
    may_be_chance: bool


def importances(
    params: Sequence[Mapping[str, Any]], scores: Sequence[float], axes: Mapping[str, Axis]
) -> list[Importance]:
    """The most important first; empty for fewer than MIN_TRIALS trials.

    params, scores: of each trial; scores are finite, higher is better; a parameter that some trials do not have
    (conditional) is judged by those that have it, if they are enough. axes: of each parameter.
    """
    if len(scores) < MIN_TRIALS:
        return []
    rng = np.random.default_rng(0)
    found: dict[str, tuple[float, bool]] = {}
    for name, axis in axes.items():
        has = [index for index, of_trial in enumerate(params) if name in of_trial]
        if len(has) < MIN_TRIALS:
            continue
        cells = axis.cells([params[index][name] for index in has])
        found[name] = _importance(cells, np.array([scores[index] for index in has]), axis, rng)
    total = sum(value for value, _ in found.values()) or 1.0
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return [Importance(name, value / total, by_chance) for name, (value, by_chance) in ranked]


def _importance(
    cells: np.ndarray, scores: np.ndarray, axis: Axis, rng: np.random.Generator
) -> tuple[float, bool]:
    """cells: int[N], each trial's cell; scores: float[N]. (importance, whether chance may be all there is)."""
    num_best = max(math.ceil(_BEST_SHARE * len(scores)), min(_MIN_BEST, len(scores) // 4))
    everything = axis.density(cells)
    best = np.argsort(-scores, kind="stable")[:num_best]
    divergence = _divergence(axis.density(cells[best]), everything)
    handfuls = (rng.choice(cells, num_best, replace=False) for _ in range(_NUM_HANDFULS))
    chance = np.array([_divergence(axis.density(handful), everything) for handful in handfuls])
    return max(0.0, divergence - float(chance.mean())), divergence <= float(np.quantile(chance, 0.95))


def _divergence(best: np.ndarray, everything: np.ndarray) -> float:
    return float(np.sum(everything * (best / everything - 1) ** 2))


@dataclass(frozen=True)
class Axis:
    """The values that a parameter can have, in order; also what pictures draw it on."""

    options: tuple[Any, ...] = ()
    """Empty for numbers."""
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    is_integer: bool = False
    marks: tuple[float, ...] = ()
    """The numbers that can be chosen, where they are few."""

    def position(self, value: Any) -> float:
        """0 to 1 for numbers, 0, 1, 2, ... for options; NaN for a value that is not on it."""
        if self.options:
            return next((float(i) for i, option in enumerate(self.options) if _same(option, value)), math.nan)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.nan
        low, high, at = self.low, self.high, float(value)
        if self.is_log:
            if at <= 0:
                return math.nan
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low) if high > low else 0.5

    def cells(self, values: Sequence[Any]) -> np.ndarray:
        """int[N]; values that are not on it (PBT may leave the range) count as the nearest."""
        positions = np.nan_to_num(np.array([self.position(value) for value in values]), nan=0.0)
        if self.options:
            return positions.astype(int)
        return np.clip((positions * _NUM_CELLS).astype(int), 0, _NUM_CELLS - 1)

    def density(self, cells: np.ndarray) -> np.ndarray:
        """Of each cell; sums to 1 and is nowhere 0: it has one uniform observation in it besides the given ones."""
        size = len(self.options) or _NUM_CELLS
        counts = np.bincount(cells, minlength=size).astype(float)
        if not self.options:
            # Scott's rule, and never narrower than a cell
            width = max(1.0, 1.059 * float(np.std(cells)) * len(cells) ** -0.2)
            distances = np.arange(size)[:, None] - np.arange(size)[None, :]
            kernels = np.exp(-0.5 * (distances / width) ** 2)
            counts = (kernels / kernels.sum(axis=0)) @ counts
        return (counts + 1 / size) / (len(cells) + 1)


def axis_of(domain: Any, values: Sequence[Any]) -> Axis:
    """domain: the parameter's `Domain`, or None where it is not known; values: those that were tried.

    Options that are three or more different numbers count as numbers: they have an order and distances.
    """
    options = tuple(getattr(domain, "labels", ()))
    if options and not (_are_numbers(options) and len(options) >= 3):
        return Axis(options)
    numbers = [float(value) for value in values if _are_numbers([value])]
    if options or (domain is None and _are_numbers(values) and values):
        tried = sorted({float(option) for option in options} or set(numbers))
        low, high = tried[0], tried[-1]
        return Axis(low=low, high=high, is_log=_are_multiples(tried), marks=tuple(tried) if options else ())
    if domain is None:
        return Axis(tuple(sorted({str(value): value for value in values}.values(), key=str)))
    low, high = domain.usual_ends
    low, high = min([low, *numbers]), max([high, *numbers])  # PBT may leave the range
    return Axis(low=low, high=high, is_log=bool(domain.is_log) and low > 0, is_integer=domain.is_integer)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )


def _are_multiples(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis is the one to show these on: 1, 2, 4, 8, or several orders of magnitude."""
    if len(values) < 2 or values[0] <= 0:
        return False
    ratios = [after / before for before, after in itertools.pairwise(values)]
    return values[-1] / values[0] >= 50 or (len(ratios) > 1 and max(ratios) / min(ratios) < 1.1)


def _same(one: Any, other: Any) -> bool:
    """1, 1.0 and True are equal in Python."""
    return type(one) is type(other) and bool(one == other)
