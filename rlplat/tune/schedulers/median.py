"""The median stopping rule (Golovin et al. 2017, "Google Vizier", section 3.2.2).

A trial stops at progress p when its best score so far is strictly below the median, over the other trials that came
that far, of the averages of their scores up to p. Running and stopped trials count as far as they got, as in Ray
Tune; the paper counts completed ones only, and so judges nobody before some are complete.

It knows no budget and no ladder: a good choice where curves are noisy and a wrong stop costs more than time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rlplat.errors import ConfigError
from rlplat.section import Count
from rlplat.tune.schedulers import Continue, Progress, Stop, TrialScheduler, Unit, Verdict, checked
from rlplat.tune.schedulers.halving import at, comparable, is_negated, is_reached, shown
from rlplat.tune.trial import Trial

PERIODS = 100
"""Judgements of a trial where neither `period` nor `unit: step` says how many."""


@dataclass(slots=True)
class _Run:
    """What is known of a trial that has not ended."""

    progress: float = 0.0
    """Of its furthest report; a trial that repeats reports after a crash changes nothing until it is beyond."""
    num_reports: int = 0
    last: float = 0.0
    total: float = 0.0
    best: float = float("-inf")
    passed: int = 0
    """Levels that it came to."""
    is_new: bool = False
    """Whether its last report brought it to a level."""
    average: float = 0.0
    """... and what was noted there."""


class MedianStopping(TrialScheduler):
    name = "median"

    @checked
    def __init__(
        self,
        min_progress: Annotated[float, Field(ge=0)] | None = None,
        min_trials: Count = 3,
        period: Progress | None = None,
        max_progress: Progress | None = None,
        unit: Unit = "step",
    ) -> None:
        """min_progress: grace; nobody is judged before; None: one period.
        min_trials: so many others must have come as far.
        period: progress between two judgements of a trial; None: 1 in steps, else max_progress / 100.
        max_progress: where a trial is through; None: where it ends by itself.
        """
        self.unit, self._last = unit, max_progress
        if period is None and unit == "step":
            period = 1.0
        elif period is None and max_progress is not None:
            period = max_progress / PERIODS
        elif period is None:
            raise ConfigError(
                f"trial scheduler 'median' needs period or max_progress, in {unit}: how often a trial is judged; write "
                f"{{name: median, period: ...}} or a stop rule on {unit}"
            )
        self._period, self._min_trials = period, min_trials
        self._first = period if min_progress is None else min_progress
        self._averages: list[array[float]] = []
        """By level, ascending: the running average of each trial that came there; 8 bytes each."""
        self._runs: dict[int, _Run] = {}

    def add(self, trial: Trial) -> None:
        self._runs[trial.number] = _Run()

    def record(self, trial: Trial, progress: float, score: float) -> None:
        run = self._runs[trial.number]
        if progress <= run.progress:
            return
        score = comparable(score)
        run.progress = progress
        run.num_reports += 1
        run.last = score
        run.total += score
        run.best = max(run.best, score)
        run.is_new = False
        run.average = run.total / run.num_reports
        while is_reached(self._first + run.passed * self._period, progress):
            if run.passed == len(self._averages):
                self._averages.append(array("d"))
            # An array is a sequence of floats in order; typeshed's insort wants a MutableSequence and gets one.
            insort(self._averages[run.passed], run.average)
            run.passed += 1
            run.is_new = True

    def judge(self, trial: Trial) -> Verdict:
        run = self._runs[trial.number]
        if self._last is not None and is_reached(self._last, trial.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        if not run.is_new or trial.progress < run.progress:
            return Continue()
        run.is_new = False  # said once, also where it repeats this report after a crash
        averages = self._averages[run.passed - 1]
        num_others = len(averages) - 1
        if num_others < self._min_trials:
            return Continue()
        own = bisect_left(averages, run.average)
        middle = [averages[i + (i >= own)] for i in ((num_others - 1) // 2, num_others // 2)]
        median = sum(middle) / 2
        if run.best >= median:
            return Continue()
        numbers = shown(run.best, median, is_negated(trial, run.last))
        return Stop(
            f"its best is below the median of {num_others} others' averages {at(run.progress, self.unit)} {numbers}"
        )

    def end(self, trial: Trial) -> None:
        del self._runs[trial.number]
