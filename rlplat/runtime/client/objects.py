"""The objects of a process: the shell around `book` and `store`. Refs, borrows, values; `reading` opens them.

Everything here but `adopt`, `empty`, `make`, `make_value(s)` and `unmake` is called with the loop's lock held.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlplat.errors import NotInitialized, ObjectStoreFull, UsageError
from rlplat.runtime.client.forked import ForkedViews
from rlplat.runtime.core.gone import Dead, Gone
from rlplat.runtime.core.owner.book import Book, Callbacks, Entry, after_death
from rlplat.runtime.core.owner.lineage import Lineage
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.process.signals import uninterrupted
from rlplat.runtime.refs import INPROC, ObjectRef
from rlplat.runtime.store.room import Room
from rlplat.runtime.store.segments import Store
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Key, Segment, Value

_IDLE_S = 1.0
_ids = itertools.count(1)
"""Goes on counting in the next cluster of this process: no ref of an earlier one reads the new one's objects."""


class Borrow(msgspec.Struct, eq=False):
    """An object of another process, of which this one has copies of the ref."""

    num_refs: int = 0
    handed: int = 0
    """How often its owner handed the ref to us, or we did ourselves."""
    handed_by: dict[str, int] | None = None
    """How often others did."""
    value: Value | None = None
    was_asked: bool = False
    inner: Any = None
    callbacks: list[Any] | None = None


class Objects:
    def __init__(self, link: Link) -> None:
        self.client_id = link.client_id
        self.book = Book()
        self.ids = _ids
        self.dead = Dead()
        """Processes that died."""
        self._kept: set[str] = set()
        """Segments of the dead that lie on their machines, elsewhere."""
        self.borrows: dict[Key, Borrow] = {}
        self.lineage = Lineage()
        self.num_errors = 0
        """Values that were errors, of ours and of others: who waits for many looks again when one more has come."""
        self._link, self._loop, self._transport = link, link.loop, link.transport
        self.store = Store(link.session, link.client_id, link.lock)
        self.room = Room(link, self.store, self.dead, self.collect)
        self._settled = Gone()
        """The dead of whom nothing new can be heard."""
        self._told: dict[str, None] = {}
        """Owners that were told of loans and returns."""
        self._confirming: dict[str, dict[str, None]] = {}
        """For each death: owners that have not answered our `Held`."""
        self._last_acts: dict[int | Key, Callable[[], None]] = {}
        self._callbacks = Callbacks()
        self.dropped: deque[int | Key] = deque()
        """Refs that were garbage-collected (ids of ours, or keys); `collect` acts on them."""
        self.drop = self.dropped.append
        link.on(messages.Fetch, self.on_fetch)
        link.on(messages.Fetched, self._on_fetched)
        link.on(messages.Lent, self._on_lent)
        link.on(messages.Returned, self._on_returned)
        link.on(messages.ReturnedTo, self._on_returned_to)
        link.on(messages.Held, self._on_held)
        link.on(messages.HeldHeard, lambda sender, m: self._confirmed(m.lender, sender))
        link.on(messages.Settled, self._on_settled)
        link.on(
            messages.FreeSegments,
            lambda _, m: (self.store.lose if m.are_lost else self.store.free)(*m.names),
        )
        self._forked = ForkedViews(link, self._viewed, self.store.after_fork_in_child)
        link.chore(self.collect, self._look_again_s, self.dropped, self.book.freed, self.store.let_go)

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
        borrow = self.borrows.get((owner, id))
        if borrow is None:
            borrow = self.borrows[(owner, id)] = Borrow()
        borrow.num_refs += 1
        return ObjectRef(owner, id, self.drop, (owner, id))

    def receive(self, keys: Sequence[Key], lender: str) -> list[ObjectRef] | None:
        """Refs that `lender` handed over inside a value: account for the hand-over, hold them."""
        if not keys:
            return None
        refs = []
        is_mine = lender == self.client_id  # (an actor calls itself)
        for owner, id in keys:
            refs.append(self.add_ref(owner, id))
            if owner == self.client_id:
                self.book.returned(id, self.client_id, 1, "" if is_mine else lender)
            elif owner == lender or is_mine:
                self.borrows[(owner, id)].handed += 1
            else:
                borrow = self.borrows[(owner, id)]
                if borrow.handed_by is None:
                    borrow.handed_by = {}
                borrow.handed_by[lender] = borrow.handed_by.get(lender, 0) + 1
        return refs

    def hand_over(self, keys: Sequence[Key], peer: str, count: int = 1) -> None:
        """Refs are about to travel to `peer` inside a value (-1: they came back unopened, from a peer that lives)."""
        if peer in self.dead:
            return  # it has no copy to give back any more
        for owner, id in keys:
            if owner == self.client_id:
                self.book.lend(id, peer, count)
            elif owner not in self.dead:
                self._told[owner] = None
                self._transport.post(owner, messages.Lent(id, peer, count))

    def borrow_from(self, owner: str, id: int) -> ObjectRef:
        """A ref that nobody handed over (a named actor's): the owner is told of it now."""
        if owner != self.client_id and owner not in self.dead:
            self._told[owner] = None
            self._transport.post(owner, messages.Lent(id, self.client_id, 1))
        ref = self.add_ref(owner, id)
        if owner != self.client_id:
            self.borrows[(owner, id)].handed += 1
        return ref

    def at_end(self, key: int | Key, act: Callable[[], None]) -> None:
        """Do this when nobody needs an object of ours any more (its id), or when no copy of the ref to another
        process's object is left here (its key)."""
        self._last_acts[key] = act

    def _look_again_s(self) -> float:
        """Refs are dropped without a word: a process that sleeps must not leave them lying about."""
        return _IDLE_S if self.book.entries or self.borrows or self.store.born else NEVER

    def _viewed(self) -> list[Any]:
        """What keeps the memory that this process has views of."""
        return [*(self.add_ref(*key) for key in self.store.viewed()), *self.store.viewed_born()]

    def collect(self) -> None:
        """Act on refs that were garbage-collected and on objects that nobody needs, and on those that these held."""
        self.store.collect()
        while self.dropped or self.book.freed:
            self._collect()

    def _collect(self) -> None:
        dropped, book = self.dropped, self.book
        while dropped:
            key = dropped.popleft()
            if isinstance(key, int):
                book.unref(key)
            else:
                borrow = self.borrows[key]
                borrow.num_refs -= 1
                if not borrow.num_refs:
                    del self.borrows[key]
                    self._do_last(key)
                    owner, id = key
                    if owner not in self.dead:
                        self._told[owner] = None
                        if borrow.handed:
                            self._transport.post(owner, messages.Returned(id, borrow.handed))
                        if borrow.handed_by:
                            self._transport.post(owner, messages.ReturnedTo(id, borrow.handed_by))
        while book.freed:
            self._free(book.freed.popleft())

    def _free(self, entry: Entry) -> None:
        entry.inner = None
        if entry.value.segment is not None:
            self.store.account.owned(-sum(entry.value.segment.sizes), -1)
            self.free_segment(entry.value.segment)
            self.lineage.freed(entry.id)
        if self._last_acts:
            self._do_last(entry.id)

    def _do_last(self, key: int | Key) -> None:
        act = self._last_acts.pop(key, None)
        if act is not None:
            act()

    def free_segment(self, segment: Segment) -> None:
        if segment.creator == self.client_id:
            self.store.free(segment.name)
        else:
            self._free_elsewhere(segment)

    def _free_elsewhere(self, segment: Segment, is_lost: bool = False) -> None:
        if segment.creator not in self.dead:
            self._transport.post(segment.creator, messages.FreeSegments([segment.name], is_lost))
        elif segment.name in self._kept:
            self._kept.discard(segment.name)
            self._transport.post(NODE, messages.Keep(segment.creator, [segment.name], True))

    # ---------------------------------------------------------------- values

    def make_value(self, packed: codec.Packed, owner: str) -> Value:
        """Inline, or in shared memory that `owner` will free. The caller holds `packed.refs` meanwhile."""
        keys = [(ref.owner, ref.id) for ref in packed.refs]
        if keys:
            check_travels(packed.refs)
        if not packed.is_large():
            return Value(packed.data, None, keys)
        try:
            segment = self.store.write(packed, owner)
        except ObjectStoreFull as error:
            needed = len(packed.data) + sum(64 + buffer.raw().nbytes for buffer in packed.buffers)
            segment = self.room.find(needed, lambda: self.store.write(packed, owner), error)
        if owner in self.dead:
            with self._loop.lock:
                self.store.owner_died(owner)
        return Value(b"", segment, keys)

    def make_values(self, parts: Sequence[codec.Packed], owner: str) -> list[Value]:
        """All of them, or none: nobody would free those that were made when there is no room for the next."""
        values: list[Value] = []
        try:
            for packed in parts:
                values.append(self.make_value(packed, owner))
        except BaseException:
            self.unmake(values)
            raise
        return values

    def unmake(self, values: Sequence[Value]) -> None:
        """These were not sent, and will not be: their owner cannot free them."""
        with self._loop.lock:
            for value in values:
                if value.segment is not None:
                    self.free_segment(value.segment)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """An array whose memory is in the store, where a value in it would be."""
        import numpy as np

        like = np.empty(shape, dtype)
        if not codec.is_out_of_band(like):
            return like
        with self._loop.lock:
            self._link.check_open()
            self.collect()
            self._loop.new_chore()
        try:
            return self.store.empty(like)
        except ObjectStoreFull as error:
            return self.room.find(like.nbytes, lambda: self.store.empty(like), error)

    @uninterrupted
    def make(self, packed: codec.Packed, made_by: str = "put") -> tuple[Value, ObjectRef]:
        """A new object of this process, with this value."""
        value = self.make_value(packed, self.client_id)
        with self._loop.lock:
            try:
                self._link.check_open()
            except BaseException:  # the runtime has ended meanwhile, or the task that puts it is cancelled
                self.unmake([value])
                raise
            self.collect()
            return value, self.own(value, packed.refs, made_by)

    def is_there(self, id: int) -> bool:
        """Whether an object of ours has its value, or will have."""
        entry = self.book.find(id)
        if entry is None:
            return False
        value = entry.value
        if value is None or value.segment is None or self.store.place(value.segment) != "lost":
            return True
        segment = value.segment
        if segment.creator in self.dead:
            return segment.name in self._kept
        return segment.creator != self.client_id and self._transport.is_far(segment.creator)

    def holds(self, key: Key) -> bool:
        """Whether a ref of another process's object is here (of ours it does not matter: they can be made again)."""
        return key[0] == self.client_id or key in self.borrows

    def forget_bytes(self, id: int) -> None:
        """The segment of an object of ours is lost: it has no value until it is filled again."""
        entry = self.book.find(id)
        assert entry is not None
        segment = entry.value.segment
        entry.value = entry.inner = None
        self.store.account.owned(-sum(segment.sizes), -1)
        if segment.creator == self.client_id:
            self.store.lose(segment.name)
        else:
            self._free_elsewhere(segment, is_lost=True)

    def own(self, value: Value, inner: list[ObjectRef], made_by: str) -> ObjectRef:
        """A new object of this process that has its value already."""
        entry = self.book.add(next(self.ids))
        entry.value, entry.inner, entry.made_by = value, inner, made_by
        if value.segment is not None:
            self.store.account.owned(sum(value.segment.sizes), 1)
        value.holder = (self.client_id, entry.id)
        self._loop.new_chore()  # no message comes of it, and its ref may be dropped without a word
        return self.new_ref(entry.id)

    def fill(self, id: int, value: Value, inner: list[ObjectRef] | None = None, sender: str = "") -> None:
        """The value of one of our entries has come, from `sender`. `inner`: refs in it, when this process has made it
        itself."""
        entry = self.book.fill(id, value, self.receive(value.refs, sender) if inner is None else inner)
        self.num_errors += value.error is not None
        if value.segment is not None:
            if entry is None:  # it has failed meanwhile, or was made once more for another output of the same task
                self.free_segment(value.segment)
            else:
                self.store.account.owned(sum(value.segment.sizes), 1)
        if entry is not None and entry.callbacks:
            callbacks, entry.callbacks = entry.callbacks, None
            self._callbacks.run(callbacks, value)

    def holder(self, ref: ObjectRef) -> Entry | Borrow:
        """What has, or will have, the value of `ref`; a borrowed one is asked for."""
        found: Entry | Borrow | None
        if ref.owner == self.client_id:
            found = self.book.find(ref.id)
        else:
            found = self.borrows.get((ref.owner, ref.id))
            if found is not None:
                self.ask_owner(ref.owner, ref.id, found)
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

    def ask_owner(self, owner: str, id: int, borrow: Borrow) -> None:
        if borrow.value is None and not borrow.was_asked:
            borrow.was_asked = True
            if owner in self.dead:
                borrow.value = Value(error=_owner_died(owner, id, self.dead.reason(owner)))
                self.num_errors += 1
            else:
                self._transport.post(owner, messages.Fetch(id))

    def _on_lent(self, sender: str, message: messages.Lent) -> None:
        if message.borrower not in self._settled:
            lender = "" if sender == message.borrower else sender
            self.book.lend(message.id, message.borrower, message.count, lender)

    def _on_returned(self, sender: str, message: messages.Returned) -> None:
        self.book.returned(message.id, sender, message.count)

    def _on_returned_to(self, sender: str, message: messages.ReturnedTo) -> None:
        for lender, count in message.counts.items():
            self.book.returned(message.id, sender, count, lender)

    # ---------------------------------------------------------------- loans of the dead (decision 0011)

    def _tell_held(self, lender: str) -> None:
        """A process died: the owners hear from us what we have from it."""
        held: dict[str, list[tuple[int, int]]] = {owner: [] for owner in self._told}
        for (owner, id), borrow in self.borrows.items():
            if borrow.handed_by and lender in borrow.handed_by:
                count = borrow.handed_by[after_death(lender)] = borrow.handed_by.pop(lender)
                held.setdefault(owner, []).append((id, count))
        owners = [owner for owner in held if owner not in self.dead]
        self._confirming[lender] = dict.fromkeys(owners)
        for owner in owners:
            self._transport.post(owner, messages.Held(lender, held[owner]))
        for death in list(self._confirming):
            self._confirmed(death, lender)

    def _confirmed(self, death: str, owner: str) -> None:
        """An owner has our `Held`, or needs it no more."""
        waits_for = self._confirming.get(death)
        if waits_for is not None:
            waits_for.pop(owner, None)
            if not waits_for:
                del self._confirming[death]
                self._transport.post(NODE, messages.DeathHeard(death))

    def _on_held(self, sender: str, message: messages.Held) -> None:
        for id, count in message.held:
            self.book.lend(id, sender, count, after_death(message.lender))
        self._transport.post(sender, messages.HeldHeard(message.lender))

    def _on_settled(self, sender: str, message: messages.Settled) -> None:
        for peer in message.workers:
            self._settled.add(peer)
            self._told.pop(peer, None)
            self.book.settled(peer)

    def on_fetch(self, sender: str, message: messages.Fetch) -> None:
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
        inner = self.receive(message.value.refs, sender)
        borrow = self.borrows.get((sender, message.id))
        if borrow is not None:
            self._settle(borrow, message.value, inner)

    def _settle(self, borrow: Borrow, value: Value, inner: Any = None) -> None:
        borrow.value, borrow.inner = value, inner
        self.num_errors += value.error is not None
        if borrow.callbacks:
            callbacks, borrow.callbacks = borrow.callbacks, None
            self._callbacks.run(callbacks, value)
        self._loop.notify()

    def heard_who_lives(self, alive: list[str], next_number: int, reasons: dict[str, str]) -> None:
        """The other workers died before this process came: they never had anything of it."""
        self.dead.begin_with(next_number, alive)
        self.dead.reasons |= reasons
        self._settled.begin_with(next_number, alive)

    def peer_died(self, peer: str, reason: str, with_machine: bool = False) -> None:
        """What it owned is lost, bytes that it made for us become ours; its borrows are over when that is settled."""
        self.dead.add_with(peer, reason)
        left = []
        for entry in self.book.values():
            value = entry.value
            if value is not None and value.segment is not None and value.segment.creator == peer:
                value.segment = self.store.take_over(value.segment)
                if value.segment.creator == peer:
                    left.append(value.segment.name)
        if left and not with_machine and self._transport.is_far(peer):
            self._kept.update(left)
            self._transport.post(NODE, messages.Keep(peer, left))
        self._transport.forget(peer)
        self.store.forget(peer)
        self._tell_held(peer)
        self.store.owner_died(peer)
        for (owner, id), borrow in list(self.borrows.items()):
            if owner == peer and borrow.value is None:
                self._settle(borrow, Value(error=_owner_died(owner, id, reason)))

    # ---------------------------------------------------------------- the end

    def drop_spares(self) -> None:
        """This process makes no more objects (those that it made belong to others, and stay)."""
        with self._loop.lock:
            self.store.drop_spares(1 << 62)

    def close(self) -> None:
        self._forked.close()
        self.store.close()


def check_travels(refs: Sequence[ObjectRef]) -> None:
    """Nobody outside this process can ask for an object of a cluster that is nested in it."""
    for ref in refs:
        if ref.owner == INPROC:
            raise UsageError(
                f"{ref!r}, or the actor that it stands for, belongs to the cluster that this process opened inside "
                "itself by rlplat.init(backend='inproc'): pass on its value, rlplat.get(ref)"
            )


def _owner_died(owner: str, id: int, reason: str) -> ErrorInfo:
    return ErrorInfo("OwnerDied", f"object {owner}:{id} is lost: {owner}, the process that owned it, died ({reason})")


def _ignore(_: int) -> None:
    pass
