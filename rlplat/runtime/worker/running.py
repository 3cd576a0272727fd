"""Which call runs: in the main thread, and in the thread or coroutine that asks."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

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
