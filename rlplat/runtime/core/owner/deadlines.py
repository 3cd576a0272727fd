"""Deadlines to come, and calls that are being ended: the rules are those of `client.cancels`. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlplat.runtime.wire.values import ErrorInfo

if TYPE_CHECKING:
    from rlplat.runtime.core.owner.lanes import TaskRecord


@dataclass
class Stopping:
    """A call whose worker was asked to end it."""

    record: TaskRecord
    worker: str
    error: ErrorInfo
    kill_at: float | None
    """None: it may take its time."""


class Pending:
    """Deadlines to come, and calls that are being ended. Pure: the clock is passed in."""

    def __init__(self) -> None:
        self.stopping: dict[int, Stopping] = {}
        self._deadlines: list[tuple[float, int, float]] = []
        self._many = 1000

    def add_deadline(self, task: int, at: float, timeout_s: float) -> bool:
        """Whether it is the nearest of all."""
        heapq.heappush(self._deadlines, (at, task, timeout_s))
        return self._deadlines[0][1] == task

    def forget_finished(self, call_of: Callable[[int], object]) -> None:
        """Drop the deadlines of calls that were in time, when there are many."""
        if len(self._deadlines) > self._many:
            self._deadlines = [each for each in self._deadlines if call_of(each[1]) is not None]
            heapq.heapify(self._deadlines)
            self._many = max(1000, 2 * len(self._deadlines))

    def due_deadlines(self, now: float) -> list[tuple[int, float]]:
        """(task, its timeout) of those that have passed."""
        out = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, task, timeout_s = heapq.heappop(self._deadlines)
            out.append((task, timeout_s))
        return out

    def due_kills(self, now: float) -> list[Stopping]:
        """Those whose grace has run out; named once."""
        due = [each for each in self.stopping.values() if each.kill_at is not None and each.kill_at <= now]
        for each in due:
            each.kill_at = None
        return due

    def next_at(self) -> float | None:
        """When to look again: at once when a call has ended, for its record holds refs."""
        if any(not each.record.is_open for each in self.stopping.values()):
            return 0.0
        times = [each.kill_at for each in self.stopping.values() if each.kill_at is not None]
        times += [self._deadlines[0][0]] if self._deadlines else []
        return min(times, default=None)

    def with_worker(self, worker: str) -> list[Stopping]:
        """Take out those that were there."""
        lost = [each for each in self.stopping.values() if each.worker == worker]
        for each in lost:
            del self.stopping[each.record.id]
        return lost
