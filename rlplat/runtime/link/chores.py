"""Housekeeping of a process, each piece when it is due: not at every wake-up, and not by a thread of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class _Chore:
    run: Callable[[], None]
    due_s: Callable[[], float]
    litter: tuple[Sized, ...]


class Chores:
    """Whoever waits for input asks `next_s` before it sleeps, and calls `run_due` when it wakes (lock held)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chores: list[_Chore] = []
        self._next_at = 0.0

    def add(self, run: Callable[[], None], due_s: Callable[[], float], *litter: Sized) -> None:
        """`due_s`: how long until it is due; 0 or less when it is, `NEVER` when there is nothing to do. With `litter`
        it is due as well whenever the process is awake and one of these has something in it: they fill without a word
        (by the garbage collector)."""
        self._chores.append(_Chore(run, due_s, litter))

    def next_s(self) -> float:
        """How long the process may sleep."""
        seconds = NEVER
        for chore in self._chores:
            seconds = min(seconds, chore.due_s())
        self._next_at = self._clock() + seconds
        return max(0.0, seconds)

    def run_due(self) -> None:
        """What was due by the time that `next_s` gave, and what has litter."""
        is_late = self._clock() >= self._next_at
        for chore in self._chores:
            if any(chore.litter) or (is_late and chore.due_s() <= 0):
                chore.run()
