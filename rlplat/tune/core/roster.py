"""Where each trial of an experiment is: live, or ended (counted, and the best ten kept)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.core.verdicts import Due


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
    front, rest = split([(scores_of(trial, signs), trial) for trial in trials])
    return [trial for _, trial in front], [trial for _, trial in rest]


def split(scored: list[tuple[tuple[float, ...], Any]]) -> tuple[list[Any], list[Any]]:
    """The same of whatever has scores and a number."""
    front: list[tuple[tuple[float, ...], Any]] = []
    rest: list[tuple[tuple[float, ...], Any]] = []
    for scores, one in sorted(scored, key=lambda pair: (*(-score for score in pair[0]), pair[1].number)):
        # what could beat it comes before it in this order
        (rest if any(_dominates(better, scores) for better, _ in front) else front).append((scores, one))
    return front, rest


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """At least as good in each, better in one."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


NUM_BEST = 10


@dataclass
class Live:
    """What is known of a trial only while it lives."""

    trial: Trial
    pausing: bool = False
    """Its checkpoint is under way, and then its slot is given back."""
    due: Due | None = None
    """What the scheduler wants of it once that is done."""
    completing: str = ""
    """Why it is complete, while its last checkpoint is under way."""
    saved_run_s: float = 0.0
    """`trial.run_s` at its last checkpoint."""
    save_s: float = 0.0
    """What the last checkpoint took."""
    save_has_failed: bool = False
    """And the user was told."""
    catch_up: float = -math.inf
    """Where it was paused and could not be saved: up to there it was judged already, and repeats its reports."""


class Roster:
    def __init__(self, signs: Sequence[float]) -> None:
        """signs: of each metric, 1 where higher is better, else -1."""
        self._signs = tuple(signs)
        self.live: dict[int, Live] = {}
        self.counts = dict.fromkeys(TrialState, 0)
        self._waiting: deque[int] = deque()
        self._best: list[Trial] = []
        """Of those that have ended."""

    def enter(self, trial: Trial, *, saved_run_s: float = 0.0) -> None:
        """It lives from now on, in the state that it has."""
        self.counts[trial.state] += 1
        self.live[trial.number] = Live(trial, saved_run_s=saved_run_s)

    def move(self, trial: Trial, state: TrialState) -> None:
        self.counts[trial.state] -= 1
        self.counts[state] += 1
        trial.state = state
        if state is TrialState.WAITING:
            self._waiting.append(trial.number)

    def take_waiting(self) -> Trial | None:
        """The one that has waited longest runs now."""
        if not self._waiting:
            return None
        trial = self.live[self._waiting.popleft()].trial
        self.move(trial, TrialState.RUNNING)
        return trial

    def end(self, trial: Trial, state: TrialState) -> None:
        self.move(trial, state)
        del self.live[trial.number]
        self._keep_best(trial)

    def ended_before(self, trial: Trial) -> None:
        """In an earlier life of this tuner."""
        self.counts[trial.state] += 1
        self._keep_best(trial)

    @property
    def num_ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state.has_ended)

    def live_trials(self) -> list[Trial]:
        return [live.trial for live in self.live.values()]

    def best(self) -> list[Trial]:
        """The best ones, ended or running; best first."""
        going_on = [trial for trial in self.live_trials() if trial.values]
        return best_first([*self._best, *going_on], self._signs)[:NUM_BEST]

    def _keep_best(self, trial: Trial) -> None:
        if trial.values and trial.state is not TrialState.FAILED:
            self._best = best_first([*self._best, trial], self._signs)[:NUM_BEST]
