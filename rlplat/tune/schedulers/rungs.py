"""Successive halving's ladder: levels of progress, and who stands where on a rung.

rung.add(number=4, score=0.31)
rung.rank(4, 0.31)                              # 0: the best of those that came here
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial
from rlplat.tune.schedulers.settings import checked_number

HALVINGS = 4
"""Rungs below `max_progress` where `min_progress` is not given: 81 = 3^4 of Li et al. 2018 (table 1), and
R / r = 256 = 4^4 of Li et al. 2020 (section 4.1)."""


class Rung:
    """The scores of all trials that came to one level, best first; equal scores by number.

    10,000 entries: an `add` is 14 comparisons and moves at most 80 KB of pointers (about 2 microseconds).
    """

    __slots__ = ("_ordered",)

    def __init__(self) -> None:
        self._ordered: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def add(self, number: int, score: float) -> None:
        insort(self._ordered, (-score, number))

    def rank(self, number: int, score: float) -> int:
        """How many stand before this trial (0: it is the best)."""
        return bisect_left(self._ordered, (-score, number))

    def num_better(self, score: float) -> int:
        """How many scores are strictly higher."""
        return bisect_left(self._ordered, (-score, -1))

    def score_at(self, rank: int) -> float:
        return -self._ordered[rank][0]


def is_reached(level: float, progress: float) -> bool:
    """Whether `progress` is at `level` or beyond; 0.1 * 3 is at 0.3."""
    return progress >= level * (1 - 1e-9)


def comparable(score: float) -> float:
    """NaN is worse than everything."""
    return -math.inf if math.isnan(score) else score


def first_level(
    scheduler: str, unit: str, min_progress: object, max_progress: float | None, factor: float
) -> float:
    """The setting `min_progress`, or its default: max_progress / factor^4; in steps not less than 1."""
    if min_progress is not None:
        first = checked_number(scheduler, "min_progress", min_progress, above=0)
        if max_progress is not None and first > max_progress:
            raise ConfigError(
                f"trial scheduler '{scheduler}': min_progress ({first:g}) is greater than max_progress "
                f"({max_progress:g})"
            )
        return first
    if max_progress is not None:
        first = max_progress / factor**HALVINGS
        return min(max(first, 1.0), max_progress) if unit == "step" else first
    if unit == "step":
        return 1.0
    raise ConfigError(
        f"trial scheduler '{scheduler}' needs max_progress or min_progress, in {unit}: where a trial is through, or "
        f"where it is first judged; write {{name: {scheduler}, max_progress: ...}} or a stop rule on {unit}"
    )


def best_part(factor: float) -> str:
    """`best third` for 3."""
    names = {2.0: "best half", 3.0: "best third", 4.0: "best quarter"}
    return names.get(factor, f"best 1/{factor:g}")


def is_negated(trial: Trial, score: float) -> bool:
    """Whether the score just recorded is the metric with its sign turned (`mode: min`)."""
    return bool(trial.values) and trial.values[0] == -score != 0


def shown(score: float, bound: float, negated: bool) -> str:
    """`(0.31 < 0.55)`, the two scores as the user knows them."""
    return f"({-score:.4g} > {-bound:.4g})" if negated else f"({score:.4g} < {bound:.4g})"


def at(progress: float, unit: str) -> str:
    """`at 4 steps`, `at 2048 env_steps`."""
    if unit == "step":
        return f"at {progress:g} step" + "s" * (progress != 1)
    return f"at {progress:g} {unit}"
