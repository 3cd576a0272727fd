"""Which parameters matter: PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023, theorem 4.2 and algorithm 1).

A parameter matters where the good trials have other values of it than all trials have. With the densities p(x) of all
trials' values and q(x) of the best tenth's, its importance is the Pearson divergence E_p[(q(x)/p(x) - 1)^2], computed
for one parameter at a time, so its price grows with parameters times trials. Densities: a Gaussian kernel estimate with
Scott's bandwidth on a grid of 50 cells of the (logarithmic) range, or the shares of the options.

A handful of good trials differ from all trials by chance, too. So the same is computed for random handfuls: their mean
is taken off, and what is not above 19 of 20 of them is called chance. Importances then sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplat.tune.space.domains import Domain, Options
from rlplat.tune.space.ranges import Range

MIN_TRIALS = 20
"""With fewer there is nothing to be said."""
_BEST_SHARE = 0.1
_MIN_BEST = 10
"""So many, or a quarter of all while that is fewer: of four, anything could be said."""
_NUM_CELLS = 50
_NUM_HANDFULS = 100


Density = Callable[[np.ndarray], np.ndarray]
"""Of cells: float[the number of different ones], sums to 1."""


@dataclass(frozen=True)
class Importance:
    name: str
    share: float
    """Of all parameters' importance: 0 to 1."""
    may_be_chance: bool


def importances(
    params: Sequence[Mapping[str, Any]], scores: Sequence[float], domains: Mapping[str, Domain]
) -> list[Importance]:
    """The most important first; empty for fewer than MIN_TRIALS trials.

    params, scores: of each trial; scores are finite, higher is better; a parameter that some trials do not have
    (conditional) is judged by those that have it, if they are enough.
    """
    if len(scores) < MIN_TRIALS:
        return []
    rng = np.random.default_rng(0)
    found: dict[str, tuple[float, bool]] = {}
    for name, domain in domains.items():
        has = [index for index, of_trial in enumerate(params) if name in of_trial]
        if len(has) < MIN_TRIALS:
            continue
        cells = _cells(domain, [params[index][name] for index in has])
        density = _of_options(len(domain.labels)) if isinstance(domain, Options) else _of_numbers
        found[name] = _importance(cells, np.array([scores[index] for index in has]), density, rng)
    total = sum(value for value, _ in found.values()) or 1.0
    ranked = sorted(found.items(), key=lambda item: -item[1][0])
    return [Importance(name, value / total, by_chance) for name, (value, by_chance) in ranked]


def _cells(domain: Domain, values: Sequence[Any]) -> np.ndarray:
    """int[N]; of values that are not in the domain (PBT may leave the range) the nearest."""
    if isinstance(domain, Range):
        low, high = (domain.share(end) for end in domain.usual_ends)
        shares = (np.array([domain.share(value) for value in values]) - low) / (high - low)
        return np.clip((shares * _NUM_CELLS).astype(int), 0, _NUM_CELLS - 1)
    assert isinstance(domain, Options)
    return np.array([domain.index_by_label.get(value, 0) for value in values])


def _importance(
    cells: np.ndarray, scores: np.ndarray, density: Density, rng: np.random.Generator
) -> tuple[float, bool]:
    """cells: int[N], each trial's cell; scores: float[N]. (importance, whether chance may be all there is)."""
    num_best = max(math.ceil(_BEST_SHARE * len(scores)), min(_MIN_BEST, len(scores) // 4))
    everything = density(cells)
    best = np.argsort(-scores, kind="stable")[:num_best]
    divergence = _divergence(density(cells[best]), everything)
    handfuls = (rng.choice(cells, num_best, replace=False) for _ in range(_NUM_HANDFULS))
    chance = np.array([_divergence(density(handful), everything) for handful in handfuls])
    return max(0.0, divergence - float(chance.mean())), divergence <= float(np.quantile(chance, 0.95))


def _divergence(best: np.ndarray, everything: np.ndarray) -> float:
    return float(np.sum(everything * (best / everything - 1) ** 2))


def _of_numbers(cells: np.ndarray) -> np.ndarray:
    """Of each cell; sums to 1 and is nowhere 0: it has one uniform observation in it besides the given ones."""
    # Scott's rule, and never narrower than a cell
    width = max(1.0, 1.059 * float(np.std(cells)) * len(cells) ** -0.2)
    distances = np.arange(_NUM_CELLS)[:, None] - np.arange(_NUM_CELLS)[None, :]
    kernels = np.exp(-0.5 * (distances / width) ** 2)
    counts = (kernels / kernels.sum(axis=0)) @ np.bincount(cells, minlength=_NUM_CELLS)
    return np.asarray((counts + 1 / _NUM_CELLS) / (len(cells) + 1))


def _of_options(size: int) -> Density:
    return lambda cells: (np.bincount(cells, minlength=size) + 1 / size) / (len(cells) + 1)
