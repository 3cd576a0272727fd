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

from collections.abc import Iterable
from typing import Literal

from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.core.verdicts import Due, Stop, Verdict
from rlplat.tune.schedulers.rungs import Halving, Ladder, Run, best_part, first_level, is_reached
from rlplat.tune.schedulers.settings import Factor, Progress, Unit, checked


class ASHA(Halving):
    name = "asha"

    @checked
    def __init__(
        self,
        max_progress: Progress | None = None,
        min_progress: Progress | None = None,
        reduction_factor: Factor = 3.0,
        variant: Literal["stopping", "promotion"] = "stopping",
        unit: Unit = "step",
    ) -> None:
        """max_progress: R, where a trial is through; None: where it ends by itself.
        min_progress: r, the first rung; None: max_progress / reduction_factor^4, in steps at least 1.
        reduction_factor: eta, of which one goes on; also the ratio of two levels.
        """
        super().__init__(unit, max_progress, reduction_factor)
        self._first = first_level(self.name, unit, min_progress, self._last, self._factor)
        self._pauses = variant == "promotion"
        self.needs_checkpoints = self._pauses
        self._ladder = Ladder(self._level, self._factor)
        self._is_closed = False
        self._has_complete = False

    def ladder(self, number: int) -> Ladder | None:
        return self._ladder if number in self._ladder.runs else None

    def changed(self) -> Iterable[Ladder]:
        return (self._ladder,)

    def add(self, trial: Trial) -> None:
        self.join(self._ladder, trial)

    def record(self, trial: Trial, progress: float, score: float) -> None:
        self._ladder.record(trial.number, progress, score)

    def end(self, trial: Trial) -> None:
        self._num_paused -= self._ladder.end(trial.number).is_paused
        self._has_complete |= trial.state is TrialState.COMPLETE

    def due(self) -> list[tuple[int, Due]]:
        return super().due() or self._due_at_rest()

    def no_more_trials(self) -> None:
        self._is_closed = True

    def _level(self, index: int) -> float | None:
        level = self._first * self._factor**index
        return None if self._last is not None and is_reached(self._last, level) else level

    def first_judged(self, run: Run) -> int:
        return max(run.passed_before, run.passed - 1) if self._pauses else run.passed_before

    def num_places(self, ladder: Ladder, index: int) -> int:
        return max(ladder.num_best(index), not self._pauses)

    def goes_on(self, ladder: Ladder, index: int, run: Run) -> bool:
        rung = ladder.rungs[index]
        ahead = rung.rank(run.trial.number, run.score) if self._pauses else rung.num_better(run.score)
        return ahead < self.num_places(ladder, index)

    def beaten(self, ladder: Ladder, index: int, run: Run) -> Verdict:
        return super().beaten(ladder, index, run) if self._pauses else self.stop(ladder, index, run)

    def _due_at_rest(self) -> list[tuple[int, Due]]:
        """No trial is to come and none runs: who is nearest to the end goes on, unless one got there."""
        runs = self._ladder.runs
        if not self._is_closed or not self._num_paused or self._num_paused < len(runs):
            return []
        waiting = [
            run for heap in reversed(self._ladder.paused) for _, n in sorted(heap) if (run := runs.get(n))
        ]
        if not self._has_complete and waiting:
            first = waiting[0]
            heap = self._ladder.paused[first.passed - 1]
            heap[:] = sorted(entry for entry in heap if entry[1] != first.trial.number)
            return [self.resume(first)]
        reason = f"not among the {best_part(self._factor)} when there were no more trials"
        for run in waiting:
            run.is_paused = False
        self._num_paused = 0
        for heap in self._ladder.paused:
            heap.clear()
        return [(run.trial.number, Stop(reason)) for run in reversed(waiting)]
