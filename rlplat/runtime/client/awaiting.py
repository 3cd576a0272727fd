"""Refs in event loops and futures: values find their way to whoever awaits them.

    await ref                      the value is opened in the awaiting thread, when its turn comes
    ref.future()                   a `concurrent.futures.Future`, settled by one thread for all of them

Values arrive with the client's lock held, in whatever thread reads the socket.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.reading import Reader
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.values import Value


class Awaiting:
    """`await ref` and `ref.future()`."""

    def __init__(self, link: Link, objects: Objects, reader: Reader, waiters: Waiters) -> None:
        self._link, self._objects, self._reader, self._waiters = link, objects, reader, waiters
        self._to_open: SimpleQueue[tuple[Future[Any], Value, ObjectRef] | None] = SimpleQueue()
        self._opener: threading.Thread | None = None

    async def value_of(self, ref: ObjectRef) -> Any:
        import asyncio  # whoever runs an event loop has it; not every process does

        with self._link.lock:
            self._link.check_open()
            value = self._objects.holder(ref).value
            if value is None:
                waiter, settle = self._waiters.waiter()
                self._objects.when_ready(ref, settle)
        if value is None:
            try:
                value = await waiter
            except asyncio.CancelledError:
                self._waiters.forget(waiter)
                self._waiters.on_cancelled(ref)
                raise
        return self._reader.open_value(value, ref)

    def future_of(self, ref: ObjectRef) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._link.lock:
            self._link.check_open()
            if self._opener is None:
                opener = threading.Thread(target=self._open_values, name="rlplat-futures", daemon=True)
                opener.start()
                self._opener = opener
            # Settled by another thread: callbacks of futures are the user's code, and the lock is held here.
            self._objects.when_ready(ref, lambda value: self._to_open.put((future, value, ref)))
            self._link.loop.send_now()
        return future

    def _open_values(self) -> None:
        while (item := self._to_open.get()) is not None:
            future, value, ref = item
            try:
                opened = self._reader.open_value(value, ref)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(opened)
                del opened
            del item, future, value, ref

    def close(self) -> None:
        if self._opener is not None:
            self._to_open.put(None)
            if self._opener is not threading.current_thread():
                self._opener.join(5)
