"""Objects of the in-process backend: values, and who holds refs to them. A value is there before its ref is."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rlplat.errors import NotInitialized
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
    __slots__ = ("num_refs", "outcome")

    def __init__(self, outcome: Outcome | Callable[[], object] | None) -> None:
        self.outcome = outcome
        """A function makes it (calls `fill`) when somebody asks; None: the call that makes it runs."""
        self.num_refs = 0


class LocalObjects:
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._entries: dict[int, _Entry] = {}
        self._dropped: deque[int] = deque()
        self._lock = threading.RLock()
        self.on_freed: Callable[[int], None] = lambda id: None

    # -- refs

    def adopt(self, owner: str, id: int) -> ObjectRef:
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:  # of a cluster that has ended: whoever reads it is told
                return ObjectRef(owner, id, _ignore, (owner, id))
            entry.num_refs += 1
        return ObjectRef(owner, id, self._dropped.append, id)

    def add(self, outcome: Outcome | Callable[[], object] | None) -> ObjectRef:
        self.collect()
        with self._lock:
            id = next(_ids)
            self._entries[id] = _Entry(outcome)
            return self.adopt(self._client_id, id)

    def fill(self, id: int, outcome: Outcome) -> None:
        with self._lock:
            entry = self._entries.get(id)
            if entry is not None:
                entry.outcome = outcome

    def collect(self) -> None:
        """Forget what nobody holds a ref to."""
        while self._dropped:
            with self._lock:
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
        with self._lock:
            self._entries.clear()

    # -- values

    def entry(self, ref: ObjectRef) -> _Entry:
        entry = self._entries.get(ref.id)
        if entry is None:
            raise NotInitialized(f"{ref!r} belongs to a cluster that was shut down")
        return entry

    def outcome(self, ref: ObjectRef) -> Outcome:
        entry = self.entry(ref)
        if callable(entry.outcome):
            entry.outcome()
        assert isinstance(entry.outcome, Outcome)
        return entry.outcome

    def read(self, ref: ObjectRef) -> Any:
        """The value; raises what it stands for."""
        outcome = self.outcome(ref)
        if isinstance(outcome, ErrorInfo):
            raise to_exception(outcome)
        return open_packed(outcome)


def open_packed(packed: Packed) -> Any:
    """Out-of-band buffers are handed out read-only, as shared memory would be (tensors get copies)."""
    return codec.unpack(packed.data, codec.buffers_here(packed))


def detached(packed: Packed) -> Packed:
    """Copies of the out-of-band buffers: what was put cannot change any more."""
    packed.buffers = [pickle.PickleBuffer(bytes(buffer.raw())) for buffer in packed.buffers]
    return packed
