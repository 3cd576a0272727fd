"""One event's turn: the time, what is to be done so far, and the alarms that were set for later."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from rlplat.runtime.core.scheduler.events import Action, WakeAt


class Turn:
    def __init__(self) -> None:
        self.now = 0.0
        self.out: list[Action] = []
        self._alarms: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._next = 0

    def begin(self, now: float) -> list[Action]:
        """The list that collects this turn's actions; what is due comes first."""
        self.now = now
        actions = self.out = []
        while self._alarms and self._alarms[0][0] <= now:
            _, _, do, about = heapq.heappop(self._alarms)
            do(about)
        return actions

    def wake_at(self, time: float, do: Callable[[Any], None], about: Any) -> None:
        """Call `do(about)` in the first turn after `time`."""
        is_first = not self._alarms or time < self._alarms[0][0]
        self._next += 1
        heapq.heappush(self._alarms, (time, self._next, do, about))
        if is_first:
            self.out.append(WakeAt(time))

    def ask_for_next(self) -> None:
        """An alarm has gone off; the shell must know of the next one."""
        if self._alarms:
            self.out.append(WakeAt(self._alarms[0][0]))
