"""Values for whoever asks: waited for, and opened (unpickled, or views of shared memory); lost bytes are made again.

A reader that finds a segment missing tells the object's owner (`BytesLost`), which runs the task again, and those
before it whose results are gone as well. Meanwhile the object is as it was before the task ended: whoever asks waits.
What cannot be made again has an error as its value from then on.

A `Reader` is called without the lock; the lock is held where a `Rebuilder`, the shell around `lineage`, is called.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlplat.errors import GetTimeout, NotInitialized, ObjectLost, ObjectStoreFull, OwnerDied
from rlplat.runtime.client.objects import Borrow, Objects
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.core.owner.lineage import Broken, Recipe
from rlplat.runtime.generators import ObjectRefGenerator
from rlplat.runtime.link.link import Link
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.store.segments import BytesMissing
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Key, Segment, Value

_READS = 8
"""How often a value that was made again may be lost again before its reader gives up."""


class Reader:
    def __init__(self, link: Link, objects: Objects, rebuilder: Rebuilder) -> None:
        self._link, self._objects, self._rebuilder = link, objects, rebuilder
        self._requests = itertools.count(1)
        self._pulled: dict[int, messages.Pulled] = {}
        link.on(messages.BytesLost, self._on_bytes_lost)
        link.on(messages.Pulled, self._on_pulled)

    # ---------------------------------------------------------------- waiting for values

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        me, entries, unpack = self._link.client_id, self._objects.book.entries, codec.unpack
        deadline = None if timeout is None else self._link.clock() + timeout
        values: list[Any] = []
        seen = -1 if self._objects.borrows else 0
        for index, ref in enumerate(refs):
            entry = entries.get(ref.id) if ref.owner == me else None
            value = None if entry is None else entry.value
            if value is None:
                value, seen = self._await_value(refs, index, seen, deadline, timeout)
            if value.segment is None and value.error is None:
                values.append(unpack(value.data))
            else:
                values.append(self.open_value(value, ref, deadline))
        return values

    def values(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Arguments with the values of the refs among them (waits for those)."""
        return (
            tuple(self.get([arg], None)[0] if type(arg) is ObjectRef else arg for arg in args),
            {key: self.get([arg], None)[0] if type(arg) is ObjectRef else arg for key, arg in kwargs.items()},
        )

    def _await_value(
        self,
        refs: Sequence[ObjectRef],
        index: int,
        seen: int,
        deadline: float | None,
        timeout_s: float | None,
    ) -> tuple[Value, int]:
        """The value of `refs[index]`, or the error of one behind it that is there sooner.

        `seen`: how many errors this process had when those behind were last looked at, which asks their owners for
        them (-1: never). What comes back with the value.
        """
        objects, found = self._objects, None

        def is_done() -> bool:
            nonlocal found, seen
            found = holder.value
            if found is None and seen != objects.num_errors:
                seen = objects.num_errors
                behind = (objects.holder(ref).value for ref in refs[index + 1 :])
                found = next((value for value in behind if value and value.error), None)
            return found is not None

        with self._link.lock:
            holder = objects.holder(refs[index])
            if not is_done():
                left = None if deadline is None else max(0.0, deadline - self._link.clock())
                try:
                    self._link.wait_until(is_done, left, "", refs[index])
                except GetTimeout:
                    rest = refs[index:]
                    holders = [objects.holder(ref) for ref in rest]
                    assert timeout_s is not None
                    raise GetTimeout(self.missing("get()", rest, holders, len(refs), timeout_s)) from None
            assert found is not None
            return found, seen

    def missing(
        self, verb: str, refs: Sequence[ObjectRef], holders: Sequence[Any], num_refs: int, timeout_s: float
    ) -> str:
        """What the verb waits for, in words."""
        waiting = [ref for ref, holder in zip(refs, holders, strict=True) if holder.value is None]
        ref = waiting[0]
        record = self._objects.book.call(ref.id) if ref.owner == self._link.client_id else None
        if ref.owner != self._link.client_id:
            why = f"{ref!r}, which {ref.owner} owns"
        elif record is None:
            why = f"{ref!r}"
        elif record.waits:
            why = f"{record.name}, which waits for {record.waits} of its arguments"
        else:
            why = f"{record.name}, {record.queue.why_waiting(record)}"
        return f"{verb} timed out after {timeout_s:g} s: {len(waiting)} of {num_refs} values are missing, first {why}"

    def wait(self, refs: Sequence[Any], num_returns: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        with self._link.lock:
            ready = self._first_ready(refs, num_returns)
            if len(ready) < num_returns:
                missing = list(map(self._waitable, refs))
                most_missing = len(refs) - num_returns

                def enough() -> bool:
                    nonlocal missing
                    missing = [holder for holder in missing if holder.value is None]
                    return len(missing) <= most_missing

                try:
                    self._link.wait_until(enough, timeout, "")
                except GetTimeout:
                    pass
                ready = self._first_ready(refs, num_returns)
        rest = list(refs)
        if len(ready) == 1:
            return [rest.pop(ready[0])], rest
        taken = set(ready)
        return [refs[index] for index in ready], [ref for index, ref in enumerate(refs) if index not in taken]

    def _waitable(self, ref: Any) -> Any:
        return ref if type(ref) is ObjectRefGenerator else self._objects.holder(ref)

    def _first_ready(self, refs: Sequence[Any], most: int) -> list[int]:
        """Where they are; looks no further than it must: a loop takes one of a long list at a time."""
        found: list[int] = []
        for index, ref in enumerate(refs):
            if self._waitable(ref).value is not None:
                found.append(index)
                if len(found) == most:
                    break
        return found

    # ---------------------------------------------------------------- opening them

    def open_value(self, value: Value, ref: ObjectRef, deadline: float | None = None) -> Any:
        """Unpickle, or raise the error in its place. Views of shared memory keep a ref of their own."""
        if value.error is not None:
            raise to_exception(value.error)
        if value.segment is None:
            return codec.unpack(value.data)
        return self._read(value, ref.owner, ref.id, self._objects.adopt(ref.owner, ref.id), deadline)

    def open_argument(self, value: Value, caller: str) -> Any:
        """A value that came with a call; views of shared memory borrow the object that holds it."""
        with self._link.lock:
            keys = value.keys()
            if caller in self._objects.dead and any(owner != caller for owner, _ in keys):
                # What it lent to us is settled without this: the owners may have freed it.
                raise OwnerDied(f"{caller}, which made the call, died before its arguments were opened")
            lent = self._objects.receive(keys, caller)
        if value.segment is None:
            return codec.unpack(value.data)
        assert lent is not None
        return self._read(value, lent[-1].owner, lent[-1].id, lent[-1], None)

    def _read(self, value: Value, owner: str, id: int, ref: ObjectRef, deadline: float | None) -> Any:
        """Read shared memory, or what the owner has instead when the bytes are missing there (waits for that)."""
        for _ in range(_READS):
            assert value.segment is not None
            try:
                return self._objects.store.read(value.segment, ref, (owner, id))
            except BytesMissing:  # not kept: its traceback would hold this frame, and with it `ref`
                pass
            if self._link.transport.is_far(value.segment.creator) and self._pull(value.segment, deadline):
                continue
            value = self._recover(owner, id, value.segment.name, deadline)
            if value.error is not None:
                raise to_exception(value.error)
            if value.segment is None:
                return codec.unpack(value.data)
        raise ObjectLost(f"the bytes of object {owner}:{id} were lost {_READS} times in a row")

    def _pull(self, segment: Segment, deadline: float | None) -> bool:
        """Have bytes from another machine brought here; False when they are not there either."""
        try:
            return self._pull_once(segment, deadline)
        except ObjectStoreFull as full:
            return self._objects.room.find(sum(segment.sizes), lambda: self._pull_once(segment, deadline), full)

    def _pull_once(self, segment: Segment, deadline: float | None) -> bool:
        with self._link.lock:
            request = next(self._requests)
            self._link.transport.post(NODE, messages.Pull(request, segment.creator, segment.name))
            left_s = None if deadline is None else max(0.0, deadline - self._link.clock())
            what = f"the bytes of an object that {segment.creator} made, from its machine"
            self._link.wait_until(lambda: request in self._pulled, left_s, what)
            pulled = self._pulled.pop(request)
        if pulled.error:
            raise ObjectStoreFull(f"no room here for the bytes of an object of another machine: {pulled.error}")
        return pulled.is_there

    def _on_pulled(self, sender: str, message: messages.Pulled) -> None:
        self._pulled[message.request] = message
        self._link.loop.notify()

    def _recover(self, owner: str, id: int, segment: str, deadline: float | None) -> Value:
        with self._link.lock:
            holder: Entry | Borrow | None
            if owner == self._objects.client_id:
                holder = self._objects.book.find(id)
                self._rebuilder.lost(id, segment)
            else:
                holder = self._objects.borrows.get((owner, id))
                if holder is not None:
                    known = holder.value
                    if known is not None and known.segment is not None and known.segment.name == segment:
                        holder.value, holder.was_asked = None, False
                    if holder.value is None and owner not in self._objects.dead:
                        holder.was_asked = True
                        self._link.transport.post(owner, messages.BytesLost(id, segment))
                    self._objects.ask_owner(owner, id, holder)
            if holder is None:
                raise NotInitialized(f"object {owner}:{id} belongs to a cluster that was shut down")
            left_s = None if deadline is None else max(0.0, deadline - self._link.clock())
            what = f"object {owner}:{id}, which was lost and is made again"
            self._link.wait_until(lambda: holder.value is not None, left_s, what)
            assert holder.value is not None
            return holder.value

    def _on_bytes_lost(self, sender: str, message: messages.BytesLost) -> None:
        self._rebuilder.lost(message.id, message.segment)
        self._objects.on_fetch(sender, messages.Fetch(message.id))


Deps = list[tuple[int | str, ObjectRef]]


class Rebuilder:
    def __init__(self, objects: Objects, submit_again: Callable[[TaskRecord, Deps], None]) -> None:
        self.lineage = objects.lineage
        self.under_way: set[int] = set()
        """Tasks that run again."""
        self._objects = objects
        self._submit_again = submit_again

    def remember(self, record: TaskRecord, values: Sequence[Value]) -> None:
        """A call has ended with these values: keep what it takes to make the large ones again."""
        message = record.message
        if message.more is not None and (message.more.num_returns < 0 or message.more.seq):
            return  # a generator's values come one by one; an exactly-once call would be answered from memory
        live = {id for id, value in zip(record.ids, values, strict=True) if value.segment is not None}
        for id in live:
            entry = self._objects.book.find(id)
            if entry is None:
                live = live - {id}
            elif not entry.made_by:
                entry.made_by = record.name
        if not live or (record.queue.kind == "call" and not record.retries_left):
            return
        needs = tuple({id: None for owner, id in _keys(message) if owner == self._objects.client_id})
        num_bytes = _num_bytes(message)
        self.lineage.add(record.ids, record.name, needs, record, num_bytes, record.retries_left, live)

    def finished(self, record: TaskRecord, values: Sequence[Value]) -> Sequence[Value]:
        """A task that ran again is done; returns its values with errors in the right words."""
        if record.id not in self.under_way:
            return values
        self.under_way.discard(record.id)
        out = []
        for id, value in zip(record.ids, values, strict=True):
            if value.segment is None:
                self.lineage.freed(id)
            if value.error is not None:
                text = f"the bytes of object {self._objects.client_id}:{id} were lost, and {record.name}, which ran "
                text += f"again to make them, failed: {value.error.message}"
                value = Value(error=ErrorInfo("ObjectRebuildFailed", text, value.error.exception))
            out.append(value)
        return out

    def lost(self, id: int, segment: str) -> None:
        """Somebody found that this segment of one of our objects is missing (on its machine, where that is another)."""
        objects = self._objects
        entry = objects.book.find(id)
        value = None if entry is None else entry.value
        if value is None or value.segment is None or value.segment.name != segment:
            return  # it is being made already, or was
        if objects.store.place(value.segment) != "lost":
            return  # it has moved while the reader looked
        objects.forget_bytes(id)
        plan = self.lineage.plan(id, objects.is_there)
        if isinstance(plan, list):
            foreign = [key for recipe in plan for key in _keys(recipe.call.message) if not objects.holds(key)]
            if foreign:
                owner, number = foreign[0]
                plan = Broken(id, f"an argument, object {owner}:{number}, is not held here any more")
        if isinstance(plan, Broken):
            self._give_up(id, plan)
        else:
            self._run_again(plan)

    def _give_up(self, id: int, broken: Broken) -> None:
        me, made_by = self._objects.client_id, self._objects.book.find(id).made_by  # type: ignore[union-attr]
        origin = made_by if made_by == "put" else f"made by {made_by or 'a generator'}"
        what = f"the bytes of object {me}:{id} ({origin}) are gone"
        if broken.id == id and made_by == "put":
            text = f"{what}, and a value of rlplat.put cannot be made again: put it once more, or let a task make it"
            error = ErrorInfo("ObjectLost", text)
        elif broken.id == id:
            error = ErrorInfo("ObjectLost", f"{what}, and it cannot be made again: {broken.reason}")
        else:
            text = f"{what}, and {me}:{broken.id}, which it takes to make it again, is gone too: {broken.reason}"
            error = ErrorInfo("ObjectRebuildFailed", text)
        self.lineage.freed(id)
        self._objects.fill(id, Value(error=error))

    def _run_again(self, plan: list[Recipe]) -> None:
        objects = self._objects
        held = []  # the objects between the first and the last task, until the tasks that need them hold them
        for recipe in plan:
            for id in recipe.ids:
                if objects.book.find(id) is None:
                    objects.book.add(id).made_by = recipe.name
                    held.append(objects.new_ref(id))
                elif not objects.is_there(id):
                    objects.forget_bytes(id)
        for recipe in plan:
            recipe.retries_left -= recipe.retries_left > 0
            record: TaskRecord = recipe.call
            message, deps, refs = self._call_again(record.message)
            self.under_way.add(record.id)
            self._submit_again(
                msgspec.structs.replace(
                    record,
                    message=message,
                    refs=refs,
                    waits=0,
                    is_suspect=not recipe.retries_left,
                    retries_left=recipe.retries_left,
                    lease=None,
                    is_open=True,
                ),
                deps,
            )
        del held

    def _call_again(self, message: Any) -> tuple[Any, Deps, list[ObjectRef]]:
        """A call's message as it was before its arguments were there."""
        refs = [self._objects.add_ref(*key) for key in _keys(message)]
        if message.more is None:
            return message, [], refs
        values = message.more.deps
        deps = [(place, self._objects.add_ref(*v.holder)) for place, v in values if v.holder is not None]
        inline = [(place, value) for place, value in values if value.holder is None]
        more = msgspec.structs.replace(message.more, deps=inline)
        return msgspec.structs.replace(message, more=more), deps, refs


def _keys(message: messages.Run) -> list[Key]:
    """Every object that the call needs. (What is inside an argument that lives elsewhere comes with that.)"""
    args = message.args.keys() if isinstance(message.args, Value) else []
    deps = [value.refs if value.holder is None else [value.holder] for _, value in message.deps]
    return [*args, *(key for keys in deps for key in keys)]


def _num_bytes(message: messages.Run) -> int:
    args = message.args.data if isinstance(message.args, Value) else message.args
    return len(args) + sum(len(value.data) for _, value in message.deps)
