"""Calls in this process: which wait for the main thread, in the order in which they came, and which runs: in the main
thread, and in the thread or coroutine that asks."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

Call = tuple[str, Any]
"""(the caller's client id, its message)"""
Key = tuple[str, int]
"""A call: (its caller's client id, its number there)."""

_beside: contextvars.ContextVar[Call | None] = contextvars.ContextVar("running_call", default=None)


class Running:
    """Made by the main thread, which sets `call` and clears it around each call."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self._main = threading.current_thread()
        self._beside: set[Key] = set()
        """Calls that threads and coroutines have begun and not ended."""
        self.on_begin_beside: Callable[[], None] = lambda: None

    @property
    def key(self) -> Key | None:
        """Of what the main thread has begun and not ended (from any thread)."""
        call = self.call
        return None if call is None else (call[0], call[1].task)

    def is_main(self) -> bool:
        """Whether this is the main thread."""
        return threading.current_thread() is self._main

    def begin_beside(self, owner: str, message: Any) -> None:
        """This thread, or this coroutine, runs a call from now on."""
        _beside.set((owner, message))
        self._beside.add((owner, message.task))
        self.on_begin_beside()

    def end_beside(self, key: Key) -> None:
        self._beside.discard(key)

    def keys(self) -> list[Key]:
        """Of all calls that run (from any thread)."""
        return list(self._beside) or [key for key in (self.key,) if key is not None]

    def here(self) -> Call | None:
        """The call that the asking code is part of; None in threads that the user's code has started."""
        call = _beside.get()
        return self.call if call is None and self.is_main() else call


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
