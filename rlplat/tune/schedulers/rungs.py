"""Successive halving's ladder: levels of progress, who stands where on a rung, who goes on from it.

rung.add(number=4, score=0.31)
rung.rank(4, 0.31)                              # 0: the best of those that came here
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.core.verdicts import Continue, Due, Pause, Resume, Stop, TrialScheduler, Verdict

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
        self.paused: list[list[tuple[float, int]]] = []
        """By rung: a heap of (-score, number) of those who wait there; who ended meanwhile is skipped."""

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

    def wait(self, index: int, run: Run) -> None:
        heappush(self.paused[index], (-run.score, run.trial.number))

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
            self.paused.append([])
        return True


class Halving(TrialScheduler):
    """Trials climb ladders: who is among the best of a rung goes on, others wait there or stop."""

    def __init__(self, unit: str, max_progress: float | None, reduction_factor: float) -> None:
        self.unit = unit
        self._factor, self._last = reduction_factor, max_progress
        self._num_paused = 0
        self._restored: list[int] = []
        """Paused already when they were added; where they stand is known when their records are in."""

    def ladder(self, number: int) -> Ladder | None:
        """Of a trial; None: it has ended."""
        raise NotImplementedError

    def changed(self) -> Iterable[Ladder]:
        """Where somebody who is paused may have to be told something."""
        raise NotImplementedError

    def goes_on(self, ladder: Ladder, index: int, run: Run) -> bool:
        raise NotImplementedError

    def is_settled(self, ladder: Ladder, index: int) -> bool:
        """Whether nobody else will come to the rung: who does not go on stops."""
        return False

    def num_places(self, ladder: Ladder, index: int) -> int:
        """How many of those on the rung go on."""
        return ladder.num_best(index)

    def went_on(self, run: Run) -> None:
        """From its last rung."""

    def first_judged(self, run: Run) -> int:
        return run.passed_before

    def join(self, ladder: Ladder, trial: Trial) -> None:
        ladder.add(trial)
        if trial.state is TrialState.PAUSED:
            self._num_paused += 1
            self._restored.append(trial.number)

    def judge(self, trial: Trial) -> Verdict:
        ladder = self.ladder(trial.number)
        assert ladder is not None
        run = ladder.runs[trial.number]
        if self._last is not None and is_reached(self._last, trial.progress):
            return Stop(f"through: {at(self._last, self.unit)}", is_complete=True)
        if trial.progress < run.progress:
            return Continue()
        for index in range(self.first_judged(run), run.passed):
            if not self.goes_on(ladder, index, run):
                return self.beaten(ladder, index, run)
        if run.passed_before < run.passed:
            self.went_on(run)
            run.passed_before = run.passed  # said once, also where it repeats this report after a crash
        return Continue()

    def beaten(self, ladder: Ladder, index: int, run: Run) -> Verdict:
        if self.is_settled(ladder, index):
            return self.stop(ladder, index, run)
        if not run.is_paused:
            run.is_paused = True
            self._num_paused += 1
            ladder.wait(index, run)
        return Pause()

    def due(self) -> list[tuple[int, Due]]:
        found: list[tuple[int, Due]] = []
        for number in self._restored:
            if (ladder := self.ladder(number)) is not None:
                run = ladder.runs[number]
                if run.passed_before < run.passed:
                    ladder.wait(self.first_judged(run), run)
                else:  # what it had reported on a rung is lost: it went back to an earlier checkpoint
                    found.append(self.resume(run))
        self._restored.clear()
        for ladder in self.changed():
            for index, heap in enumerate(ladder.paused):
                while heap:
                    waiting = ladder.runs.get(heap[0][1])
                    if waiting is not None:
                        if self.goes_on(ladder, index, waiting):
                            if index + 1 == waiting.passed:
                                found.append(self.resume(waiting))
                            else:  # one report brought it over the next rung as well
                                ladder.wait(index + 1, waiting)
                        elif self.is_settled(ladder, index):
                            self._num_paused -= waiting.is_paused
                            waiting.is_paused = False
                            found.append((waiting.trial.number, self.stop(ladder, index, waiting)))
                        else:
                            break
                    heappop(heap)
        return found

    def resume(self, run: Run) -> tuple[int, Due]:
        self._num_paused -= run.is_paused
        run.is_paused = False
        self.went_on(run)
        return run.trial.number, Resume()

    def stop(self, ladder: Ladder, index: int, run: Run, among: str = "") -> Stop:
        rung = ladder.rungs[index]
        bound = rung.score_at(self.num_places(ladder, index) - 1)
        numbers = shown(run.score, bound, is_negated(run.trial, run.score))
        where = at(ladder.levels[index], self.unit)
        return Stop(f"below the {best_part(self._factor)} of {len(rung)}{among} {where} {numbers}")


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
