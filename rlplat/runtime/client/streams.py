"""The generators whose calls this process has made: the shell around `core.owner.streams`, which has the rules.

The client's lock is held unless said otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from rlplat.runtime.client.objects import Objects
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.core.owner.retries import runs_again_after_error
from rlplat.runtime.core.owner.streams import Stream
from rlplat.runtime.generators import DynamicRefs, ObjectRefGenerator
from rlplat.runtime.link.link import Link
from rlplat.runtime.link.waiters import Waiters
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import DYNAMIC, STREAMING, Value


class Streams:
    """The generators whose calls this process has made."""

    def __init__(self, link: Link, objects: Objects, waiters: Waiters) -> None:
        self._link, self._objects, self._waiters = link, objects, waiters
        self.dropped: deque[int] = deque()
        """Generators (by their tasks) that nobody reads any more, and that are to be closed: see `abandoned`."""
        self.drop = self.dropped.append
        link.on(messages.Item, self._on_item)

    def open(self, record: TaskRecord, ref: ObjectRef, num_returns: int, window: int) -> Any:
        """The call is in the books: what its caller gets (`ref` is that of its end)."""
        stream = record.stream = Stream(
            record.id, record.name, window if num_returns == STREAMING else 0, num_returns == DYNAMIC
        )
        record.message.more.window = stream.window
        entry = self._objects.book.find(record.id)
        assert entry is not None
        entry.callbacks = [lambda value: self._on_ended(stream, value)]
        return ref if stream.is_dynamic else ObjectRefGenerator(self, stream, ref)

    def _on_item(self, sender: str, message: messages.Item) -> None:
        objects = self._objects
        record = objects.book.call(message.task)
        stream = None if record is None or sender != record.worker else record.stream
        if stream is None or not self._counts(record, stream, message):
            objects.receive(message.value.refs, sender)
            if message.value.segment is not None:
                objects.free_segment(message.value.segment)
            return
        record.message.more.have = stream.num_have
        id = next(objects.ids)
        objects.book.add(id)
        objects.fill(id, message.value, sender=sender)
        stream.ready.append(objects.new_ref(id))
        self._wake(stream)

    def _counts(self, record: TaskRecord, stream: Stream, message: messages.Item) -> bool:
        """Whether this is a value for the consumer: an exception for which the call runs again is none (rule 4)."""
        error = message.value.error
        if error is not None and stream.is_next(message.index) and runs_again_after_error(record, error):
            stream.is_failing = True
            return False
        return stream.arrived(message.index)

    def runs_again(self, record: TaskRecord) -> bool:
        """This attempt has come to its end: whether it raised, and another one is to follow."""
        stream = record.stream
        if stream is None or stream.is_ended:
            return False
        failed, stream.is_failing = stream.is_failing, False
        return bool(failed)

    def _on_ended(self, stream: Stream, value: Value) -> None:
        stream.ended(value.error is not None)
        self._wake(stream)

    def _wake(self, stream: Stream) -> None:
        wakes, stream.wakes = stream.wakes, []
        for wake in wakes:
            wake(None)

    def finish(self, record: TaskRecord, values: Sequence[Value]) -> tuple[Sequence[Value], list[ObjectRef] | None]:
        """The value of a dynamic call that has ended well is the list of its refs: (values, refs inside)."""
        stream = record.stream
        if stream is None or not stream.is_dynamic or values[0].error is not None:
            return values, None
        packed = codec.pack(DynamicRefs(list(stream.ready)))
        stream.ready.clear()
        return [Value(packed.data, None, [(ref.owner, ref.id) for ref in packed.refs])], packed.refs

    def abandoned(self) -> Iterator[TaskRecord]:
        """The calls of generators that nobody reads any more."""
        while self.dropped:
            record = self._objects.book.call(self.dropped.popleft())
            if record is not None and not record.stream.is_ended:
                record.stream.ended(False)
                yield record

    # ---------------------------------------------------------------- consumers (without the lock)

    def is_ready(self, stream: Stream) -> bool:
        return stream.can_take()

    def next_ref(self, stream: Stream, completed: ObjectRef, timeout_s: float | None) -> ObjectRef | None:
        with self._link.lock:
            if not stream.can_take():
                self._link.check_open()
                self._link.wait_until(stream.can_take, timeout_s, f"the next value of {stream.name}")
            return self._take(stream, completed)

    async def next_ref_async(self, stream: Stream, completed: ObjectRef) -> ObjectRef | None:
        import asyncio  # not for every process: it takes as long to import as all of the runtime

        while True:
            with self._link.lock:
                if stream.can_take():
                    return self._take(stream, completed)
                self._link.check_open()
                waiter, wake = self._waiters.waiter()
                stream.wakes.append(wake)
            try:
                value = await waiter
            except asyncio.CancelledError:
                self._waiters.on_cancelled(completed)
                raise
            if isinstance(value, Value) and value.error is not None:  # the runtime is closing
                raise to_exception(value.error)

    def _take(self, stream: Stream, completed: ObjectRef) -> ObjectRef | None:
        if not stream.ready:
            return completed if stream.take_failure() else None
        ref, num_to_tell = stream.take()
        record = self._objects.book.call(stream.task) if num_to_tell else None
        if record is not None and record.worker:
            self._link.transport.post(record.worker, messages.ItemsTaken(stream.task, num_to_tell))
            self._link.loop.send_now()
        return ref
