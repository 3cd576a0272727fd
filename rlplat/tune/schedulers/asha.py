"""ASHA: asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

Rungs are at min_progress * reduction_factor^k. Who comes to a rung is compared with all who came there before, at once:

- `variant: stopping` (as Ray Tune and Optuna have it): it goes on if it is among the best 1/reduction_factor, and stops
  for good if not. Among fewer than reduction_factor trials only the best goes on. Equal scores go on together.
- `variant: promotion` (algorithm 2 of the paper): it pauses unless it is among the best 1/reduction_factor, rounded
  down, and goes on from its checkpoint as soon as it is, because others came in below it. Equal scores by number. When
  there are no more trials and all are paused, and none was trained in full, the best of the highest rung goes on.
  A report that brings it to several rungs at once counts on all of them, and is judged on the highest.

The paper's experiments have reduction_factor 4; 3 was better on real curves (benchmarks/tune_schedulers.py). Where
early reports mislead, a higher min_progress helps more than anything else.

Neither waits for a whole rung, so a failed trial makes nobody wait; what it scored on rungs before stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.core.verdicts import Continue, Due, Pause, Resume, Stop, TrialScheduler, Verdict
from rlplat.tune.schedulers.rungs import (
    Rung,
    at,
    best_part,
    comparable,
    first_level,
    is_negated,
    is_reached,
    shown,
)
from rlplat.tune.schedulers.settings import checked_choice, checked_number


@dataclass(slots=True)
class _Run:
    """What is known of a trial that has not ended."""

    progress: float = 0.0
    """Of its furthest report; a trial that repeats reports after a crash changes nothing until it is beyond."""
    score: float = 0.0
    """On the rung (or rungs) that its last report brought it to."""
    passed: int = 0
    """Rungs that it came to."""
    passed_before: int = 0
    """... before its last report."""
    is_paused: bool = False


class ASHA(TrialScheduler):
    name = "asha"

    def __init__(
        self,
        max_progress: float | None = None,
        min_progress: float | None = None,
        reduction_factor: float = 3,
        variant: str = "stopping",
        unit: str = "step",
    ) -> None:
        """max_progress: R, where a trial is through; None: where it ends by itself.
        min_progress: r, the first rung; None: max_progress / reduction_factor^4, in steps at least 1.
        reduction_factor: eta, of which one goes on; also the ratio of two levels.
        """
        self.unit = unit
        self._factor = checked_number(self.name, "reduction_factor", reduction_factor, above=1)
        self._last: float | None = None
        if max_progress is not None:
            self._last = checked_number(self.name, "max_progress", max_progress, above=0)
        self._first = first_level(self.name, unit, min_progress, self._last, self._factor)
        self._pauses = checked_choice(self.name, "variant", variant, ("stopping", "promotion")) == "promotion"
        self.needs_checkpoints = self._pauses
        self._levels: list[float] = []
        self._rungs: list[Rung] = []
        self._paused: list[list[tuple[float, int]]] = []
        """By rung: a heap of (-score, number) of those who wait there; who ended meanwhile is skipped."""
        self._runs: dict[int, _Run] = {}
        self._num_paused = 0
        self._restored: list[int] = []
        """Paused already when they were added."""
        self._is_closed = False
        self._has_complete = False

    def add(self, trial: Trial) -> None:
        run = self._runs[trial.number] = _Run(is_paused=trial.state is TrialState.PAUSED)
        if run.is_paused:
            self._num_paused += 1
            self._restored.append(trial.number)

    def record(self, trial: Trial, progress: float, score: float) -> None:
        run = self._runs[trial.number]
        if progress <= run.progress:
            return
        run.progress, run.passed_before = progress, run.passed
        while (level := self._level(run.passed)) is not None and is_reached(level, progress):
            run.score = comparable(score)
            self._rungs[run.passed].add(trial.number, run.score)
            run.passed += 1

    def judge(self, trial: Trial) -> Verdict:
        run = self._runs[trial.number]
        if self._last is not None and is_reached(self._last, trial.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        if trial.progress < run.progress:
            return Continue()
        first = max(run.passed_before, run.passed - 1) if self._pauses else run.passed_before
        for index in range(first, run.passed):
            if not self._goes_on(index, trial.number, run.score):
                return (
                    self._pause(trial.number, run, index) if self._pauses else self._stop(trial, run, index)
                )
        run.passed_before = run.passed  # said once, also where it repeats this report after a crash
        return Continue()

    def end(self, trial: Trial) -> None:
        run = self._runs.pop(trial.number)
        self._num_paused -= run.is_paused
        self._has_complete |= trial.state is TrialState.COMPLETE

    def due(self) -> list[tuple[int, Due]]:
        found: list[tuple[int, Due]] = []
        for number in self._restored:
            if run := self._runs.get(number):
                if run.passed_before < run.passed:
                    heappush(self._paused[run.passed - 1], (-run.score, number))
                else:  # what it had reported on a rung is lost: it went back to an earlier checkpoint
                    found.append(self._resume(number, run))
        self._restored.clear()
        for index, heap in enumerate(self._paused):
            while heap:
                score, number = -heap[0][0], heap[0][1]
                run = self._runs.get(number)
                if run is not None and not self._goes_on(index, number, score):
                    break
                heappop(heap)
                if run is not None:
                    found.append(self._resume(number, run))
        return found or self._due_at_rest()

    def no_more_trials(self) -> None:
        self._is_closed = True

    def _level(self, index: int) -> float | None:
        """Of rung `index`, made when the first trial asks for it; None: there is none below max_progress."""
        if index == len(self._levels):
            level = self._first * self._factor**index
            if self._last is not None and is_reached(self._last, level):
                return None
            self._levels.append(level)
            self._rungs.append(Rung())
            self._paused.append([])
        return self._levels[index]

    def _goes_on(self, index: int, number: int, score: float) -> bool:
        rung = self._rungs[index]
        places = int(len(rung) / self._factor + 1e-9)
        if self._pauses:
            return rung.rank(number, score) < places
        return rung.num_better(score) < max(places, 1)

    def _stop(self, trial: Trial, run: _Run, index: int) -> Stop:
        rung = self._rungs[index]
        bound = rung.score_at(max(int(len(rung) / self._factor + 1e-9), 1) - 1)
        numbers = shown(run.score, bound, is_negated(trial, run.score))
        where = at(self._levels[index], self.unit)
        return Stop(f"below the {best_part(self._factor)} of {len(rung)} {where} {numbers}")

    def _pause(self, number: int, run: _Run, index: int) -> Pause:
        if not run.is_paused:
            run.is_paused = True
            self._num_paused += 1
            heappush(self._paused[index], (-run.score, number))
        return Pause()

    def _resume(self, number: int, run: _Run) -> tuple[int, Due]:
        run.is_paused = False
        self._num_paused -= 1
        return number, Resume()

    def _due_at_rest(self) -> list[tuple[int, Due]]:
        """No trial is to come and none runs: who is nearest to the end goes on, unless one got there."""
        if not self._is_closed or not self._num_paused or self._num_paused < len(self._runs):
            return []
        if not self._has_complete:
            for heap in reversed(self._paused):
                while heap:
                    number = heappop(heap)[1]
                    if run := self._runs.get(number):
                        return [self._resume(number, run)]
        reason = f"not among the {best_part(self._factor)} when there were no more trials"
        found: list[tuple[int, Due]] = []
        for heap in self._paused:
            for _, number in heap:
                if run := self._runs.get(number):
                    run.is_paused = False
                    found.append((number, Stop(reason)))
            heap.clear()
        self._num_paused = 0
        return found
