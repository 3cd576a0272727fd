"""The objects of a process: the shell around `ownership` and `store`. Refs, borrows, values in and out.

Everything here but `adopt`, `make_value` and `open_value` is called with the loop's lock held.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlplat.errors import NotInitialized
from rlplat.runtime import codec, messages
from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.io_loop import IoLoop
from rlplat.runtime.messages import Key, Segment, Value
from rlplat.runtime.ownership import Book, Entry
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.store import Store

_ids = itertools.count(1)
"""Goes on counting in the next cluster of this process: no ref of an earlier one reads the new one's objects."""


class Borrow(msgspec.Struct, eq=False):
    """An object of another process, of which this one has copies of the ref."""

    num_refs: int = 0
    handed: int = 0
    """How often the ref was handed to us."""
    value: Value | None = None
    was_asked: bool = False
    inner: Any = None
    callbacks: list[Any] | None = None


class Objects:
    def __init__(self, client_id: str, session: str, loop: IoLoop) -> None:
        self.client_id = client_id
        self.book = Book()
        self.ids = _ids
        self.dead: dict[str, str] = {}
        """Processes that died, with the reason."""
        self.on_freed: Callable[[Entry], None] = lambda entry: None
        self._loop = loop
        self._transport = loop.transport
        self._store = Store(session, client_id)
        self._borrows: dict[Key, Borrow] = {}
        self._dropped: deque[int | Key] = deque()
        self.drop = self._dropped.append
        loop.handlers |= {
            messages.Fetch: self._on_fetch,
            messages.Fetched: self._on_fetched,
            messages.Lent: self._on_lent,
            messages.Returned: self._on_returned,
            messages.FreeSegments: lambda _, m: self._store.free(*m.names),
        }

    # ---------------------------------------------------------------- refs

    def new_ref(self, id: int) -> ObjectRef:
        """The ref that a new entry's count of one stands for."""
        return ObjectRef(self.client_id, id, self.drop, id)

    def adopt(self, owner: str, id: int) -> ObjectRef:
        """A ref came out of a value that this thread unpickles."""
        with self._loop.lock:
            return self.add_ref(owner, id)

    def add_ref(self, owner: str, id: int) -> ObjectRef:
        if owner == self.client_id:
            entry = self.book.find(id)
            if entry is None:
                return ObjectRef(owner, id, _ignore, id)
            entry.num_refs += 1
            return ObjectRef(owner, id, self.drop, id)
        borrow = self._borrows.get((owner, id))
        if borrow is None:
            borrow = self._borrows[(owner, id)] = Borrow()
        borrow.num_refs += 1
        return ObjectRef(owner, id, self.drop, (owner, id))

    def receive(self, keys: Sequence[Key]) -> list[ObjectRef] | None:
        """Refs that were handed over inside a value: account for the hand-over, hold them."""
        if not keys:
            return None
        refs = []
        for owner, id in keys:
            refs.append(self.add_ref(owner, id))
            if owner == self.client_id:
                self.book.returned(id, self.client_id, 1)
            else:
                self._borrows[(owner, id)].handed += 1
        return refs

    def hand_over(self, keys: Sequence[Key], peer: str, count: int = 1) -> None:
        """Refs are about to travel to `peer` inside a value (-1: they came back unopened)."""
        if peer in self.dead:
            return  # it has no copy to give back any more
        for owner, id in keys:
            if owner == self.client_id:
                self.book.lend(id, peer, count)
            elif owner not in self.dead:
                self._transport.post(owner, messages.Lent(id, peer, count))

    def borrow_from(self, owner: str, id: int) -> ObjectRef:
        """A ref that nobody handed over (a named actor's): the owner is told of it now."""
        if owner != self.client_id:
            self._transport.post(owner, messages.Lent(id, self.client_id, 1))
        ref = self.add_ref(owner, id)
        if owner != self.client_id:
            self._borrows[(owner, id)].handed += 1
        return ref

    def has_any(self) -> bool:
        return bool(len(self.book) or self._borrows)

    def collect(self) -> None:
        """Act on refs that were garbage-collected and on objects that nobody needs."""
        dropped, book = self._dropped, self.book
        while dropped:
            key = dropped.popleft()
            if isinstance(key, int):
                book.unref(key)
            else:
                borrow = self._borrows[key]
                borrow.num_refs -= 1
                if not borrow.num_refs:
                    del self._borrows[key]
                    owner, id = key
                    if borrow.handed and owner not in self.dead:
                        self._transport.post(owner, messages.Returned(id, borrow.handed))
        while book.freed:
            entry = book.freed.popleft()
            entry.inner = None
            if entry.value.segment is not None:
                self.free_segment(entry.value.segment)
            self.on_freed(entry)

    def free_segment(self, segment: Segment) -> None:
        if segment.creator == self.client_id:
            self._store.free(segment.name)
        elif segment.creator not in self.dead:
            self._transport.post(segment.creator, messages.FreeSegments([segment.name]))

    # ---------------------------------------------------------------- values

    def make_value(self, packed: codec.Packed, owner: str) -> Value:
        """Inline, or in shared memory that `owner` will free. The caller holds `packed.refs` meanwhile."""
        keys = [(ref.owner, ref.id) for ref in packed.refs]
        if not packed.is_large():
            return Value(packed.data, None, keys)
        with self._loop.lock:
            return Value(b"", self._store.write(packed, owner), keys)

    def open_value(self, value: Value, ref: ObjectRef) -> Any:
        """Unpickle, or raise the error in its place. Views of shared memory keep a ref of their own."""
        if value.error is not None:
            raise codec.to_exception(value.error)
        if value.segment is None:
            return codec.unpack(value.data)
        return self._store.read(value.segment, self.adopt(ref.owner, ref.id))

    def open_argument(self, value: Value) -> Any:
        """A value that came with a call; views of shared memory borrow the object that holds it."""
        with self._loop.lock:
            lent = self.receive(value.keys())
        if value.segment is None:
            return codec.unpack(value.data)
        assert lent is not None
        return self._store.read(value.segment, lent[-1])

    def own(self, value: Value, inner: list[ObjectRef]) -> ObjectRef:
        """A new object of this process that has its value already."""
        entry = self.book.add(next(self.ids))
        entry.value, entry.inner = value, inner
        value.holder = (self.client_id, entry.id)
        return self.new_ref(entry.id)

    def fill(self, id: int, value: Value) -> None:
        """The value of one of our entries has come."""
        entry = self.book.fill(id, value, self.receive(value.refs))
        if entry is not None and entry.callbacks:
            callbacks, entry.callbacks = entry.callbacks, None
            for callback in callbacks:
                callback(value)

    def holder(self, ref: ObjectRef) -> Entry | Borrow:
        """What has, or will have, the value of `ref`; a borrowed one is asked for."""
        found: Entry | Borrow | None
        if ref.owner == self.client_id:
            found = self.book.find(ref.id)
        else:
            found = self._borrows.get((ref.owner, ref.id))
            if found is not None:
                self._ask_owner(ref.owner, ref.id, found)
        if found is None:
            raise NotInitialized(f"{ref!r} belongs to a cluster that was shut down")
        return found

    def when_ready(self, ref: ObjectRef, callback: Callable[[Value], None]) -> None:
        """Call back with the value of any ref, at once or when it comes."""
        holder = self.holder(ref)
        if holder.value is not None:
            callback(holder.value)
        elif holder.callbacks is None:
            holder.callbacks = [callback]
        else:
            holder.callbacks.append(callback)

    # ---------------------------------------------------------------- between owners and borrowers

    def _ask_owner(self, owner: str, id: int, borrow: Borrow) -> None:
        if borrow.value is None and not borrow.was_asked:
            borrow.was_asked = True
            if owner in self.dead:
                borrow.value = Value(error=_owner_died(owner, id, self.dead[owner]))
            else:
                self._transport.post(owner, messages.Fetch(id))

    def _on_lent(self, sender: str, message: messages.Lent) -> None:
        if message.borrower not in self.dead:
            self.book.lend(message.id, message.borrower, message.count)

    def _on_returned(self, sender: str, message: messages.Returned) -> None:
        if sender not in self.dead:
            self.book.returned(message.id, sender, message.count)

    def _on_fetch(self, sender: str, message: messages.Fetch) -> None:
        id = message.id

        def answer(value: Value) -> None:
            if sender not in self.dead:
                self.hand_over(value.refs, sender)
                self._transport.post(sender, messages.Fetched(id, value))
                self._transport.flush()

        if self.book.find(id) is None:
            answer(Value(error=ErrorInfo("ObjectLost", f"object {self.client_id}:{id} was freed already")))
        else:
            self.when_ready(ObjectRef(self.client_id, id, _ignore, id), answer)

    def _on_fetched(self, sender: str, message: messages.Fetched) -> None:
        inner = self.receive(message.value.refs)
        borrow = self._borrows.get((sender, message.id))
        if borrow is not None:
            self._settle(borrow, message.value, inner)

    def _settle(self, borrow: Borrow, value: Value, inner: Any = None) -> None:
        borrow.value, borrow.inner = value, inner
        if borrow.callbacks:
            callbacks, borrow.callbacks = borrow.callbacks, None
            for callback in callbacks:
                callback(value)
        self._loop.notify()

    def peer_died(self, peer: str, reason: str) -> None:
        """Its borrows are over, what it owned is lost, and bytes that it made for us become ours."""
        self.dead[peer] = reason
        for entry in self.book.values():
            value = entry.value
            if value is not None and value.segment is not None and value.segment.creator == peer:
                value.segment = self._store.take_over(value.segment)
        self._transport.forget(peer)
        self._store.forget(peer)
        self.book.peer_died(peer)
        self._store.owner_died(peer)
        for (owner, id), borrow in list(self._borrows.items()):
            if owner == peer and borrow.value is None:
                self._settle(borrow, Value(error=_owner_died(owner, id, reason)))

    def close(self) -> None:
        self._store.close()


def _owner_died(owner: str, id: int, reason: str) -> ErrorInfo:
    return ErrorInfo(
        "OwnerDied", f"object {owner}:{id} is lost: {owner}, the process that owned it, died ({reason})"
    )


def _ignore(_: int) -> None:
    pass
