"""Which trials are better than others, with one metric or several."""

from __future__ import annotations

from collections.abc import Sequence

from rlplat.tune.core.trial import Trial


def scores_of(trial: Trial, signs: Sequence[float]) -> tuple[float, ...]:
    """Of its last report; higher is better in each. signs: 1 where the metric is so anyway, else -1."""
    return tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))


def best_first(trials: Sequence[Trial], signs: Sequence[float]) -> list[Trial]:
    """With several metrics the Pareto front comes first. Of equal ones the earlier trial is the better."""
    front, rest = split_at_front(trials, signs)
    return front + rest


def split_at_front(trials: Sequence[Trial], signs: Sequence[float]) -> tuple[list[Trial], list[Trial]]:
    """(the Pareto front, the others): on the front is what no other trial beats in one metric without being worse in
    another. Both best first by the first metric."""
    ranked = [(scores_of(trial, signs), trial) for trial in trials]
    ranked.sort(key=lambda pair: (*(-score for score in pair[0]), pair[1].number))
    front: list[tuple[tuple[float, ...], Trial]] = []
    rest: list[Trial] = []
    for scores, trial in ranked:  # what could beat it comes before it in this order
        if any(_dominates(better, scores) for better, _ in front):
            rest.append(trial)
        else:
            front.append((scores, trial))
    return [trial for _, trial in front], rest


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """At least as good in each, better in one."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
