"""The calls that this process has made and has no result of, tasks and actor calls alike: submitted, sent, ended.

Where one waits until it is sent is its queue, which judges: the `Lane` of its shape, where tasks wait for leased
workers, or the `ActorCalls` of its actor. The book has each call, at the objects that it is to make. Everything here
but `submitter`, `make`, `code_key` and `code_message` is called with the client's lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from rlplat.errors import SerializationError
from rlplat.runtime.client.objects import Objects, check_travels
from rlplat.runtime.client.questions import ClientEnvs
from rlplat.runtime.client.reading import Rebuilder
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.core.owner.actor_calls import ActorCalls
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.deadlines import Pending
from rlplat.runtime.core.owner.lanes import MOST_CODES, Lane, Lease, TaskRecord
from rlplat.runtime.core.owner.retries import (
    History,
    death_error,
    exception_names,
    runs_again_after_death,
    runs_again_after_error,
)
from rlplat.runtime.demand import capture_of, group_of, most_leases, shape_of
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.options import Options
from rlplat.runtime.process.signals import is_of_handler
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Shape, Value, encodable

IDLE_LEASE_S = 0.1
_MAX_NAMES = 1000
_MOST_PACES = 10_000
Deps = list[tuple[int | str, ObjectRef]]
"""Refs among the arguments of a call that stand for their values, by position or keyword."""


class Calls:
    def __init__(
        self,
        link: Link,
        objects: Objects,
        streams: Streams,
        envs: ClientEnvs,
        not_made: Callable[[TaskRecord, ErrorInfo], ErrorInfo],
    ) -> None:
        """`not_made`: told of the error that an actor's constructor has ended in; says what its calls get."""
        self.num_open = 0
        self.failures: Counter[str] = Counter()
        """Calls that ended in an error, by name."""
        self.pending = Pending()
        """Deadlines, and calls that are to end: see `cancels`."""
        self.touched: dict[Any, bool] = {}
        """Queues where something has changed since the last frame."""
        self.rebuilder = Rebuilder(objects, self._submit_again)
        self._lanes: WeakValueDictionary[Shape, Lane] = WeakValueDictionary()
        """All that a function, with its options, or a task refers to."""
        self._busy: dict[Lane, None] = {}
        """Those that have tasks or leases, or have asked for some."""
        self._pace: dict[str, float] = {}
        self._looked_at = 0.0
        """When leases were last looked through."""
        self._link, self._loop, self._transport, self._clock = link, link.loop, link.transport, link.clock
        self._objects, self._book, self._streams = objects, objects.book, streams
        self._envs, self._not_made = envs, not_made
        link.on(messages.Done, self._on_done)
        link.on(messages.WhoMakes, self._on_who_makes)
        link.on(messages.Pace, self._on_pace)
        link.on(messages.GaveBack, self._on_gave_back)
        link.on(messages.Granted, self._on_granted)
        link.on(messages.LeasesRefused, self._on_leases_refused)
        link.on(messages.EnvFailed, self._on_env_failed)
        link.after_frame(self.go_on)
        link.chore(self._return_idle_leases, self._idle_leases_s)
        link.at_end(self._fail_all)

    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    # ---------------------------------------------------------------- submitting

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """What submits a task of this function, with these options."""
        name, num_returns, retries = options.name or code.name, options.num_returns, options.max_retries
        lane, key, label, capture = self._lane(options, name), "", options.name or "", capture_of(options)
        exceptions = exception_names(options.retry_exceptions)
        has_more = num_returns not in (0, 1) or bool(label or capture)
        is_special = num_returns != 1 or options.timeout_s is not None or bool(exceptions)
        pack, objects, entries, ready = codec.pack_scalars, self._objects, self._book.entries, lane.ready
        take_lock, release_lock, loop = self._loop.lock.take, self._loop.lock.release, self._loop
        ids, me, drop, dropped = objects.ids, self._link.client_id, objects.drop, objects.dropped
        Run = messages.Run  # noqa: N806  (bound once, as all of these: for speed)

        def submit(args: tuple, kwargs: dict) -> Any:
            nonlocal key
            key = key or self.code_key(code)
            data, deps, refs = None if has_more or kwargs else pack(args), None, None
            if data is not None:
                run = Run(0, key, "", data)
            else:
                more = None
                if has_more:
                    more = messages.More(num_returns or 1, label=label, capture=capture)
                run, deps, refs = self.make(args, kwargs, name, key, "", more)
            take_lock()
            try:
                if not loop.is_open:
                    self._link.check_open()
                if dropped:  # large values that went are room for the next ones
                    objects.collect()
                run.task = id = next(ids)
                # (rule 4 of `retries`: without retries it runs alone)
                record = TaskRecord(id, run, code, name, (id,), refs, lane, retries, None, 0, True, not retries)
                entries[id] = Entry(id, 1, record)
                self.num_open += 1
                out: Any = ObjectRef(me, id, drop, id)
                if is_special:
                    window = options.generator_backpressure
                    out = self.specialize(record, out, num_returns, exceptions, options.timeout_s, window)
                if not deps or self.resolve(record, deps):
                    ready.append(record)
                    if lane.is_hungry or len(ready) == 1:
                        self.dispatch(lane)
                loop.send_soon(self.num_open)
                return out
            finally:
                release_lock()

        return submit

    def _lane(self, options: Options, name: str) -> Lane:
        total = self._link.total
        shape = shape_of(options, 1, total, f"task {name}", self._envs.key(options))
        lane = self._lanes.get(shape)
        if lane is None:
            lane = self._lanes[shape] = Lane(shape, most_leases(shape, group_of(options), total))
        return lane

    def cluster_has(self, total: dict[str, float]) -> None:
        """A machine has joined, or is lost."""
        self._link.total = total
        for shape, lane in list(self._lanes.items()):
            if not shape.group:
                lane.max_leases = most_leases(shape, None, total)
                if lane.ready:
                    self.dispatch(lane)

    def make(
        self, args: tuple, kwargs: dict, name: str, key: str, method: str, more: messages.More | None
    ) -> tuple[messages.Run, Deps, list[ObjectRef]]:
        """The message of a call, the refs that stand for their values, and all refs to hold until it is done."""
        deps: Deps = [(index, arg) for index, arg in enumerate(args) if type(arg) is ObjectRef]
        deps += [(keyword, arg) for keyword, arg in kwargs.items() if type(arg) is ObjectRef]
        if deps:
            more, places = more or messages.More(), {place for place, _ in deps}
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
            value = self._objects.make_value(packed, self._link.client_id)
        return messages.Run(0, key, method, value, more), deps, [*refs, *(ref for _, ref in deps)]

    def specialize(
        self,
        record: TaskRecord,
        ref: ObjectRef,
        num_returns: int,
        exceptions: bool | frozenset[str],
        timeout_s: float | None,
        window: int,
    ) -> Any:
        """What few calls have: retries of exceptions, a deadline, a generator, several results or none that anybody
        gets. Returns what their caller gets."""
        if exceptions:
            record.history = History(exceptions)
        if num_returns > 1:
            record.ids = (record.id, *(next(self._objects.ids) for _ in range(num_returns - 1)))
            for id in record.ids[1:]:
                self._book.add(id).call = record
        if timeout_s is not None:
            self.pending.forget_finished(self._book.call)
            if self.pending.add_deadline(record.id, self._clock() + timeout_s, timeout_s):
                self._loop.wake()
        if num_returns < 0:
            return self._streams.open(record, ref, num_returns, window)
        if num_returns > 1:
            return [ref, *(self._objects.new_ref(id) for id in record.ids[1:])]
        return ref if num_returns else None

    def open(self, record: TaskRecord) -> None:
        """Write it into the book."""
        self.num_open += 1
        for id in record.ids:
            entry = self._book.find(id)
            if entry is not None:
                entry.call = record
            else:
                self._book.entries[id] = Entry(id, 0, record)

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
            if not record.is_open:
                return
            if value.error is not None:  # the call fails without running; the first error counts
                self.fail_unsent(record, value.error)
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
                self.fail_unsent(record, ErrorInfo("SerializationError", str(error)))
                return
            if is_submitted:
                record.queue.resolved(record)
                self.dispatch(record.queue)

        for place, ref in deps:
            self._objects.when_ready(ref, lambda value, place=place, ref=ref: arrived(value, place, ref))  # type: ignore[misc]
        is_submitted = True
        return not record.waits and record.is_open

    def _submit_again(self, record: TaskRecord, deps: Deps) -> None:
        """A call whose result was lost, once more, with the same ids."""
        self.open(record)
        if deps:
            self.resolve(record, deps)
        if record.is_open and isinstance(record.queue, ActorCalls) and record.queue.gone is not None:
            self.fail(record, record.queue.gone)
        elif record.is_open:
            record.queue.queued(record)
            self.dispatch(record.queue)

    # ---------------------------------------------------------------- sending

    def dispatch(self, queue: Lane | ActorCalls) -> None:
        """Send what workers have room for; ask for leases for the tasks that are left."""
        for lease, records in queue.assign(self._pace):
            for record in records:
                run = record.message
                is_known = not run.code or run.code in lease.known_code
                if not is_known or run.more is not None or type(run.args) is not bytes:
                    self._introduce(lease, record)
            self._transport.post_all(lease.worker, [record.message for record in records])
        if isinstance(queue, Lane):
            self._busy[queue] = None
            if queue.ready:
                self._ask_for_leases(queue)

    def _introduce(self, lease: Lease, record: TaskRecord) -> None:
        """What goes ahead of a call: its code, once, and the news of refs that are lent with it."""
        code, known = record.code, lease.known_code
        if code is not None and code.key not in known:
            if len(known) >= MOST_CODES:
                known.clear()
            known.add(code.key)
            message = self.code_message(code)
            self._objects.hand_over(message.refs, lease.worker)
            self._transport.post(lease.worker, message)
        for value in record.message.values():
            self._objects.hand_over(value.keys(), lease.worker)

    def go_on(self) -> None:
        """Calls for those who have become free, then whatever is to be sent."""
        if self.touched:
            queues, self.touched = self.touched, {}
            for queue in queues:
                if isinstance(queue, ActorCalls):
                    if queue.queue:
                        self.dispatch(queue)
                elif queue.ready:
                    self.dispatch(queue)
                else:
                    queue.is_hungry = True
                    lease = queue.to_ask_back() if self.num_open > 1 else None
                    if lease is not None:
                        self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    def _on_who_makes(self, sender: str, message: messages.WhoMakes) -> None:
        """The node looks for circles of processes that wait for each other."""
        for id in message.ids:
            record = self._book.call(id)
            if record is None:
                continue
            worker, first = record.queue.waits_for(record)
            refs = first.refs if first.waits else ()
            waits = [(ref.owner, ref.id) for ref in refs if ref and self._objects.holder(ref).value is None]
            self._transport.post(NODE, messages.Makes(id, worker, record.name, waits))

    # ---------------------------------------------------------------- results

    def _on_done(self, sender: str, message: messages.Done) -> None:
        if len(message.tasks) != len(message.results):
            raise ValueError(f"{len(message.results)} results of {len(message.tasks)} tasks")
        entry_of, last, raised = self._book.entries.get, None, None
        for id, result in zip(message.tasks, message.results, strict=True):
            entry = entry_of(id)
            record = None if entry is None else entry.call
            # The common case: a small value of a call that somebody waits for.
            if record is not None and type(result) is bytes and entry.value is None:  # type: ignore[union-attr]
                lease = record.lease
                if (
                    lease is not None
                    and lease.worker == sender
                    and entry.num_refs  # type: ignore[union-attr]
                    and entry.callbacks is None  # type: ignore[union-attr]
                ):
                    del lease.in_flight[id]
                    self.num_open -= 1
                    record.is_open = False
                    entry.call, entry.value = None, Value(result)  # type: ignore[union-attr]
                    if lease is not last:
                        last, self.touched[record.queue] = lease, True
                        lease.is_stalled = lease.was_asked_back = False
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
        record = self._book.call(id)
        if record is None or sender != record.worker:
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
        error = values[-1].error
        if record.history is not None:
            if self._streams.runs_again(record) if error is None else runs_again_after_error(record, error):
                self._refuse(sender, values)
                record.queue.again(record)
                self.touched[record.queue] = True
                return
        if error is not None and record.message.creation is not None:
            # No restart: what the constructor raised once it would raise again.
            record.lease.remove(record)  # type: ignore[union-attr]
            values = [Value(error=self._not_made(record, error))]
        values, inner = self._streams.finish(record, values)
        self.end(record, values, inner, sender)
        if values and (len(values) > 1 or values[0].segment is not None):
            self.rebuilder.remember(record, values)

    def _refuse(self, sender: str, values: Sequence[Value]) -> None:
        """Give back what came with values that nobody gets."""
        for value in values:
            if value.segment is not None:
                self._objects.free_segment(value.segment)
            self._objects.receive(value.refs, sender)

    def end(
        self,
        record: TaskRecord,
        values: Sequence[Value],
        inner: list[ObjectRef] | None = None,
        sender: str = "",
    ) -> None:
        """A call has ended with these values, for whoever waits (`inner`, `sender`: see `Objects.fill`)."""
        if values and values[-1].error is not None:
            self.failures[record.name if len(self.failures) < _MAX_NAMES else "(others)"] += 1
        values = self.rebuilder.finished(record, values)
        self.forget(record)
        for id, value in zip(record.ids, values, strict=True):
            self._objects.fill(id, value, inner, sender)

    def forget(self, record: TaskRecord) -> None:
        """It is under way no more."""
        if record.is_open:
            record.is_open = False
            self.num_open -= 1
        record.refs = None
        if record.lease is not None:
            record.lease.remove(record)
        self.touched[record.queue] = True
        self._book.ended(record.ids)

    def fail(self, record: TaskRecord, error: ErrorInfo) -> None:
        """The call has no result."""
        self.end(record, [Value(error=error) for _ in record.ids])
        self._loop.notify()

    def fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        """It fails, and has not left this process; those behind it go on."""
        if record.message.creation is not None:
            error = self._not_made(record, error)
        if record.is_open:
            self.fail(record, error)
        if isinstance(record.queue, ActorCalls):
            self.dispatch(record.queue)

    def close(self) -> None:
        """Nobody waits any more: what the calls hold goes."""
        for record in self._book.calls():
            record.refs = record.lease = record.queue = None
        for lane in self.lanes():
            lane.ready.clear()

    def _fail_all(self, error: ErrorInfo) -> None:
        for record in self._book.calls():
            try:
                self.fail(record, error)
            except Exception:
                if self._loop.failure is None:
                    raise  # else the books may be half written

    # ---------------------------------------------------------------- leases and workers

    def _ask_for_leases(self, lane: Lane) -> None:
        failure = self._envs.failed.get(lane.shape.env)
        if failure is not None:
            self._fail_lane(lane, failure)
            return
        count = lane.leases_to_request()
        if count:
            self._return_leases(0.0, [other for other in self._busy if other is not lane])
            self._transport.post(NODE, messages.RequestLeases(lane.shape, count))

    def _idle_leases_s(self) -> float:
        for lane in self._busy:
            if lane.leases:
                return self._looked_at + IDLE_LEASE_S - self._clock()
        return NEVER

    def _return_idle_leases(self) -> None:
        self._looked_at = self._clock()
        self._return_leases(IDLE_LEASE_S, self._busy)
        for lane in [lane for lane in self._busy if lane.is_done()]:
            del self._busy[lane]

    def _return_leases(self, idle_s: float, lanes: Iterable[Lane]) -> None:
        now = self._clock()
        for lane in lanes:
            for lease in lane.idle_leases(now, idle_s):
                del lane.leases[lease.worker]
                self._transport.post(NODE, messages.ReturnLease(lease.worker))

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        lane = self._lanes.get(message.shape)
        if lane is None:  # nobody has asked
            self._transport.post(NODE, messages.ReturnLease(message.worker))
            return
        lane.num_requested = max(0, lane.num_requested - 1)
        if message.worker not in self._objects.dead:
            self._busy[lane] = None
            lane.leases[message.worker] = Lease(message.worker)
            lane.is_hungry = True
            self.touched[lane] = True

    def _on_leases_refused(self, sender: str, message: messages.LeasesRefused) -> None:
        lane = self._lanes.get(message.shape)
        if lane is not None:
            lane.num_requested = 0
            self._fail_lane(lane, message.error, "task {}: ")

    def _on_env_failed(self, sender: str, message: messages.EnvFailed) -> None:
        self._envs.failed[message.key] = message.error
        for lane in list(self._busy):
            if lane.shape.env == message.key:
                lane.num_requested = 0
                self._fail_lane(lane, message.error)

    def _fail_lane(self, lane: Lane, error: ErrorInfo, begin: str = "") -> None:
        """What waits for a worker that there will never be."""
        records = [record for record in lane.ready if record.is_open]
        lane.ready.clear()
        for record in records:
            self.fail(record, ErrorInfo(error.kind, begin.format(record.name) + error.message))

    def _on_pace(self, sender: str, message: messages.Pace) -> None:
        self._pace.pop(message.code, None)
        self._pace[message.code] = message.seconds
        if len(self._pace) > _MOST_PACES:
            del self._pace[next(iter(self._pace))]

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        if sender in self._objects.dead:
            return  # its tasks were queued again when it died
        theirs = [record for id in message.tasks if (record := self._book.call(id)) and self._is_with(sender, record)]
        for record in theirs:
            for value in record.message.values():
                self._objects.hand_over(value.keys(), sender, -1)
        for lane in self._busy:
            lease = lane.lease_of(sender)
            if lease is not None:
                lane.gave_back(sender, message.tasks, message.forgotten)
                if message.is_worn and not lease.in_flight and sender in lane.leases:
                    del lane.leases[sender]
                    self._transport.post(NODE, messages.ReturnLease(sender, is_worn=True))
                self.touched[lane] = True
        for record in theirs:  # unbegun: one that is to end does so here
            stopping = self.pending.stopping.pop(record.id, None)
            if stopping is not None:
                self.fail_unsent(record, stopping.error)

    def _is_with(self, worker: str, record: TaskRecord) -> bool:
        return record.worker == worker and record.queue.kind == "task"

    def on_worker_died(self, worker: str, reason: str, kind: str) -> None:
        """Its tasks run again, or fail."""
        for stopping in self.pending.with_worker(worker):
            # (What becomes of an actor's calls is said by the node's news of the actor.)
            if stopping.record.is_open and self._is_with(worker, stopping.record):
                self.fail(stopping.record, stopping.error)
        for lane in list(self._busy):
            self.touched[lane] = True
            has_limit = bool(lane.shape.memory)

            def runs_again(record: TaskRecord, was_alone: bool, has_limit: bool = has_limit) -> bool:
                return runs_again_after_death(record, was_alone, reason, kind, has_limit)

            for record in lane.lose(worker, runs_again):
                self.fail(record, death_error(record, worker, reason, kind))
