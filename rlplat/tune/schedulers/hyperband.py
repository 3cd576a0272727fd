"""HyperBand (Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", algorithm 1).

A bracket is one successive halving: n trials up to progress r, the best 1/eta of them up to r * eta, ... up to R. Few
trials with much progress each or many with little: HyperBand runs one bracket of each kind, s = s_max, ..., 0, and then
from s_max again:

    s_max = floor(log_eta(R / min_progress))    n = ceil((s_max + 1) / (s + 1) * eta^s)    r = R * eta^-s

Here trials join the bracket that is open in the order of their numbers; a full one closes, the next opens. A trial
that comes to a rung of its bracket pauses until all others of that rung are there or have ended; then the best
floor(n / eta^(i + 1)) go on and the rest stop. The place of a trial that failed goes to the next best. When there are
no more trials, the open bracket is judged as if it had been made for those it has; at least one goes on to R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import Continue, Due, Pause, Resume, Stop, Verdict
from rlplat.tune.schedulers.rungs import at, comparable, first_level, is_negated, is_reached, shown
from rlplat.tune.schedulers.settings import checked_number
from rlplat.tune.trial import Trial, TrialState


@dataclass(frozen=True)
class BracketPlan:
    """One row pair of the paper's table 1."""

    sizes: tuple[int, ...]
    """n_i: trials on each rung, the last at R."""
    levels: tuple[float, ...]
    """r_i: progress on each rung."""


def bracket_plans(max_progress: float, min_progress: float, factor: float) -> list[BracketPlan]:
    """The brackets of one round, s = s_max first."""
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
    progress: float = 0.0
    """Of its furthest report; a trial that repeats reports after a crash changes nothing until it is beyond."""
    scores: list[float] = field(default_factory=list)
    """On each rung of its bracket that it came to."""
    passed_before: int = 0
    """Rungs that it had come to before its last report."""
    is_paused: bool = False
    has_ended: bool = False


@dataclass(slots=True)
class _Bracket:
    plan: BracketPlan
    num_trials: int = 0
    """That joined."""
    runs: dict[int, _Run] = field(default_factory=dict)
    """Without those that ended when there is no rung left to judge."""
    is_closed: bool = False
    """No more trials join."""
    winners: list[set[int]] = field(default_factory=list)
    """Who went on, by rung; top_k of algorithm 1."""
    bounds: list[float] = field(default_factory=list)
    """The worst score among them."""
    awaited: set[int] = field(default_factory=set)
    """Of the rung that is next to be judged: who has neither come there nor ended."""

    @property
    def current(self) -> int:
        """The rung that is next to be judged; the last, at R, never is."""
        return len(self.winners)

    @property
    def is_decided(self) -> bool:
        return self.current == len(self.plan.levels) - 1


class HyperBand:
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
        self.plans = bracket_plans(self._last, first, self._factor)
        self._num_opened = 0
        self._open: _Bracket | None = None
        self._brackets: dict[int, _Bracket] = {}
        """Of each trial that has not ended, and of those that ended in a bracket with a rung to judge."""
        self._due: list[tuple[int, Due]] = []
        self._restored: list[int] = []
        """Paused already when they were added; where they stand is known when their records are in."""
        self._is_negated = False

    def open(self, seed: int, space: Any) -> None:
        pass

    def add(self, trial: Trial) -> None:
        if self._open is None:
            self._open = _Bracket(self.plans[self._num_opened % len(self.plans)])
            self._num_opened += 1
        bracket = self._brackets[trial.number] = self._open
        bracket.runs[trial.number] = _Run()
        if trial.state is TrialState.PAUSED:
            self._restored.append(trial.number)
        bracket.awaited.add(trial.number)
        bracket.num_trials += 1
        if bracket.num_trials == bracket.plan.sizes[0]:
            self._close(bracket)

    def record(self, trial: Trial, progress: float, score: float) -> None:
        bracket = self._brackets[trial.number]
        run = bracket.runs[trial.number]
        if progress <= run.progress:
            return
        self._is_negated = is_negated(trial, score)
        run.progress, run.passed_before = progress, len(run.scores)
        for level in bracket.plan.levels[len(run.scores) : -1]:
            if not is_reached(level, progress):
                break
            run.scores.append(comparable(score))
        if len(run.scores) > bracket.current:
            bracket.awaited.discard(trial.number)
            self._halve(bracket)

    def judge(self, trial: Trial) -> Verdict:
        bracket = self._brackets[trial.number]
        run = bracket.runs[trial.number]
        if is_reached(self._last, run.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        for index in range(run.passed_before, len(run.scores)):
            if index >= bracket.current:
                run.is_paused = True
                return Pause()
            if trial.number not in bracket.winners[index]:
                return self._stop(bracket, index, run)
        return Continue()

    def judges_at(self, trial: Trial) -> float:
        return trial.progress

    def end(self, trial: Trial) -> None:
        bracket = self._brackets[trial.number]
        run = bracket.runs[trial.number]
        run.has_ended, run.is_paused = True, False
        bracket.awaited.discard(trial.number)
        if bracket.is_decided:
            self._forget(bracket, trial.number)
        else:
            self._halve(bracket)

    def due(self) -> list[tuple[int, Due]]:
        for number in self._restored:
            if bracket := self._brackets.get(number):
                bracket.runs[number].is_paused = not bracket.runs[number].has_ended
                self._release(bracket, number, bracket.runs[number])
        self._restored.clear()
        found, self._due = self._due, []
        return found

    def no_more_trials(self) -> None:
        if self._open is not None:
            self._close(self._open)

    def _close(self, bracket: _Bracket) -> None:
        bracket.is_closed = True
        self._open = None
        self._halve(bracket)

    def _halve(self, bracket: _Bracket) -> None:
        """Judge the rung whose trials are all there; and the next, where one report brought them over both."""
        while bracket.is_closed and not bracket.awaited and not bracket.is_decided:
            index = bracket.current
            members = bracket.winners[-1] if bracket.winners else bracket.runs
            there = sorted(
                (-bracket.runs[number].scores[index], number)
                for number in members
                if len(bracket.runs[number].scores) > index
            )
            num_winners = num_left(bracket.num_trials, index + 1, self._factor)
            winners = {number for _, number in there[:num_winners]}
            bracket.winners.append(winners)
            bracket.bounds.append(-there[len(winners) - 1][0] if winners else -math.inf)
            for _, number in there:
                run = bracket.runs[number]
                if number in winners and len(run.scores) <= index + 1 and not run.has_ended:
                    bracket.awaited.add(number)
                self._release(bracket, number, run)
            if bracket.is_decided:
                for number in [number for number, run in bracket.runs.items() if run.has_ended]:
                    self._forget(bracket, number)

    def _release(self, bracket: _Bracket, number: int, run: _Run) -> None:
        """If the trial is paused, and all rungs that its last report brought it to are judged: what becomes of it."""
        if not run.is_paused:
            return
        due: Due = Resume()
        for index in range(run.passed_before, len(run.scores)):
            if index >= bracket.current:
                return
            if number not in bracket.winners[index]:
                due = self._stop(bracket, index, run)
                break
        run.is_paused = False
        self._due.append((number, due))

    def _stop(self, bracket: _Bracket, index: int, run: _Run) -> Stop:
        numbers = shown(run.scores[index], bracket.bounds[index], self._is_negated)
        where = at(bracket.plan.levels[index], self.unit)
        return Stop(
            f"not among the {len(bracket.winners[index])} of its bracket that go on {where} {numbers}"
        )

    def _forget(self, bracket: _Bracket, number: int) -> None:
        del bracket.runs[number], self._brackets[number]
