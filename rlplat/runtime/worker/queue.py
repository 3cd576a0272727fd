"""Calls that wait in this process until the main thread comes to them, in the order in which they came."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from rlplat.runtime.worker.running import Call


class EndOfActor(msgspec.Struct):
    """Takes the place of a call: the actor ends when it is its turn."""

    reason: str | int
    task: int = 0


class Queue:
    """The main thread takes from `calls` without the lock; everything else is done with it."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()
        self._held: list[Call] = []
        """Calls of others that came ahead of the constructor's message."""

    def hold(self, owner: str, message: Any) -> None:
        self._held.append((owner, message))

    def release_held(self) -> None:
        """The actor is there: they are next."""
        self.calls.extendleft(reversed(self._held))
        self._held.clear()

    def remove(self, owner: str, task: int) -> Any:
        """The message of this call, taken out; None when it does not wait here."""
        for calls in (self.calls, self._held):
            for call in list(calls):
                if call[0] == owner and call[1].task == task:
                    try:
                        calls.remove(call)
                    except ValueError:  # the main thread has taken it just now
                        return None
                    return call[1]
        return None

    def forget(self, owner: str) -> None:
        """It is dead: nobody waits for what it has called."""
        for call in [call for call in self.calls if call[0] == owner]:
            try:
                self.calls.remove(call)
            except ValueError:
                pass  # the main thread has just begun it

    def take_all(self) -> list[Call]:
        calls = [call for call in (*self._held, *self.calls) if type(call[1]) is not EndOfActor]
        self._held.clear()
        self.calls.clear()
        return calls

    def owners(self) -> list[str]:
        """Of each call that waits."""
        return [owner for owner, _ in self.calls.copy()]
