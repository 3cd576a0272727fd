"""Values of generators, one ref each, as they are made: what their owner knows. Pure.

    for ref in numbers.remote(10):        # an ObjectRefGenerator
        print(rlplat.get(ref))

Rules
1. Values are numbered from 0 and come in order; one that is not the next is an old attempt's, and refused.
2. The generator stops when `window` values have not been taken by the consumer; 0: it never does. After a retry the
   window starts at what the owner has.
3. What the owner has got stays: a retried generator is run from its beginning, and skips as many values.
4. An exception in the generator is its last value, unless `retry_exceptions` names it: then it runs again, as after the
   death of its worker. A failure around it (its worker died, it was cancelled) is given
   to the consumer once, in the ref that `completed()` returns, behind the values that have come.
5. A generator that nobody reads any more is closed at its next value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Stream:
    """What an owner knows of one generator. Pure."""

    def __init__(self, task: int, name: str, window: int, is_dynamic: bool) -> None:
        self.task, self.name, self.window, self.is_dynamic = task, name, window, is_dynamic
        self.ready: deque[Any] = deque()
        """Refs that the consumer has not taken."""
        self.num_have = 0
        self.num_taken = 0
        self.is_ended = False
        self.has_failed = False
        """Its end is an error that the consumer has not been given."""
        self.is_failing = False
        """This attempt raised, and another one is to follow."""
        self.wakes: list[Callable[[Any], None]] = []
        """Of consumers in event loops."""
        self._num_told = 0

    def arrived(self, index: int) -> bool:
        """Whether this is the next value (rule 1); counts it."""
        if not self.is_next(index):
            return False
        self.num_have += 1
        return True

    def is_next(self, index: int) -> bool:
        return not self.is_ended and index == self.num_have

    def can_take(self) -> bool:
        return bool(self.ready) or self.is_ended

    def take(self) -> tuple[Any, int]:
        """(the next ref, how many the worker is to be told are taken; 0: it need not know yet)."""
        ref = self.ready.popleft()
        self.num_taken += 1
        if self.window and self.num_taken - self._num_told >= max(1, self.window // 2) and not self.is_ended:
            self._num_told = self.num_taken
            return ref, self.num_taken
        return ref, 0

    def ended(self, has_failed: bool) -> None:
        self.is_ended, self.has_failed = True, has_failed

    def take_failure(self) -> bool:
        """Whether the consumer is to be given the error at the end: once (rule 4)."""
        had, self.has_failed = self.has_failed, False
        return had
