"""Coroutines that wait for something of the runtime: told from whatever thread reads the socket, without one for each.

What comes for the coroutines of an event loop is put into that loop's inbox, which wakes the loop once for all
that came together.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlplat.errors import NotInitialized
from rlplat.runtime.link.link import Link
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.values import ErrorInfo, Value

if TYPE_CHECKING:
    import asyncio


class LoopInbox:
    """Calls for one event loop from any thread, batched: the loop is woken once for those that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs now."""
        loop = self._loop()
        assert loop is not None
        return loop

    def post(self, call: Callable[..., object], *args: Any) -> None:
        self._calls.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop is closed, and nobody awaits anything in it any more
                pass

    def _run(self) -> None:
        self._is_woken = False  # ahead of the calls: one that comes from now on wakes the loop again
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)


class Waiters:
    """Coroutines of this process that wait for something of the runtime. (The lock is held but in `close`.)"""

    def __init__(self, link: Link, on_cancelled: Callable[[ObjectRef], None]) -> None:
        """`on_cancelled`: a coroutine that awaited this was cancelled (called without the lock, in its thread)."""
        self._link, self.on_cancelled = link, on_cancelled
        self.on_wait: Callable[[asyncio.Future[Any]], None] = lambda waiter: None
        """A coroutine is about to wait for this (lock held, in its thread)."""
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopInbox] = (
            weakref.WeakKeyDictionary()
        )
        self._waiters: dict[asyncio.Future[Any], LoopInbox] = {}
        """Who awaits something in an event loop, to be told when the runtime closes."""
        self._flushes: set[LoopInbox] = set()
        link.at_end(self._fail)

    def _inbox(self) -> LoopInbox:
        """Of the running event loop."""
        import asyncio  # whoever runs an event loop has it; not every process does

        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            inbox = self._inboxes[loop] = LoopInbox(loop)
        return inbox

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """(a future of the running loop, what settles it from any thread)."""
        inbox = self._inbox()
        waiter = inbox.running().create_future()
        self._waiters[waiter] = inbox
        self.on_wait(waiter)
        self._flush_soon(inbox)

        def settle(value: Any) -> None:
            self._waiters.pop(waiter, None)
            inbox.post(_settle, waiter, value)

        return waiter, settle

    def _flush_soon(self, inbox: LoopInbox) -> None:
        """Send what the loop's coroutines have submitted, once they all have had their turn."""
        self._link.loop.await_replies()
        if self._link.transport.num_unsent and inbox not in self._flushes:
            self._flushes.add(inbox)
            inbox.running().call_soon(self._flush, inbox)

    def _flush(self, inbox: LoopInbox) -> None:
        with self._link.lock:
            self._flushes.discard(inbox)
            if not self._link.loop.is_closed:
                self._link.loop.send_now()

    def forget(self, waiter: asyncio.Future[Any]) -> None:
        """It was cancelled."""
        self._waiters.pop(waiter, None)

    def _fail(self, error: ErrorInfo) -> None:
        """Nothing will come any more."""
        for waiter, inbox in self._waiters.items():
            inbox.post(_settle, waiter, Value(error=error))
        self._waiters.clear()

    def close(self) -> None:
        with self._link.lock:
            self._fail(ErrorInfo(NotInitialized.__name__, "the runtime was shut down"))


def _settle(waiter: asyncio.Future[Any], value: Any) -> None:
    if not waiter.done():
        waiter.set_result(value)
