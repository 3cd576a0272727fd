"""The calls that this process has made and has no result of, tasks and actor calls alike: what they carry, what they
wait for, how they end.

How one finds its worker is the affair of its route: of `tasks`, or of `actors`. Everything here but
`make`, `code_key` and `code_message` is called with the client's lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlplat.errors import SerializationError
from rlplat.runtime.client.objects import Objects, check_travels
from rlplat.runtime.client.rebuilding import Rebuilder
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.core.owner.lanes import MOST_CODES, TaskRecord
from rlplat.runtime.core.owner.retries import runs_again_after_error
from rlplat.runtime.core.owner.route import Route
from rlplat.runtime.link.link import Link
from rlplat.runtime.process.signals import is_of_handler
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Value, encodable

_MAX_NAMES = 1000
Deps = list[tuple[int | str, ObjectRef]]
"""Refs among the arguments of a call that stand for their values, by position or keyword."""


class Calls:
    def __init__(self, link: Link, objects: Objects, streams: Streams) -> None:
        self.records: dict[int, TaskRecord] = {}
        """By the id of their first return value."""
        self.failures: Counter[str] = Counter()
        """Calls that ended in an error, by name."""
        self.rebuilder = Rebuilder(objects, self._submit_again)
        self._objects, self._streams = objects, streams
        self._client_id, self._loop, self._transport = link.client_id, link.loop, link.transport
        self._running_again = self.rebuilder.under_way
        link.on(messages.Done, self._on_done)
        link.on(messages.WhoMakes, self._on_who_makes)
        link.at_end(self._fail_all)

    # ---------------------------------------------------------------- making

    def make(
        self,
        args: tuple,
        kwargs: dict,
        name: str,
        num_returns: int,
        key: str,
        method: str,
        more: messages.More | None = None,
    ) -> tuple[messages.Run, Deps, list[ObjectRef]]:
        """The message of a call, the refs that stand for their values, and all refs to hold until it is done."""
        more = None if more is None and num_returns in (0, 1) else more or messages.More()
        if more is not None:
            more.num_returns = num_returns or 1  # a result that nobody gets is sent, and dropped by its owner
        deps: Deps = [(index, arg) for index, arg in enumerate(args) if type(arg) is ObjectRef]
        deps += [(keyword, arg) for keyword, arg in kwargs.items() if type(arg) is ObjectRef]
        if deps:
            more = more or messages.More()
            places = {place for place, _ in deps}
            args = tuple(None if index in places else arg for index, arg in enumerate(args))
            kwargs = {keyword: None if keyword in places else arg for keyword, arg in kwargs.items()}
        packed = codec.pack((args, kwargs), f"an argument of {name}")
        refs = packed.refs
        value: bytes | Value = packed.data
        if packed.is_large():
            # Large arguments are an object of ours that lives until the result is here, or as long as views of it do.
            value, ref = self._objects.make(packed, f"argument of {name}")
            refs = [*refs, ref]
        elif refs:
            value = self._objects.make_value(packed, self._client_id)
        return messages.Run(0, key, method, value, more), deps, [*refs, *(ref for _, ref in deps)]

    def record(
        self, message: Any, code: RemoteCode | None, name: str, num_returns: int, refs: list[ObjectRef]
    ) -> tuple[TaskRecord, Any]:
        """Write the call into the books; what its caller gets: a ref, a list of them, or None."""
        objects = self._objects
        objects.collect()
        ids = (
            tuple(next(objects.ids) for _ in range(num_returns)) if num_returns > 1 else (next(objects.ids),)
        )
        message.task = ids[0]
        record = self.records[ids[0]] = TaskRecord(ids[0], message, code, name, ids, refs)
        for id in ids:
            objects.book.add(id)
        refs_out = [objects.new_ref(id) for id in ids]
        if num_returns == 0:
            return record, None
        return record, refs_out if num_returns > 1 else refs_out[0]

    def code_key(self, code: RemoteCode) -> str:
        """What workers know this function or class by; pickled at its first use."""
        codec.dump_code(code)
        assert code.key is not None
        check_travels(code.refs)
        return code.key

    def code_message(self, code: RemoteCode) -> messages.Code:
        assert code.key is not None and code.blob is not None
        keys = [(ref.owner, ref.id) for ref in code.refs]
        return messages.Code(code.key, encodable(code.name), code.blob, keys, code.max_calls)

    # ---------------------------------------------------------------- arguments that are not there yet

    def resolve(self, record: TaskRecord, deps: Deps) -> bool:
        """Put the values of ref arguments into the message as they arrive; True when all are there."""
        record.waits = len(deps)
        is_submitted = False

        def arrived(value: Value, place: int | str, ref: ObjectRef) -> None:
            if value.error is not None:  # the call fails without running; the first error counts
                if record.id in self.records:
                    record.route.fail_unsent(record, value.error)
                return
            record.waits -= 1
            if value.segment is not None:
                value.holder = (ref.owner, ref.id)
            values = record.message.deps
            values.append((place, value))
            if record.waits:
                return
            try:
                way_out = "Join them: a value of 64 KiB or more goes through the object store."
                what = f"the arguments of {record.name}"
                codec.check_fits(what, (len(each.data) for _, each in values), way_out)
            except SerializationError as error:
                if record.id in self.records:
                    record.route.fail_unsent(record, ErrorInfo("SerializationError", str(error)))
                return
            if is_submitted:
                self._on_resolved(record)

        for place, ref in deps:
            self._objects.when_ready(ref, lambda value, place=place, ref=ref: arrived(value, place, ref))  # type: ignore[misc]
        is_submitted = True
        return not record.waits and record.id in self.records

    def _on_resolved(self, record: TaskRecord) -> None:
        if record.id in self.records:
            record.route.resolved(record)

    def _submit_again(self, record: TaskRecord, deps: Deps) -> None:
        """A call whose result was lost, once more, with the same ids."""
        self.records[record.id] = record
        if deps:
            self.resolve(record, deps)
        record.route.rebuild(record)

    # ---------------------------------------------------------------- on the way

    def introduce(self, worker: str, known_code: set[str], record: TaskRecord) -> None:
        """What goes ahead of a call: its code, once, and the news of refs that are lent with it."""
        code = record.code
        if code is not None and code.key not in known_code:
            if len(known_code) >= MOST_CODES:
                known_code.clear()
            known_code.add(code.key)
            message = self.code_message(code)
            self._objects.hand_over(message.refs, worker)
            self._transport.post(worker, message)
        for value in record.message.values():
            self._objects.hand_over(value.keys(), worker)

    def _on_who_makes(self, sender: str, message: messages.WhoMakes) -> None:
        """The node looks for circles of processes that wait for each other."""
        for id in message.ids:
            record = self.records.get(id) or next((r for r in self.records.values() if id in r.ids), None)
            if record is None:
                continue
            worker, first = record.route.waits_for(record)
            refs = first.refs if first.waits else ()
            waits = [(ref.owner, ref.id) for ref in refs if ref and self._objects.holder(ref).value is None]
            self._transport.post(NODE, messages.Makes(id, worker, record.name, waits))

    # ---------------------------------------------------------------- results

    def _on_done(self, sender: str, message: messages.Done) -> None:
        """`finish` for the common case: small values of tasks that somebody waits for."""
        tasks, entries = self.records, self._objects.book.entries
        route: Route | None = None
        in_flight: dict[int, TaskRecord] | None = None
        if len(message.tasks) != len(message.results):
            raise ValueError(f"{len(message.results)} results of {len(message.tasks)} tasks")
        raised: Exception | None = None
        for id, result in zip(message.tasks, message.results, strict=True):
            record = tasks.get(id)
            if record is not None and type(result) is bytes:
                if record.route is not route:
                    route = record.route
                    in_flight = route.in_flight(record, sender)
                entry = entries.get(id)
                if (
                    in_flight is not None
                    and entry is not None
                    and entry.num_refs
                    and entry.callbacks is None
                    and in_flight.pop(id, None) is not None
                ):
                    del tasks[id]
                    record.refs = None
                    entry.value = Value(result)
                    continue
            try:
                self.finish(sender, id, [Value(result)] if isinstance(result, bytes) else result)
            except Exception as error:  # which is this result's alone: the others that came with it count
                raised = raised or error
        if raised is not None:
            raise raised

    def finish(self, sender: str, id: int, values: Sequence[Value]) -> None:
        """The result of a call, from the worker that it was sent to, or an old one. One that cannot be taken in, by a
        fault of ours, becomes an error of who waits for it."""
        record = self.records.get(id)
        if record is None or sender != record.route.sent_to(record):
            # A late result of an attempt that was given up (R1): refused.
            self._refuse(sender, values)
            return
        try:
            self._take_in(sender, record, values)
        except Exception as error:
            if not is_of_handler(error):
                text = f"{record.name}: its result could not be taken in: {type(error).__name__}: {error}"
                self.fail(record, ErrorInfo("RuntimeFault", text))
            raise

    def _take_in(self, sender: str, record: TaskRecord, values: Sequence[Value]) -> None:
        if len(values) != len(record.ids):
            # A fault of that worker: it must not end this process's I/O thread.
            self._refuse(sender, values)
            text = f"{record.name}: worker {sender} replied with {len(values)} values instead of {len(record.ids)}"
            values = [Value(error=ErrorInfo("RuntimeFault", text)) for _ in record.ids]
        if record.history is not None and values[-1].error is not None:
            if runs_again_after_error(record, values[-1].error):
                self._refuse(sender, values)
                record.route.again(record)
                return
        elif record.history is not None and self._streams.runs_again(record.id):
            record.route.again(record)
            return
        values, inner = self._streams.finish(record.id, values)
        del self.records[record.id]
        values = record.route.finished(record, sender, values)
        self.fill(record, values, inner, sender)
        if values and (len(values) > 1 or values[0].segment is not None):
            self.rebuilder.remember(record, values)

    def _refuse(self, sender: str, values: Sequence[Value]) -> None:
        """Give back what came with values that nobody gets."""
        for value in values:
            if value.segment is not None:
                self._objects.free_segment(value.segment)
            self._objects.receive(value.refs, sender)

    def fill(
        self,
        record: TaskRecord,
        values: Sequence[Value],
        inner: list[ObjectRef] | None = None,
        sender: str = "",
    ) -> None:
        """The values of a call that has ended, for whoever waits (`inner`, `sender`: see `Objects.fill`)."""
        record.refs = None
        if values and values[-1].error is not None:
            self.failures[record.name if len(self.failures) < _MAX_NAMES else "(others)"] += 1
        if record.id in self._running_again:
            values = self.rebuilder.finished(record, values)
        for id, value in zip(record.ids, values, strict=True):
            self._objects.fill(id, value, inner, sender)

    def fail(self, record: TaskRecord, error: ErrorInfo) -> None:
        """The call has no result."""
        self.records.pop(record.id, None)
        record.route.failed(record)
        self.fill(record, [Value(error=error) for _ in record.ids])
        self._loop.notify()

    def close(self) -> None:
        """Nobody waits any more: what the calls hold goes."""
        for record in self.records.values():
            record.refs = None

    def _fail_all(self, error: ErrorInfo) -> None:
        for record in list(self.records.values()):
            try:
                self.fail(record, error)
            except Exception:
                if self._loop.failure is None:
                    raise  # else the books may be half written
