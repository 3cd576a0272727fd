"""Workers that run trials of a `Problem` as a `Judge` says, on a virtual clock, until a budget of reports is used up.

trace = simulate(problem, judge, workers=4, budget=2_430, seed=1)
trace.regret[-1], trace.reached_at

One report is one unit of budget, whoever makes it; trials differ in speed by up to a fifth, so that they do not march
in step. Trial n of a seed is the same config with the same noise under every judge. After every report the trial with
the highest last score (also of those that ended) is the one that a user would take.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from benchmarks.tune_judges import GO, Judge
from benchmarks.tune_problems import Curve, Problem

MARK = 0.95


@dataclass(frozen=True)
class Trace:
    regret: list[float]
    """After each report: optimum - worth of the trial that a user would take."""
    reached_at: int | None
    """Reports until a trial had been trained to 95 % of the optimum."""
    num_trials: int


class _Drawn:
    """The curves of a seed's trials, drawn when they are asked for."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self._seed = problem, seed
        self._found: dict[int, tuple[Curve, float]] = {}

    def __getitem__(self, number: int) -> tuple[Curve, float]:
        """(curve, time from report to report)."""
        if number not in self._found:
            random = np.random.default_rng([self._seed, number])
            self._found[number] = (self._problem.draw(random), float(random.uniform(0.8, 1.2)))
        return self._found[number]


def simulate(problem: Problem, judge: Judge, *, workers: int, budget: int, max_progress: int, seed: int) -> Trace:
    drawn = _Drawn(problem, seed)
    progress: dict[int, int] = {}
    best: list[tuple[float, int]] = []  # a heap of (-last score, number), with entries that are out of date
    last: dict[int, float] = {}
    regret: list[float] = []
    reached_at = None
    clock: list[tuple[float, int, int]] = []  # (when, worker, trial)
    for worker in range(workers):
        heapq.heappush(clock, _begin(0.0, worker, judge, drawn, progress))
    while len(regret) < budget:
        now, worker, number = heapq.heappop(clock)
        curve, pace = drawn[number]
        if progress[number] == len(curve.reports):  # it fails instead of reporting
            judge.end(number, is_complete=False)
            heapq.heappush(clock, _begin(now, worker, judge, drawn, progress))
            continue
        score = curve.reports[progress[number]]
        progress[number] += 1
        last[number] = score
        heapq.heappush(best, (-score, number))
        while last[best[0][1]] != -best[0][0]:
            heapq.heappop(best)
        regret.append(problem.optimum - drawn[best[0][1]][0].worth)
        if reached_at is None and curve.trained[progress[number] - 1] >= MARK * problem.optimum:
            reached_at = len(regret)
        fate = judge.report(number, progress[number], score)
        if fate == GO and progress[number] == max_progress:
            judge.end(number, is_complete=True)
        elif fate == GO:
            heapq.heappush(clock, (now + pace, worker, number))
            continue
        heapq.heappush(clock, _begin(now, worker, judge, drawn, progress))
    return Trace(regret, reached_at, len(progress))


def _begin(now: float, worker: int, judge: Judge, drawn: _Drawn, progress: dict[int, int]) -> tuple[float, int, int]:
    number = judge.next()
    progress.setdefault(number, 0)
    return (now + drawn[number][1], worker, number)
