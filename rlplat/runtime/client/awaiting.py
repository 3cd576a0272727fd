"""Refs in event loops and futures: values find their way to whoever awaits them.

    await ref                      the value is opened in the awaiting thread, when its turn comes
    ref.future()                   a `concurrent.futures.Future`, settled by one thread for all of them
    rlplat.as_completed(refs)      refs that are ready go into a queue; nobody looks for them among the others

Values arrive with the client's lock held, in whatever thread reads the socket.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from rlplat.errors import GetTimeout
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.completed import AsCompleted
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import Value

if TYPE_CHECKING:
    from concurrent.futures import Future


class Awaiting:
    """`await ref`, `ref.future()` and `rlplat.as_completed`."""

    def __init__(self, link: Link, objects: Objects, reader: Reader, waiters: Waiters) -> None:
        self.link, self.reader, self.waiters, self._objects = link, reader, waiters, objects
        self.holder_of = objects.holder
        self._to_open: SimpleQueue[tuple[Future[Any], Value, ObjectRef] | None] = SimpleQueue()
        self._opener: threading.Thread | None = None
        self._given_up: deque[_Arrivals] = deque()
        """Of iterators that nobody has any more."""
        self.give_up = self._given_up.append
        link.chore(self._withdraw, lambda: NEVER, self._given_up)

    async def value_of(self, ref: ObjectRef) -> Any:
        import asyncio  # whoever runs an event loop has it; not every process does

        with self.link.lock:
            self.link.check_open()
            value = self._objects.holder(ref).value
            if value is None:
                waiter, settle = self.waiters.waiter()
                self._objects.when_ready(ref, settle)
        if value is None:
            try:
                value = await waiter
            except asyncio.CancelledError:
                self.waiters.forget(waiter)
                self.waiters.on_cancelled(ref)
                raise
        return self.reader.open_value(value, ref)

    def future_of(self, ref: ObjectRef) -> Future[Any]:
        from concurrent.futures import Future  # it brings `logging`, and few processes need it

        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self.link.lock:
            self.link.check_open()
            if self._opener is None:
                opener = threading.Thread(target=self._open_values, name="rlplat-futures", daemon=True)
                opener.start()
                self._opener = opener
            # Settled by another thread: callbacks of futures are the user's code, and the lock is held here.
            self._objects.when_ready(ref, lambda value: self._to_open.put((future, value, ref)))
            self.link.loop.send_now()
        return future

    def _open_values(self) -> None:
        while (item := self._to_open.get()) is not None:
            future, value, ref = item
            try:
                opened = self.reader.open_value(value, ref)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(opened)
                del opened
            del item, future, value, ref

    def as_completed(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> AsCompleted[Any]:
        """`refs`: no two are equal."""
        arrivals, holder_of = _Arrivals(), self.holder_of
        with self.link.lock:
            self.link.check_open()
            for ref in refs:
                holder = holder_of(ref)
                if holder.value is not None:
                    arrivals.ready.append(ref)
                    continue
                arrivals.pending[ref._key] = ref
                if holder.callbacks is None:
                    holder.callbacks = [_Arrival(ref, arrivals)]
                else:
                    holder.callbacks.append(_Arrival(ref, arrivals))
        return _Completed(self, arrivals, len(refs), timeout_s)

    def _withdraw(self) -> None:
        """(Lock held.)"""
        while self._given_up:
            given_up = self._given_up.popleft()
            for ref in given_up.pending.values():
                holder = self.holder_of(ref)
                if holder.callbacks:
                    holder.callbacks = [each for each in holder.callbacks if getattr(each, "to", None) is not given_up]

    def close(self) -> None:
        if self._opener is not None:
            self._to_open.put(None)
            if self._opener is not threading.current_thread():
                self._opener.join(5)


class _Arrivals:
    """Refs that are ready, and others (lock held; `ready` is read without)."""

    def __init__(self) -> None:
        self.ready: deque[ObjectRef] = deque()
        self.pending: dict[Any, ObjectRef] = {}
        self.wakes: list[Any] = []
        """Of consumers in event loops."""


class _Arrival(msgspec.Struct, eq=False, gc=False):
    """What is called when the value of this ref has come. (Outside the garbage collector's lists: they are many.)"""

    ref: ObjectRef
    to: _Arrivals

    def __call__(self, value: Value) -> None:
        arrivals, ref = self.to, self.ref
        del arrivals.pending[ref._key]
        arrivals.ready.append(ref)
        if arrivals.wakes:
            wakes, arrivals.wakes = arrivals.wakes, []
            for wake in wakes:
                wake(None)


class _Completed(AsCompleted[Any]):
    """Callbacks keep the arrivals, not this: when nobody iterates any more, they are withdrawn."""

    def __init__(self, awaiting: Awaiting, arrivals: _Arrivals, num_refs: int, timeout_s: float | None) -> None:
        self._awaiting, self._arrivals, self._ready = awaiting, arrivals, arrivals.ready
        self._num_refs, self._timeout_s = num_refs, timeout_s
        self._deadline = None if timeout_s is None else awaiting.link.clock() + timeout_s

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._awaiting.link.clock())

    def _wait(self) -> bool:
        link, arrivals = self._awaiting.link, self._arrivals
        with link.lock:
            try:
                if arrivals.pending:
                    link.wait_until(lambda: bool(arrivals.ready), self._left_s(), "")
            except GetTimeout:
                raise self._timed_out() from None
            return bool(arrivals.ready)

    async def _wait_async(self) -> bool:
        import asyncio  # whoever runs an event loop has it; not every process does

        link, arrivals, waiters = self._awaiting.link, self._arrivals, self._awaiting.waiters
        with link.lock:
            if arrivals.ready or not arrivals.pending:
                return bool(arrivals.ready)
            link.check_open()
            waiter, wake = waiters.waiter()
            arrivals.wakes.append(wake)
        try:
            async with asyncio.timeout(self._left_s()):
                value = await waiter
        except TimeoutError:
            with link.lock:
                raise self._timed_out() from None
        except asyncio.CancelledError:
            for ref in list(arrivals.pending.values()):
                waiters.on_cancelled(ref)
            raise
        finally:
            waiters.forget(waiter)
        if isinstance(value, Value) and value.error is not None:  # the runtime is closing
            raise to_exception(value.error)
        return True

    def _timed_out(self) -> GetTimeout:
        refs = list(self._arrivals.pending.values())
        holders = list(map(self._awaiting.holder_of, refs))
        reader, timeout_s = self._awaiting.reader, self._timeout_s
        assert timeout_s is not None
        return GetTimeout(reader.missing("as_completed()", refs, holders, self._num_refs, timeout_s))

    @uninterrupted
    def __del__(self) -> None:
        if self._arrivals.pending:
            self._awaiting.give_up(self._arrivals)
