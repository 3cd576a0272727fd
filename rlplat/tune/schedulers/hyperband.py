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
from collections.abc import Iterable
from dataclasses import dataclass

from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.core.verdicts import Stop
from rlplat.tune.schedulers.rungs import Halving, Ladder, Run, first_level, is_reached
from rlplat.tune.schedulers.settings import Factor, Progress, Unit, checked

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


class _Bracket(Ladder):
    def __init__(self, plan: BracketPlan, factor: float) -> None:
        super().__init__(lambda index: plan.levels[index] if index < len(plan.levels) - 1 else None, factor)
        self.plan = plan
        self.num_trials = 0
        """That joined."""
        self.is_closed = False
        """No more trials join."""
        self._ended_below = [0 for _ in plan.levels]
        """By rung: trials that ended without having come there."""

    def add(self, trial: Trial) -> None:
        super().add(trial)
        self.num_trials += 1
        self.is_closed = self.num_trials == self.plan.sizes[0]

    def end(self, number: int) -> Run:
        run = super().end(number)
        for index in range(run.passed, len(self._ended_below)):
            self._ended_below[index] += 1
        return run

    def is_complete(self, index: int) -> bool:
        """Whether all have come to the rung who will."""
        return self.is_closed and len(self.rungs[index]) + self._ended_below[index] == self.num_trials


class HyperBand(Halving):
    name = "hyperband"
    needs_checkpoints = True

    @checked
    def __init__(
        self,
        max_progress: Progress | None = None,
        min_progress: Progress | None = None,
        reduction_factor: Factor = 3.0,
        unit: Unit = "step",
    ) -> None:
        """max_progress: R, where a trial is through.
        min_progress: the least that a trial gets; None: max_progress / reduction_factor^4, in steps at least 1.
        reduction_factor: eta, of which one goes on.
        """
        if max_progress is None:
            raise ConfigError(
                f"trial scheduler 'hyperband' needs max_progress, in {'steps' if unit == 'step' else unit}: where a "
                f"trial is through; write {{name: hyperband, max_progress: 81}} or a stop rule on {unit}"
            )
        super().__init__(unit, max_progress, reduction_factor)
        assert self._last is not None
        first = first_level(self.name, unit, min_progress, self._last, self._factor)
        boldest, *others = bracket_plans(self._last, first, self._factor)
        self.plans = [*others, boldest]
        """In the order in which they are run."""
        self._num_opened = 0
        self._open: _Bracket | None = None
        self._brackets: dict[int, _Bracket] = {}
        """Of each trial that has not ended."""
        self._changed: dict[_Bracket, None] = {}

    def ladder(self, number: int) -> Ladder | None:
        return self._brackets.get(number)

    def changed(self) -> Iterable[Ladder]:
        changed, self._changed = self._changed, {}
        return changed

    def add(self, trial: Trial) -> None:
        if self._open is None:
            self._open = _Bracket(self.plans[self._num_opened % len(self.plans)], self._factor)
            self._num_opened += 1
        bracket = self._brackets[trial.number] = self._open
        self.join(bracket, trial)
        if trial.state is TrialState.PAUSED:
            self._changed[bracket] = None
        if bracket.is_closed:
            self._open = None

    def record(self, trial: Trial, progress: float, score: float) -> None:
        bracket = self._brackets[trial.number]
        if bracket.record(trial.number, progress, score):
            self._changed[bracket] = None

    def end(self, trial: Trial) -> None:
        bracket = self._brackets.pop(trial.number)
        bracket.end(trial.number)
        self._changed[bracket] = None

    def no_more_trials(self) -> None:
        if self._open is not None:
            self._open.is_closed = True
            self._changed[self._open] = None
            self._open = None

    def is_settled(self, ladder: Ladder, index: int) -> bool:
        assert isinstance(ladder, _Bracket)
        return ladder.is_complete(index)

    def num_places(self, ladder: Ladder, index: int) -> int:
        """As far as is known now."""
        assert isinstance(ladder, _Bracket)
        if ladder.is_complete(index):
            return max(ladder.num_best(index), num_left(ladder.num_trials, index + 1, self._factor))
        return ladder.num_best(index)

    def goes_on(self, ladder: Ladder, index: int, run: Run) -> bool:
        if index < run.trial.notes.get(GONE_ON, 0):
            return True
        return ladder.rungs[index].rank(run.trial.number, run.score) < self.num_places(ladder, index)

    def went_on(self, run: Run) -> None:
        run.trial.notes[GONE_ON] = max(run.passed, run.trial.notes.get(GONE_ON, 0))

    def stop(self, ladder: Ladder, index: int, run: Run, among: str = " of its bracket") -> Stop:
        return super().stop(ladder, index, run, among)
