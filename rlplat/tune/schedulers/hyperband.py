"""HyperBand (Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", algorithm 1).

A bracket is one successive halving: n trials up to progress r, the best 1/eta of them up to r * eta, ... up to R. Few
trials with much progress each or many with little: HyperBand runs one bracket of each kind, s = s_max, ..., 0, and then
begins again:

    s_max = floor(log_eta(R / min_progress))    n = ceil((s_max + 1) / (s + 1) * eta^s)    r = R * eta^-s

Here trials join the bracket that is open in the order of their numbers; a full one closes, the next opens. Two things
are not as in the paper, both measured (benchmarks/tune_schedulers.py):

- The order is s_max - 1, ..., 0, s_max. The bracket that halves most bets most on early reports; where they mislead,
  it is the worst beginning, and where they tell, the one after it is nearly as good.
- Who is among the best 1/eta of those that came to a rung so far goes on at once (as in ASHA, Li et al. 2020,
  algorithm 2). Waiting for the whole rung, as the paper has it, delays the first whole training: by a third and more.

Others pause at the rung. When nobody else of the bracket can come there, the best floor(n / eta^(i + 1)), at least one,
go on, unless they have; the rest stop. So a few more than in the paper's table are trained on: those that went on early
and were beaten later. A trial that failed makes nobody wait; if it never came to the rung, its place goes to the next
best. When there are no more trials, the open bracket is judged as if it had been made for those it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from rlplat.errors import ConfigError
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
from rlplat.tune.schedulers.settings import checked_number

GONE_ON = "gone_on"
"""In `trial.notes`: from how many rungs of its bracket it went on. Who went on early may be beaten later, so the scores
do not tell."""


@dataclass(frozen=True)
class BracketPlan:
    """One row pair of the paper's table 1."""

    sizes: tuple[int, ...]
    """n_i: trials on each rung, the last at R."""
    levels: tuple[float, ...]
    """r_i: progress on each rung."""


def bracket_plans(max_progress: float, min_progress: float, factor: float) -> list[BracketPlan]:
    """The brackets of one round as in the paper's table, s = s_max first."""
    s_max = 0
    while is_reached(min_progress, max_progress / factor ** (s_max + 1)):
        s_max += 1
    plans = []
    for s in range(s_max, -1, -1):
        n = math.ceil((s_max + 1) / (s + 1) * factor**s - 1e-9)
        sizes = tuple(num_left(n, i, factor) for i in range(s + 1))
        plans.append(BracketPlan(sizes, tuple(max_progress / factor ** (s - i) for i in range(s + 1))))
    return plans


def num_left(n: int, halvings: int, factor: float) -> int:
    """floor(n / factor^halvings), but at least 1."""
    return max(int(n / factor**halvings + 1e-9), 1)


@dataclass(slots=True)
class _Run:
    """What is known of a trial that has not ended."""

    trial: Trial
    progress: float = 0.0
    """Of its furthest report; a trial that repeats reports after a crash changes nothing until it is beyond."""
    score: float = 0.0
    """On the rung (or rungs) that its last report brought it to."""
    passed: int = 0
    """Rungs that it came to."""
    passed_before: int = 0
    """... before its last report."""
    is_paused: bool = False


class _Bracket:
    """Trials that are compared with each other, and no others."""

    def __init__(self, plan: BracketPlan, factor: float) -> None:
        self.plan = plan
        self.num_trials = 0
        """That joined."""
        self.is_closed = False
        """No more trials join."""
        self.runs: dict[int, _Run] = {}
        self.rungs = [Rung() for _ in plan.levels[:-1]]
        self.paused: list[list[tuple[float, int]]] = [[] for _ in self.rungs]
        """By rung: a heap of (-score, number) of those who wait there; who ended meanwhile is skipped."""
        self._below = [0 for _ in self.rungs]
        """By rung: trials that have neither come there nor ended."""
        self._factor = factor

    def add(self, trial: Trial) -> None:
        self.num_trials += 1
        self.runs[trial.number] = _Run(trial, is_paused=trial.state is TrialState.PAUSED)
        self._below = [num + 1 for num in self._below]
        self.is_closed = self.num_trials == self.plan.sizes[0]

    def record(self, number: int, progress: float, score: float) -> bool:
        """Whether it came to a rung."""
        run = self.runs[number]
        if progress <= run.progress:
            return False
        run.progress, run.passed_before = progress, run.passed
        for level in self.plan.levels[run.passed : -1]:
            if not is_reached(level, progress):
                break
            run.score = comparable(score)
            self.rungs[run.passed].add(number, run.score)
            self._below[run.passed] -= 1
            run.passed += 1
        return run.passed > run.passed_before

    def end(self, number: int) -> None:
        run = self.runs.pop(number)
        for index in range(run.passed, len(self.rungs)):
            self._below[index] -= 1

    def is_complete(self, index: int) -> bool:
        """Whether all have come to the rung who will."""
        return self.is_closed and not self._below[index]

    def num_places(self, index: int) -> int:
        """How many of those on the rung go on, as far as is known now."""
        num_best = int(len(self.rungs[index]) / self._factor + 1e-9)
        if self.is_complete(index):
            return max(num_best, num_left(self.num_trials, index + 1, self._factor))
        return num_best

    def goes_on(self, index: int, number: int) -> bool:
        run = self.runs[number]
        return index < run.trial.notes.get(GONE_ON, 0) or self.rungs[index].rank(
            number, run.score
        ) < self.num_places(index)


class HyperBand(TrialScheduler):
    name = "hyperband"
    needs_checkpoints = True

    def __init__(
        self,
        max_progress: float | None = None,
        min_progress: float | None = None,
        reduction_factor: float = 3,
        unit: str = "step",
    ) -> None:
        """max_progress: R, where a trial is through.
        min_progress: the least that a trial gets; None: max_progress / reduction_factor^4, in steps at least 1.
        reduction_factor: eta, of which one goes on.
        """
        self.unit = unit
        self._factor = checked_number(self.name, "reduction_factor", reduction_factor, above=1)
        if max_progress is None:
            raise ConfigError(
                f"trial scheduler 'hyperband' needs max_progress, in {'steps' if unit == 'step' else unit}: where a "
                f"trial is through; write {{name: hyperband, max_progress: 81}} or a stop rule on {unit}"
            )
        self._last = checked_number(self.name, "max_progress", max_progress, above=0)
        first = first_level(self.name, unit, min_progress, self._last, self._factor)
        boldest, *others = bracket_plans(self._last, first, self._factor)
        self.plans = [*others, boldest]
        """In the order in which they are run."""
        self._num_opened = 0
        self._open: _Bracket | None = None
        self._brackets: dict[int, _Bracket] = {}
        """Of each trial that has not ended."""
        self._changed: dict[_Bracket, None] = {}
        """Where somebody who is paused may have to be told something."""
        self._restored: list[int] = []
        """Paused already when they were added; where they stand is known when their records are in."""

    def add(self, trial: Trial) -> None:
        if self._open is None:
            self._open = _Bracket(self.plans[self._num_opened % len(self.plans)], self._factor)
            self._num_opened += 1
        bracket = self._brackets[trial.number] = self._open
        bracket.add(trial)
        if trial.state is TrialState.PAUSED:
            self._restored.append(trial.number)
        if bracket.is_closed:
            self._open = None

    def record(self, trial: Trial, progress: float, score: float) -> None:
        bracket = self._brackets[trial.number]
        if bracket.record(trial.number, progress, score):
            self._changed[bracket] = None

    def judge(self, trial: Trial) -> Verdict:
        bracket = self._brackets[trial.number]
        run = bracket.runs[trial.number]
        if is_reached(self._last, trial.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        if trial.progress < run.progress:
            return Continue()
        for index in range(run.passed_before, run.passed):
            if bracket.goes_on(index, trial.number):
                continue
            if bracket.is_complete(index):
                return self._stop(bracket, index, run)
            if not run.is_paused:
                run.is_paused = True
                heappush(bracket.paused[index], (-run.score, trial.number))
            return Pause()
        if run.passed_before < run.passed:
            self._note(run)
            run.passed_before = run.passed  # said once, also where it repeats this report after a crash
        return Continue()

    def end(self, trial: Trial) -> None:
        bracket = self._brackets.pop(trial.number)
        bracket.end(trial.number)
        self._changed[bracket] = None

    def due(self) -> list[tuple[int, Due]]:
        found: list[tuple[int, Due]] = []
        for number in self._restored:
            if bracket := self._brackets.get(number):
                run = bracket.runs[number]
                if run.passed_before < run.passed:
                    heappush(bracket.paused[run.passed_before], (-run.score, number))
                    self._changed[bracket] = None
                else:  # what it had reported on a rung is lost: it went back to an earlier checkpoint
                    found.append(self._resume(run))
        self._restored.clear()
        for bracket in self._changed:
            for index, heap in enumerate(bracket.paused):
                while heap:
                    waiting = bracket.runs.get(heap[0][1])
                    if waiting is not None:
                        verdict = self._due(bracket, index, waiting)
                        if verdict is None:
                            break
                        found += verdict
                    heappop(heap)
        self._changed.clear()
        return found

    def no_more_trials(self) -> None:
        if self._open is not None:
            self._open.is_closed = True
            self._changed[self._open] = None
            self._open = None

    def _due(self, bracket: _Bracket, index: int, run: _Run) -> list[tuple[int, Due]] | None:
        """Of the best that waits on a rung; None: it waits on. []: one report brought it over the next rung as well."""
        number = run.trial.number
        if bracket.goes_on(index, number):
            if index + 1 == run.passed:
                return [self._resume(run)]
            heappush(bracket.paused[index + 1], (-run.score, number))
            return []
        if not bracket.is_complete(index):
            return None
        run.is_paused = False
        return [(number, self._stop(bracket, index, run))]

    def _resume(self, run: _Run) -> tuple[int, Due]:
        run.is_paused = False
        self._note(run)
        return run.trial.number, Resume()

    def _note(self, run: _Run) -> None:
        run.trial.notes[GONE_ON] = max(run.passed, run.trial.notes.get(GONE_ON, 0))

    def _stop(self, bracket: _Bracket, index: int, run: _Run) -> Stop:
        rung = bracket.rungs[index]
        bound = rung.score_at(bracket.num_places(index) - 1)
        numbers = shown(run.score, bound, is_negated(run.trial, run.score))
        where = at(bracket.plan.levels[index], self.unit)
        return Stop(f"below the {best_part(self._factor)} of {len(rung)} of its bracket {where} {numbers}")
