"""Coroutines that wait for something of the runtime: told from whatever thread reads the socket, without one for each.

An event loop of asyncio gets a selector (`LeadingSelector`) by which its thread reads the socket itself while the loop
sleeps. What another thread has read for its coroutines is put into the loop's inbox, which wakes the loop once for all
that came together; with loops of other makers (uvloop) that is always so.
"""

from __future__ import annotations

import select
import selectors
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlplat.errors import NotInitialized
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.loop import IoLoop
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.values import ErrorInfo, Value

if TYPE_CHECKING:
    import asyncio


class LeadingSelector:
    """What an event loop sleeps in: while it does, its thread is the leader (`loop`)."""

    def __init__(self, io: IoLoop, inner: Any, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """`is_wanted`: whether coroutines wait for something of the runtime."""
        self._io, self._inner, self._is_wanted = io, inner, is_wanted
        self.wake: Callable[[], object] = lambda: None
        """Ends a sleep, from any thread."""
        self._door: Any = None
        """One descriptor for all of the runtime's, among those of the loop while its thread leads."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def select(self, timeout_s: float | None = None) -> list[Any]:
        io, found = self._io, None
        is_awake, is_wanted = timeout_s is not None and timeout_s <= 0, io.is_open and self._is_wanted()
        if is_awake:
            if is_wanted:
                self._try(io.glance)
        elif not is_wanted:
            self._shut()
        else:

            def sleep(seconds: float | None) -> None:
                nonlocal found
                self._open()
                found = self._inner.select(seconds)

            if self._try(io.pump_beside, sleep, timeout_s, self.wake):
                timeout_s = 0.0
            else:
                self._shut()
        if found is None:
            found = self._inner.select(timeout_s)
        return [each for each in found if each[0].fileobj is not self._door] if self._door else found

    def _try(self, act: Callable[..., Any], *args: Any) -> Any:
        try:
            return act(*args)
        except Exception:
            if self._io.failure is None:
                raise
            return None  # whoever awaits something hears of it

    def _open(self) -> None:
        if self._door is None:
            self._door = select.epoll()
            for descriptor in self._io.descriptors():
                self._door.register(descriptor, select.EPOLLIN)
            self._inner.register(self._door, selectors.EVENT_READ)

    def _shut(self) -> None:
        if self._door is not None:
            self._inner.unregister(self._door)
            self._door.close()
            self._door = None

    def close(self) -> None:
        self._shut()
        self._inner.close()

    def taken_out(self) -> Any:
        """The loop's own, once more."""
        self._shut()
        return self._inner

    def reads(self, io: IoLoop) -> bool:
        return self._io is io


class LoopInbox:
    """Calls for one event loop from any thread, batched: the loop is woken once for those that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self.thread = 0
        """Which runs the loop."""
        self.leads = False
        """Its thread reads the socket while the loop sleeps."""
        self.num_waiters = 0
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs now."""
        loop = self._loop()
        assert loop is not None
        return loop

    def post(self, call: Callable[..., object], *args: Any) -> None:
        if not self._calls and threading.get_ident() == self.thread:
            loop = self._loop()
            if loop is not None and loop.is_running():
                call(*args)
                return
        self._calls.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop is closed, and nobody awaits anything in it any more
                pass

    def wake(self) -> None:
        self._calls.append((int, ()))
        self.post(int)

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
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopInbox] = weakref.WeakKeyDictionary()
        self._waiters: dict[asyncio.Future[Any], LoopInbox] = {}
        """Who awaits something in an event loop, to be told when the runtime closes."""
        self._flushes: set[LoopInbox] = set()
        """Of loops that cannot lead."""
        link.at_end(self._fail)

    def _inbox(self) -> LoopInbox:
        """Of the running event loop."""
        import asyncio  # whoever runs an event loop has it; not every process does

        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            inbox = self._inboxes[loop] = LoopInbox(loop)
            if isinstance(loop, asyncio.SelectorEventLoop):
                inbox.leads = True
                self._let_lead(loop, inbox)
        inbox.thread = threading.get_ident()
        return inbox

    def _let_lead(self, loop: Any, inbox: LoopInbox) -> None:
        selector, io = loop._selector, self._link.loop
        if type(selector) is LeadingSelector:
            if selector.reads(io):
                return
            selector = selector.taken_out()  # of a runtime that was shut down
        loop._selector = LeadingSelector(io, selector, lambda: inbox.num_waiters > 0)
        loop._selector.wake = inbox.wake

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """(a future of the running loop, what settles it from any thread)."""
        inbox = self._inbox()
        waiter = inbox.running().create_future()
        self._waiters[waiter] = inbox
        inbox.num_waiters += 1
        self.on_wait(waiter)
        if not inbox.leads:
            self._flush_soon(inbox)

        def settle(value: Any) -> None:
            self.forget(waiter)
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
        """It is settled, or was cancelled."""
        inbox = self._waiters.pop(waiter, None)
        if inbox is not None:
            inbox.num_waiters -= 1

    def _fail(self, error: ErrorInfo) -> None:
        """Nothing will come any more."""
        for waiter, inbox in list(self._waiters.items()):
            self.forget(waiter)
            inbox.post(_settle, waiter, Value(error=error))

    def close(self) -> None:
        with self._link.lock:
            self._fail(ErrorInfo(NotInitialized.__name__, "the runtime was shut down"))


def _settle(waiter: asyncio.Future[Any], value: Any) -> None:
    if not waiter.done():
        waiter.set_result(value)
