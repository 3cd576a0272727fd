"""Refs in event loops and futures: values find their way to whoever awaits them, without a thread for each.

    await ref                      the value is opened in the awaiting thread, when its turn comes
    ref.future()                   a `concurrent.futures.Future`, settled by one thread for all of them

Values arrive with the client's lock held, in whatever thread reads the socket. For an event loop they are put into
that loop's inbox, which wakes the loop once for all that came together.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rlplat.errors import NotInitialized
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.values import ErrorInfo, Value

if TYPE_CHECKING:
    import asyncio

    from rlplat.runtime.client.client import Client


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


class Awaiting:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopInbox] = (
            weakref.WeakKeyDictionary()
        )
        self._waiters: dict[asyncio.Future[Any], LoopInbox] = {}
        """Who awaits something in an event loop, to be told when the runtime closes."""
        self._flushes: set[LoopInbox] = set()
        self._to_open: SimpleQueue[tuple[Future[Any], Value, ObjectRef] | None] = SimpleQueue()
        self._opener: threading.Thread | None = None

    # ---------------------------------------------------------------- event loops

    def inbox(self) -> LoopInbox:
        """Of the running event loop (lock held)."""
        import asyncio  # whoever runs an event loop has it; not every process does

        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            inbox = self._inboxes[loop] = LoopInbox(loop)
        return inbox

    def waiter(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """(a future of the running loop, what settles it from any thread) (lock held)."""
        inbox = self.inbox()
        waiter = inbox.running().create_future()
        self._waiters[waiter] = inbox
        self._flush_soon(inbox)

        def settle(value: Any) -> None:
            self._waiters.pop(waiter, None)
            inbox.post(_settle, waiter, value)

        return waiter, settle

    def _flush_soon(self, inbox: LoopInbox) -> None:
        """Send what the loop's coroutines have submitted, once they all have had their turn."""
        self._client._loop.await_replies()
        if self._client._transport.num_unsent and inbox not in self._flushes:
            self._flushes.add(inbox)
            inbox.running().call_soon(self._flush, inbox)

    def _flush(self, inbox: LoopInbox) -> None:
        with self._client._lock:
            self._flushes.discard(inbox)
            if not self._client._loop.is_closed:
                self._client._loop.send_now()

    async def value_of(self, ref: ObjectRef) -> Any:
        import asyncio

        client = self._client
        with client._lock:
            client._check_open()
            value = client._objects.holder(ref).value
            if value is None:
                waiter, settle = self.waiter()
                client._objects.when_ready(ref, settle)
        if value is None:
            try:
                value = await waiter
            except asyncio.CancelledError:
                self._waiters.pop(waiter, None)
                client._on_await_cancelled(ref)
                raise
        return client._objects.open_value(value, ref)

    # ---------------------------------------------------------------- futures of threads

    def future_of(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        client = self._client
        with client._lock:
            client._check_open()
            if self._opener is None:
                self._opener = threading.Thread(target=self._open_values, name="rlplat-futures", daemon=True)
                self._opener.start()
            # Settled by another thread: callbacks of futures are the user's code, and the lock is held here.
            client._objects.when_ready(ref, lambda value: self._to_open.put((future, value, ref)))
            client._loop.send_now()
        return future

    def _open_values(self) -> None:
        while (item := self._to_open.get()) is not None:
            future, value, ref = item
            try:
                opened = self._client._objects.open_value(value, ref)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(opened)
                del opened
            del item, future, value, ref

    # ---------------------------------------------------------------- the end

    def fail(self, error: ErrorInfo) -> None:
        """Nothing will come any more (lock held)."""
        for waiter, inbox in self._waiters.items():
            inbox.post(_settle, waiter, Value(error=error))
        self._waiters.clear()

    def close(self) -> None:
        with self._client._lock:
            self.fail(ErrorInfo(NotInitialized.__name__, "the runtime was shut down"))
        if self._opener is not None:
            self._to_open.put(None)
            if self._opener is not threading.current_thread():
                self._opener.join(5)


def _settle(waiter: asyncio.Future[Any], value: Any) -> None:
    if not waiter.done():
        waiter.set_result(value)
