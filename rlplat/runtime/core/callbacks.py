"""What is called when a value has come: one after the other, never one inside another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable


class Callbacks:
    """A call whose argument failed fails as well, and so does the call that waits for that one. A chain of them is
    worked off here link by link: however long it is, the stack is as deep as for one.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._due: deque[Callable[[], object]] = deque()
        self._is_running = False

    def run(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make these calls; from within one of them: after it, and after those that are due already.

        All are made: the first exception is raised in the end.
        """
        self._due.extend(calls)
        if self._is_running:
            return
        self._is_running, raised = True, None
        try:
            while self._due:
                try:
                    self._due.popleft()()
                except Exception as error:
                    raised = raised or error
        finally:
            self._is_running = False
        if raised is not None:
            raise raised
