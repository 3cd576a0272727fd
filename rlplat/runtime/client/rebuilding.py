"""Lost bytes are made again: the shell around `lineage`, at the owner of the lost object. The loop's lock is held.

A reader that finds a segment missing tells the object's owner (`BytesLost`), which runs the task again, and those
before it whose results are gone as well. Meanwhile the object is as it was before the task ended: whoever asks waits.
What cannot be made again has an error as its value from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlplat.runtime.client.objects import Objects
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.core.owner.lineage import Broken, Recipe
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import ErrorInfo, Key, Value

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
        """Somebody found that this segment of one of our objects is missing."""
        objects = self._objects
        entry = objects.book.find(id)
        value = None if entry is None else entry.value
        if value is None or value.segment is None or value.segment.name != segment:
            return  # it is being made already, or was
        if objects.is_there(id):
            return  # it has moved while the reader looked
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
            text = (
                f"{what}, and {me}:{broken.id}, which it takes to make it again, is gone too: {broken.reason}"
            )
            error = ErrorInfo("ObjectRebuildFailed", text)
        self._objects.forget_bytes(id)
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
