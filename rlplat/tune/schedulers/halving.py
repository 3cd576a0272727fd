"""Successive halving, ASHA and HyperBand: ladders of progress, who stands where on a rung, who goes on from it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from rlplat.errors import ConfigError
from rlplat.tune.schedulers import (
    Continue,
    Due,
    Factor,
    Pause,
    Progress,
    Resume,
    Stop,
    TrialScheduler,
    Unit,
    Verdict,
    checked,
)
from rlplat.tune.trial import Trial, TrialState

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


@dataclass(slots=True)
class Run:
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


class Ladder:
    """Trials that are compared with each other, and no others."""

    def __init__(self, level: Callable[[int], float | None], factor: float) -> None:
        """level: of rung `index`, None where there is none; factor: of so many one goes on."""
        self._level, self._factor = level, factor
        self.runs: dict[int, Run] = {}
        self.levels: list[float] = []
        self.rungs: list[Rung] = []

    def add(self, trial: Trial) -> None:
        self.runs[trial.number] = Run(trial, is_paused=trial.state is TrialState.PAUSED)

    def end(self, number: int) -> Run:
        return self.runs.pop(number)

    def record(self, number: int, progress: float, score: float) -> bool:
        """Whether it came to a rung."""
        run = self.runs[number]
        if progress <= run.progress:
            return False
        run.progress, run.passed_before = progress, run.passed
        while self._has_rung(run.passed) and is_reached(self.levels[run.passed], progress):
            run.score = comparable(score)
            self.rungs[run.passed].add(number, run.score)
            run.passed += 1
        return run.passed > run.passed_before

    def num_best(self, index: int) -> int:
        """How many of those who came to a rung are its best part."""
        return int(len(self.rungs[index]) / self._factor + 1e-9)

    def _has_rung(self, index: int) -> bool:
        """Made when the first trial asks for it."""
        if index == len(self.levels):
            level = self._level(index)
            if level is None:
                return False
            self.levels.append(level)
            self.rungs.append(Rung())
        return True


class Halving(TrialScheduler):
    """Trials climb ladders: who is among the best of a rung goes on."""

    among = ""
    """Of whom a verdict speaks."""

    def __init__(self, unit: str, max_progress: float | None, reduction_factor: float) -> None:
        self.unit = unit
        self._factor, self._last = reduction_factor, max_progress

    def ladder(self, number: int) -> Ladder:
        """Of a trial that has not ended."""
        raise NotImplementedError

    def num_places(self, ladder: Ladder, index: int) -> int:
        """How many of those on the rung go on."""
        raise NotImplementedError

    def goes_on(self, ladder: Ladder, index: int, run: Run) -> bool:
        raise NotImplementedError

    def went_on(self, run: Run) -> None:
        """From its last rung."""

    def judge(self, trial: Trial) -> Verdict:
        ladder = self.ladder(trial.number)
        run = ladder.runs[trial.number]
        if self._last is not None and is_reached(self._last, trial.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        if trial.progress < run.progress:
            return Continue()
        for index in range(run.passed_before, run.passed):
            if not self.goes_on(ladder, index, run):
                return self.beaten(ladder, index, run)
        if run.passed_before < run.passed:
            self.went_on(run)
            run.passed_before = run.passed  # said once, also where it repeats this report after a crash
        return Continue()

    def beaten(self, ladder: Ladder, index: int, run: Run) -> Verdict:
        rung = ladder.rungs[index]
        bound = rung.score_at(self.num_places(ladder, index) - 1)
        numbers = shown(run.score, bound, is_negated(run.trial, run.score))
        where = at(ladder.levels[index], self.unit)
        return Stop(f"below the {best_part(self._factor)} of {len(rung)}{self.among} {where} {numbers}")


def is_reached(level: float, progress: float) -> bool:
    """Whether `progress` is at `level` or beyond; 0.1 * 3 is at 0.3."""
    return progress >= level * (1 - 1e-9)


def comparable(score: float) -> float:
    """NaN is worse than everything."""
    return -math.inf if math.isnan(score) else score


def first_level(
    scheduler: str, unit: str, min_progress: float | None, max_progress: float | None, factor: float
) -> float:
    """The setting `min_progress`, or its default: max_progress / factor^4; in steps not less than 1."""
    if min_progress is not None:
        if max_progress is not None and min_progress > max_progress:
            raise ConfigError(
                f"trial scheduler '{scheduler}': min_progress ({min_progress:g}) is greater than max_progress "
                f"({max_progress:g})"
            )
        return min_progress
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


class ASHA(Halving):
    """ASHA: asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"),
    as Ray Tune and Optuna have it: a trial that is beaten stops for good.

    Rungs are at min_progress * reduction_factor^k. Who comes to a rung is compared with all who came there before, at
    once: it goes on if it is among the best 1/reduction_factor. Among fewer than reduction_factor trials only the best
    goes on. Equal scores go on together.

    The paper's experiments have reduction_factor 4; 3 was better on real curves (benchmarks/tune_schedulers.py). Where
    early reports mislead, a higher min_progress helps more than anything else.

    Nobody waits for a whole rung, so a failed trial makes nobody wait; what it scored on rungs before stays.
    """

    name = "asha"

    @checked
    def __init__(
        self,
        max_progress: Progress | None = None,
        min_progress: Progress | None = None,
        reduction_factor: Factor = 3.0,
        unit: Unit = "step",
    ) -> None:
        """max_progress: R, where a trial is through; None: where it ends by itself.
        min_progress: r, the first rung; None: max_progress / reduction_factor^4, in steps at least 1.
        reduction_factor: eta, of which one goes on; also the ratio of two levels.
        """
        super().__init__(unit, max_progress, reduction_factor)
        self._first = first_level(self.name, unit, min_progress, self._last, self._factor)
        self._ladder = Ladder(self._level, self._factor)

    def ladder(self, number: int) -> Ladder:
        return self._ladder

    def add(self, trial: Trial) -> None:
        self._ladder.add(trial)

    def record(self, trial: Trial, progress: float, score: float) -> None:
        self._ladder.record(trial.number, progress, score)

    def end(self, trial: Trial) -> None:
        self._ladder.end(trial.number)

    def _level(self, index: int) -> float | None:
        level = self._first * self._factor**index
        return None if self._last is not None and is_reached(self._last, level) else level

    def num_places(self, ladder: Ladder, index: int) -> int:
        return max(ladder.num_best(index), 1)

    def goes_on(self, ladder: Ladder, index: int, run: Run) -> bool:
        return ladder.rungs[index].num_better(run.score) < self.num_places(ladder, index)


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
        self.paused: list[list[tuple[float, int]]] = [[] for _ in plan.levels]
        """By rung: a heap of (-score, number) of those who wait there; who ended meanwhile is skipped."""
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

    def wait(self, index: int, run: Run) -> None:
        heappush(self.paused[index], (-run.score, run.trial.number))

    def is_complete(self, index: int) -> bool:
        """Whether all have come to the rung who will."""
        return self.is_closed and len(self.rungs[index]) + self._ended_below[index] == self.num_trials


class HyperBand(Halving):
    """HyperBand (Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", algorithm
    1).

    A bracket is one successive halving: n trials up to progress r, the best 1/eta of them up to r * eta, ... up to R.
    Few trials with much progress each or many with little: HyperBand runs one bracket of each kind, s = s_max, ..., 0,
    and then begins again:

        s_max = floor(log_eta(R / min_progress))    n = ceil((s_max + 1) / (s + 1) * eta^s)    r = R * eta^-s

    Here trials join the bracket that is open in the order of their numbers; a full one closes, the next opens. Two
    things are not as in the paper, both measured (benchmarks/tune_schedulers.py):

    - The order is s_max - 1, ..., 0, s_max. The bracket that halves most bets most on early reports; where they
      mislead, it is the worst beginning, and where they tell, the one after it is nearly as good.
    - Who is among the best 1/eta of those that came to a rung so far goes on at once (as in ASHA, Li et al. 2020,
      algorithm 2). Waiting for the whole rung, as the paper has it, delays the first whole training: by a third and
      more.

    Others pause at the rung. When nobody else of the bracket can come there, the best floor(n / eta^(i + 1)), at least
    one, go on, unless they have; the rest stop. So a few more than in the paper's table are trained on: those that went
    on early and were beaten later. A trial that failed makes nobody wait; if it never came to the rung, its place goes
    to the next best. When there are no more trials, the open bracket is judged as if it had been made for those it has.
    """

    name = "hyperband"
    needs_checkpoints = True
    among = " of its bracket"

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
        """Where somebody who is paused may have to be told something."""
        self._restored: list[int] = []
        """Paused already when they were added; where they stand is known when their records are in."""

    def ladder(self, number: int) -> Ladder:
        return self._brackets[number]

    def add(self, trial: Trial) -> None:
        if self._open is None:
            self._open = _Bracket(self.plans[self._num_opened % len(self.plans)], self._factor)
            self._num_opened += 1
        bracket = self._brackets[trial.number] = self._open
        bracket.add(trial)
        if trial.state is TrialState.PAUSED:
            self._restored.append(trial.number)
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

    def beaten(self, ladder: Ladder, index: int, run: Run) -> Verdict:
        assert isinstance(ladder, _Bracket)
        if ladder.is_complete(index):
            return super().beaten(ladder, index, run)
        if not run.is_paused:
            run.is_paused = True
            ladder.wait(index, run)
        return Pause()

    def due(self) -> list[tuple[int, Due]]:
        found: list[tuple[int, Due]] = []
        for number in self._restored:
            if (bracket := self._brackets.get(number)) is not None:
                run = bracket.runs[number]
                if run.passed_before < run.passed:
                    bracket.wait(run.passed_before, run)
                else:  # what it had reported on a rung is lost: it went back to an earlier checkpoint
                    found.append(self._resume(run))
        self._restored.clear()
        changed, self._changed = self._changed, {}
        for bracket in changed:
            for index, heap in enumerate(bracket.paused):
                while heap:
                    waiting = bracket.runs.get(heap[0][1])
                    if waiting is not None:
                        if self.goes_on(bracket, index, waiting):
                            if index + 1 == waiting.passed:
                                found.append(self._resume(waiting))
                            else:  # one report brought it over the next rung as well
                                bracket.wait(index + 1, waiting)
                        elif bracket.is_complete(index):
                            verdict = super().beaten(bracket, index, waiting)
                            assert isinstance(verdict, Stop)
                            found.append((waiting.trial.number, verdict))
                        else:
                            break
                    heappop(heap)
        return found

    def _resume(self, run: Run) -> tuple[int, Due]:
        run.is_paused = False
        self.went_on(run)
        return run.trial.number, Resume()
