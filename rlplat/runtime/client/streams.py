"""Values of generators, one ref each, as they are made: the owner's side.

    for ref in numbers.remote(10):        # an ObjectRefGenerator
        print(rlplat.get(ref))

Rules
1. Values are numbered from 0 and come in order; one that is not the next is an old attempt's, and refused.
2. The generator stops when `window` values have not been taken by the consumer; 0: it never does. After a retry the
   window starts at what the owner has.
3. What the owner has got stays: a retried generator is run from its beginning, and skips as many values.
4. An exception in the generator is its last value. A failure around it (its worker died, it was cancelled) is given
   to the consumer once, in the ref that `completed()` returns, behind the values that have come.
5. A generator that nobody reads any more is closed at its next value.

`Stream` is pure; `Streams` is the shell of the owner, with the client's lock held unless said otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlplat.errors import SerializationError
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.messages import DYNAMIC, STREAMING, Value

if TYPE_CHECKING:
    from rlplat.runtime.client.client import Client
    from rlplat.runtime.core.owner.lanes import TaskRecord


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
        self.wakes: list[Callable[[Any], None]] = []
        """Of consumers in event loops."""
        self._num_told = 0

    def arrived(self, index: int) -> bool:
        """Whether this is the next value (rule 1); counts it."""
        if self.is_ended or index != self.num_have:
            return False
        self.num_have += 1
        return True

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


class DynamicRefs:
    """The value of a call with `num_returns="dynamic"`: a sequence of as many refs as the generator yielded."""

    def __init__(self, refs: list[ObjectRef]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, index: int) -> ObjectRef:
        return self._refs[index]

    def __repr__(self) -> str:
        return f"DynamicRefs({self._refs})"


class Source(Protocol):
    """Where an `ObjectRefGenerator` gets its refs."""

    def next_ref(self, stream: Stream, completed: ObjectRef, timeout_s: float | None) -> ObjectRef | None:
        """Wait for the next one; None at the end."""
        ...

    async def next_ref_async(self, stream: Stream, completed: ObjectRef) -> ObjectRef | None: ...

    def is_ready(self, stream: Any) -> bool:
        """Whether the next one, or the end, is there."""
        ...

    def drop(self, task: int) -> None:
        """The generator object is gone (called from whatever thread the garbage collector runs in)."""
        ...


class ObjectRefGenerator:
    """Refs of a generator's values, as they are made: iterate over it, or `async for`.

    It stays in the process that made the call. Dropping it closes the generator.
    """

    def __init__(self, source: Source, stream: Stream, completed: ObjectRef) -> None:
        self._source, self._stream, self._completed = source, stream, completed

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        ref = self._source.next_ref(self._stream, self._completed, None)
        if ref is None:
            raise StopIteration
        return ref

    def __aiter__(self) -> ObjectRefGenerator:
        return self

    async def __anext__(self) -> ObjectRef:
        ref = await self._source.next_ref_async(self._stream, self._completed)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def completed(self) -> ObjectRef:
        """A ref that is ready when the generator has ended: None, or the failure that ended it from outside."""
        return self._completed

    def next_ready(self) -> bool:
        """Whether `next` would return (or stop) at once."""
        return self.value is not None

    @property
    def owner(self) -> str:
        return self._completed.owner

    @property
    def value(self) -> ObjectRefGenerator | None:
        """For `wait`, to which values and generators are alike: None while `next` would have to wait."""
        return self if self._source.is_ready(self._stream) else None

    def is_finished(self) -> bool:
        """Whether the generator has ended and all its refs are taken."""
        return self._stream.is_ended and not self._stream.ready and not self._stream.has_failed

    @uninterrupted
    def __del__(self) -> None:
        self._source.drop(self._stream.task)

    def __reduce__(self) -> Any:
        raise SerializationError(
            "an ObjectRefGenerator cannot be sent: it belongs to the process that made the call. Pass its refs on, "
            "or have a task or actor iterate and return what is needed"
        )

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._stream.name}, {self._completed!r})"


class Streams:
    """The generators whose calls this process has made."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: dict[int, Stream] = {}
        self._dropped: deque[int] = deque()
        self.drop = self._dropped.append
        client._loop.handlers[messages.Item] = self._on_item

    def open(self, record: TaskRecord, ref: ObjectRef, num_returns: int, window: int) -> Any:
        """The call is in the books: what its caller gets (`ref` is that of its end)."""
        stream = Stream(
            record.id, record.name, window if num_returns == STREAMING else 0, num_returns == DYNAMIC
        )
        self._open[record.id] = stream
        record.message.window = stream.window
        entry = self._client._objects.book.find(record.id)
        assert entry is not None
        entry.callbacks = [lambda value: self._on_ended(stream, value)]
        return ref if stream.is_dynamic else ObjectRefGenerator(self, stream, ref)

    def _on_item(self, sender: str, message: messages.Item) -> None:
        client, objects = self._client, self._client._objects
        record, stream = client._calls.records.get(message.task), self._open.get(message.task)
        if (
            record is None
            or stream is None
            or sender != client._calls.worker_of(record)
            or not stream.arrived(message.index)
        ):
            objects.receive(message.value.refs, sender)
            if message.value.segment is not None:
                objects.free_segment(message.value.segment)
            return
        record.message.have = stream.num_have
        id = next(objects.ids)
        objects.book.add(id)
        objects.fill(id, message.value, sender=sender)
        stream.ready.append(objects.new_ref(id))
        self._wake(stream)

    def _on_ended(self, stream: Stream, value: Value) -> None:
        self._open.pop(stream.task, None)
        stream.ended(value.error is not None)
        self._wake(stream)

    def _wake(self, stream: Stream) -> None:
        wakes, stream.wakes = stream.wakes, []
        for wake in wakes:
            wake(None)

    def finish(self, task: int, values: Sequence[Value]) -> tuple[Sequence[Value], list[ObjectRef] | None]:
        """The value of a dynamic call that has ended well is the list of its refs: (values, refs inside)."""
        stream = self._open.get(task)
        if stream is None or not stream.is_dynamic or values[0].error is not None:
            return values, None
        packed = codec.pack(DynamicRefs(list(stream.ready)))
        stream.ready.clear()
        return [Value(packed.data, None, [(ref.owner, ref.id) for ref in packed.refs])], packed.refs

    def collect(self) -> None:
        """Close the generators that nobody reads any more."""
        while self._dropped:
            stream = self._open.pop(self._dropped.popleft(), None)
            if stream is not None:
                stream.ended(False)
                self._client._cancels.close_generator(stream.task)

    # ---------------------------------------------------------------- consumers (without the lock)

    def is_ready(self, stream: Stream) -> bool:
        return stream.can_take()

    def next_ref(self, stream: Stream, completed: ObjectRef, timeout_s: float | None) -> ObjectRef | None:
        client = self._client
        with client._lock:
            if not stream.can_take():
                client._check_open()
                client._wait_until(stream.can_take, timeout_s, f"the next value of {stream.name}")
            return self._take(stream, completed)

    async def next_ref_async(self, stream: Stream, completed: ObjectRef) -> ObjectRef | None:
        import asyncio  # not for every process: it takes as long to import as all of the runtime

        client = self._client
        while True:
            with client._lock:
                if stream.can_take():
                    return self._take(stream, completed)
                client._check_open()
                waiter, wake = client._awaiting.waiter()
                stream.wakes.append(wake)
            try:
                value = await waiter
            except asyncio.CancelledError:
                client._on_await_cancelled(completed)
                raise
            if isinstance(value, Value) and value.error is not None:  # the runtime is closing
                raise codec.to_exception(value.error)

    def _take(self, stream: Stream, completed: ObjectRef) -> ObjectRef | None:
        if not stream.ready:
            return completed if stream.take_failure() else None
        ref, num_to_tell = stream.take()
        record = self._client._calls.records.get(stream.task)
        worker = self._client._calls.worker_of(record) if record is not None and num_to_tell else None
        if worker:
            self._client._transport.post(worker, messages.ItemsTaken(stream.task, num_to_tell))
            self._client._loop.send_now()
        return ref
