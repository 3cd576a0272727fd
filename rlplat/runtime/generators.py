"""What a generator's call returns: refs of its values, as they are made, or one sequence of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from rlplat.errors import SerializationError
from rlplat.runtime.core.owner.streams import Stream
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import ObjectRef


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
        """Whether `next` would return a ref at once; False where it would stop (`is_finished`)."""
        return self.value is not None and not self.is_finished()

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
