"""Objects of the in-process backend: values, who holds refs to them, and waiting for those that are late."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlplat.errors import GetTimeout, NotInitialized, RuntimeFault
from rlplat.runtime.core.callbacks import Callbacks
from rlplat.runtime.generators import ObjectRefGenerator
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import Packed
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import ErrorInfo

_ids = itertools.count(1)
"""Goes on counting in the next cluster of this process: no ref of an earlier one reads the new one's objects."""

Outcome = Packed | ErrorInfo


def _ignore(key: object) -> None:
    pass


class _Entry:
    __slots__ = ("callbacks", "num_refs", "outcome", "what")

    def __init__(self, outcome: Outcome | None, what: str) -> None:
        self.outcome, self.what = outcome, what
        self.num_refs = 0
        self.callbacks: list[Callable[[], None]] = []


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.of_thread = Callbacks()


class LocalObjects:
    """Values are late only where coroutines make them; everything else is there before its ref is."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._entries: dict[int, _Entry] = {}
        self._dropped: deque[int] = deque()
        self.changed = threading.Condition(threading.RLock())
        self._callbacks = _OfThread()
        self.on_freed: Callable[[int], None] = lambda id: None
        self.loop_thread: threading.Thread | None = None
        """Its coroutines make late values, so it must never block on one."""

    # -- refs

    def adopt(self, owner: str, id: int) -> ObjectRef:
        with self.changed:
            entry = self._entries.get(id)
            if entry is None:  # of a cluster that has ended: whoever reads it is told
                return ObjectRef(owner, id, _ignore, (owner, id))
            entry.num_refs += 1
        return ObjectRef(owner, id, self._dropped.append, id)

    def add(self, outcome: Outcome | None, what: str = "a value") -> ObjectRef:
        """A new object (None: its value comes later, by `fill`)."""
        self.collect()
        with self.changed:
            id = next(_ids)
            self._entries[id] = _Entry(outcome, what)
            return self.adopt(self._client_id, id)

    def fill(self, id: int, outcome: Outcome) -> None:
        """The first outcome counts."""
        with self.changed:
            entry = self._entries.get(id)
            if entry is None or entry.outcome is not None:
                return
            entry.outcome = outcome
            callbacks, entry.callbacks = entry.callbacks, []
            self.changed.notify_all()
        self._callbacks.of_thread.run(callbacks)

    def collect(self) -> None:
        """Forget what nobody holds a ref to."""
        while self._dropped:
            with self.changed:
                try:
                    id = self._dropped.popleft()
                except IndexError:  # another thread was faster
                    return
                entry = self._entries.get(id)
                if entry is None:
                    continue
                entry.num_refs -= 1
                is_free = not entry.num_refs
                if is_free:
                    del self._entries[id]
            if is_free:
                self.on_freed(id)

    def clear(self) -> None:
        with self.changed:
            self._entries.clear()
            self.changed.notify_all()

    # -- values

    def outcome(self, ref: ObjectRef) -> Outcome | None:
        entry = self._entries.get(ref.id)
        if entry is None:
            raise NotInitialized(f"{ref!r} belongs to a cluster that was shut down")
        return entry.outcome

    def when_ready(self, ref: ObjectRef, callback: Callable[[], None]) -> bool:
        """Have `callback` called once the value is there; False (and no call) when it is there already."""
        with self.changed:
            if self.outcome(ref) is not None:
                return False
            self._entries[ref.id].callbacks.append(callback)
            return True

    def is_there(self, ref: Any) -> bool:
        """The value of a ref, or the next one of a generator."""
        return (ref.value if isinstance(ref, ObjectRefGenerator) else self.outcome(ref)) is not None

    def wait_for(self, refs: Sequence[Any], num: int, timeout_s: float | None) -> int:
        """Wait until `num` of `refs` are there; how many are."""

        def count() -> int:
            return sum(map(self.is_there, refs))

        with self.changed:
            if count() >= num or timeout_s == 0:
                return count()
            self.check_may_block(next(ref for ref in refs if not self.is_there(ref)))
            self.changed.wait_for(lambda: count() >= num, timeout_s)
            return count()

    def check_may_block(self, ref: object) -> None:
        if threading.current_thread() is self.loop_thread:
            raise RuntimeFault(
                f"a coroutine of an async actor blocks on {ref!r}, which another coroutine is to make: with "
                "backend='inproc' they share one event loop. Write `await ref` instead of rlplat.get(ref)"
            )

    def read(self, ref: ObjectRef) -> Any:
        """The value, which must be there; raises what it stands for."""
        outcome = self.outcome(ref)
        assert outcome is not None
        if isinstance(outcome, ErrorInfo):
            raise to_exception(outcome)
        return open_packed(outcome)

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        values = []
        for ref in refs:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.wait_for([ref], 1, left):
                raise GetTimeout(f"get() timed out after {timeout_s:g} s: {self._missing(refs)}")
            values.append(self.read(ref))
        return values

    def _missing(self, refs: Iterable[ObjectRef]) -> str:
        late = [ref for ref in refs if self.outcome(ref) is None]
        first = f", first {self._entries[late[0].id].what}" if late else ""
        return f"{len(late)} of {len(list(refs))} values are missing{first}"


def open_packed(packed: Packed) -> Any:
    """Out-of-band buffers are handed out read-only, as shared memory would be (tensors get copies)."""
    return codec.unpack(packed.data, codec.buffers_here(packed))


def detached(packed: Packed) -> Packed:
    """Copies of the out-of-band buffers: what was put cannot change any more."""
    packed.buffers = [pickle.PickleBuffer(bytes(buffer.raw())) for buffer in packed.buffers]
    return packed
