"""How a process takes part in the cluster: tasks, actor calls, the verbs. The driver and every worker have one.

The client owns the tasks that its process submits: `dispatch` says which worker gets which, `objects` keeps their
results, `io_loop` sends and receives. Calls to an actor go straight to its process, in order.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from rlplat.errors import ConfigError, GetTimeout, NotInitialized, RuntimeFault
from rlplat.runtime import codec, inspection, messages
from rlplat.runtime.actor_calls import ActorCalls
from rlplat.runtime.actors import Actors
from rlplat.runtime.api import TERMINATE, ActorHandle
from rlplat.runtime.awaiting import Awaiting
from rlplat.runtime.backend import Backend, Options, RemoteCode
from rlplat.runtime.cancelling import Cancels
from rlplat.runtime.client_envs import ClientEnvs
from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.dispatch import Lane, Lease, TaskRecord
from rlplat.runtime.io_loop import IoLoop, Patience
from rlplat.runtime.messages import PLAIN_CALL, CallOptions, Shape, Value
from rlplat.runtime.objects import Objects, check_travels
from rlplat.runtime.ownership import Entry
from rlplat.runtime.placement import GroupBook, PlacementGroup, capture_of, group_of, most_leases, shape_of
from rlplat.runtime.rebuilding import Rebuilder
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.retries import (
    History,
    death_error,
    exception_names,
    runs_again_after_death,
    runs_again_after_error,
)
from rlplat.runtime.streams import Streams
from rlplat.runtime.transport import Transport

NODE = "node"
_IDLE_LEASE_S = 0.1
_IDLE_OBJECTS_S = 1.0
_MAX_NAMES = 1000
Deps = list[tuple[int | str, ObjectRef]]
"""Refs among the arguments of a call that stand for their values, by position or keyword."""


class Client:
    can_nest = False
    outer: Backend | None = None

    def __init__(self, session: str, client_id: str, *, spin: bool) -> None:
        self.client_id = client_id
        self.gpu_ids: tuple[int, ...] = ()
        self._session = session
        self._transport = Transport(session, client_id)
        self._loop = IoLoop(self._transport, spin=spin)
        self._lock = self._loop.lock
        self._objects = Objects(client_id, session, self._loop)
        self._tasks: dict[int, TaskRecord] = {}
        self._lanes: dict[Shape, Lane] = {}
        self._touched: dict[Lane, bool] = {}
        self._pace: dict[str, float] = {}
        self._codes: dict[str, messages.Code] = {}
        self._code_refs: dict[str, list[ObjectRef]] = {}
        """What they close over: held, because any worker may need the code later."""
        self._answers: dict[int, messages.Answer] = {}
        self._clusters: dict[int, messages.Cluster] = {}
        self._groups = GroupBook()
        self._total: dict[str, float] = {}
        self.namespace = ""
        self._lost_node: ErrorInfo | None = None
        self.failures: Counter[str] = Counter()
        """Calls that ended in an error, by name."""
        self._streams = Streams(self)
        self._cancels = Cancels(self)
        self._awaiting = Awaiting(self)
        self._envs = ClientEnvs(self._define_env)
        self._actors = Actors(self)
        self._objects.on_freed = self._actors.on_freed
        self._objects.room.patience = lambda: self._patience(None)
        self._objects.room.check = self._check_open
        self._rebuilder = Rebuilder(self._objects, self._submit_again)
        self._running_again = self._rebuilder.under_way
        self._loop.after_frame = self._after_frame
        self._loop.on_tick = self._keep_house
        self._loop.idle_tick_s = self._idle_tick_s
        self._loop.on_lifeline = self._on_node_lost
        self._loop.handlers |= {
            messages.Done: self._on_done,
            messages.DoneFull: lambda sender, m: self._finish(sender, m.task, m.values),
            messages.Pace: lambda _, m: self._pace.update({m.code: m.seconds}),
            messages.GaveBack: self._on_gave_back,
            messages.Farewell: lambda sender, _: self._transport.post(sender, messages.FarewellHeard()),
            messages.Welcome: self._on_welcome,
            messages.Granted: self._on_granted,
            messages.Answer: lambda _, m: self._answers.update({m.request: m}),
            messages.WorkerDied: self._on_worker_died,
            messages.WhoMakes: self._on_who_makes,
            messages.Inspect: lambda sender, m: inspection.answer(self, sender, m),
            messages.EnvFailed: self._on_env_failed,
            messages.LeasesRefused: self._on_leases_refused,
            messages.GroupNews: self._on_group_news,
            messages.Cluster: lambda _, m: self._clusters.update({m.request: m}),
        }
        if "RLPLAT_RECORD_CALLSITES" in os.environ:
            from rlplat.runtime.call_sites import record_call_sites

            record_call_sites(self)

    def start(self) -> None:
        """Join the cluster."""
        with self._lock:
            self._transport.post(NODE, messages.Hello(self.client_id))
            self._wait_until(lambda: bool(self._total), 30, "the node's welcome")
        self._loop.start()

    def nested_opened(self) -> None:
        """Workers override."""

    def use_runtime_env(self, env: dict[str, Any], snapshots: str) -> None:
        """What this process runs in, which what it submits inherits."""
        self._envs.own, self._envs.folder = env, snapshots

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return self._objects.adopt(owner, id)

    # ---------------------------------------------------------------- submitting

    def submit_task(
        self,
        code: RemoteCode,
        args: tuple,
        kwargs: dict,
        options: Options,
        lane: Lane,
        capture: messages.Capture | None,
    ) -> Any:
        key = self._code_key(code)
        name = options.name or code.name
        is_full = capture is not None
        message, deps, refs = self._make_call(args, kwargs, name, options.num_returns, key, "", is_full)
        if is_full:
            message.capture = capture
        with self._lock:
            self._check_open()
            record, out = self._record(message, key, name, options.num_returns, refs)
            record.retries_left = options.max_retries
            record.is_suspect = not options.max_retries
            record.lane = lane
            if options.retry_exceptions:
                record.history = History(exception_names(options.retry_exceptions))
            if options.num_returns < 0 or options.timeout_s is not None:
                out = self._open_special(record, out, options)
            if deps and not self._resolve(record, deps):
                return out
            lane.ready.append(record)
            if lane.is_hungry or len(lane.ready) == 1:
                self._dispatch(lane)
            self._loop.send_soon(len(self._tasks))
        return out

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """`submit_task` for one function and its options: small plain arguments take a short way."""
        name, retries = options.name or code.name, options.max_retries
        lane, key, capture = self._lane(options, name), "", capture_of(options)
        is_plain = (
            options.num_returns == 1
            and options.timeout_s is None
            and options.retry_exceptions is False
            and options.max_retries != 0  # `retries`, rule 4
            and capture is None
        )
        pack, lock, objects, tasks = codec.pack_scalars, self._lock, self._objects, self._tasks
        ids, entries, me, drop = objects.ids, objects.book.entries, self.client_id, objects.drop
        loop, ready, dropped, Run = self._loop, lane.ready, objects.dropped, messages.Run  # noqa: N806  (bound once, for speed)

        def submit(args: tuple, kwargs: dict) -> Any:
            nonlocal key
            data = pack(args) if is_plain and not kwargs else None
            if data is None:
                return self.submit_task(code, args, kwargs, options, lane, capture)
            key = key or self._code_key(code)
            with lock:
                if not loop.is_open:
                    self._check_open()
                if dropped:
                    objects.collect()
                id = next(ids)
                record = tasks[id] = TaskRecord(id, Run(id, key, data), key, name, (id,), None, lane, retries)
                entries[id] = Entry(id)
                ready.append(record)
                if lane.is_hungry or len(ready) == 1:
                    self._dispatch(lane)
                loop.send_soon(len(tasks))
            return ObjectRef(me, id, drop, id)

        return submit

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any:
        data = codec.pack_scalars(args) if options == PLAIN_CALL and not kwargs else None
        if data is not None:
            with self._lock:
                actor = self._actors.find(handle._actor_id)
                if actor is not None and actor.worker is not None and not actor.queue:
                    return self._submit_plain_call(handle, actor, method, data)
        num_returns = options.num_returns
        name = f"{handle._info.class_name}.{method}"
        retries, group = options.max_task_retries, options.concurrency_group  # None or 0 and "" but for few
        if group and group not in handle._info.groups and group != TERMINATE:
            known = ", ".join(map(repr, handle._info.groups)) or "none"
            raise ConfigError(
                f"{name}: there is no concurrency group {group!r} in this actor (its groups: {known})"
            )
        # (A stream is not numbered: after a restart it goes on behind the values that its owner has.)
        is_exactly_once = bool(retries) and handle._info.exactly_once and num_returns > 0
        is_full = is_exactly_once or bool(group)
        message, deps, refs = self._make_call(args, kwargs, name, num_returns, "", method, is_full)
        if handle._creation is not None:
            refs.append(handle._creation)
        with self._lock:
            self._check_open()
            actor = self._actors.find(handle._actor_id) or self._actors.book(handle)
            record, out = self._record(message, "", name, num_returns, refs)
            record.target = handle._actor_id
            if retries:
                record.retries_left = retries
            if group:
                message.group = group
            if num_returns < 0 or options.timeout_s is not None:
                out = self._open_special(record, out, options)
            if deps:
                self._resolve(record, deps)
            if actor.gone is not None:
                if record.id in self._tasks:
                    self._fail(record, actor.gone)
                return out
            self._actors.send(actor, actor.queued(record, is_exactly_once))
            self._loop.send_soon(len(self._tasks))
        return out

    def _submit_plain_call(
        self, handle: ActorHandle, actor: ActorCalls, method: str, data: bytes
    ) -> ObjectRef:
        """The short way of a call with small plain arguments to an actor whose queue is empty (lock held)."""
        if not self._loop.is_open:
            self._check_open()
        objects = self._objects
        if objects.dropped:  # large values that went are room for the next ones
            objects.collect()
        id = next(objects.ids)
        name = actor.names.get(method)
        if name is None:
            name = actor.names[method] = f"{actor.class_name}.{method}"
        record = self._tasks[id] = TaskRecord(id, messages.Call(id, method, data), "", name, (id,), None)
        record.target, record.refs = handle._actor_id, (handle._creation,)
        objects.book.entries[id] = Entry(id)
        actor.in_flight[id] = record
        assert actor.worker is not None
        self._transport.post(actor.worker, record.message)
        self._loop.send_soon(len(self._tasks))
        return ObjectRef(self.client_id, id, objects.drop, id)

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        return self._actors.create(code, args, kwargs, options)

    def _make_call(
        self,
        args: tuple,
        kwargs: dict,
        name: str,
        num_returns: int,
        key: str,
        method: str,
        full: bool = False,
    ) -> tuple[Any, Deps, list[ObjectRef]]:
        """The message of a call, the refs that stand for their values, and all refs to hold until it is done."""
        if not kwargs and num_returns == 1 and not full:
            data = codec.pack_scalars(args)
            if data is not None:
                return (messages.Run(0, key, data) if key else messages.Call(0, method, data)), [], []
        deps: Deps = [(index, arg) for index, arg in enumerate(args) if type(arg) is ObjectRef]
        deps += [(keyword, arg) for keyword, arg in kwargs.items() if type(arg) is ObjectRef]
        if deps:
            places = {place for place, _ in deps}
            args = tuple(None if index in places else arg for index, arg in enumerate(args))
            kwargs = {keyword: None if keyword in places else arg for keyword, arg in kwargs.items()}
        packed = codec.pack((args, kwargs), f"an argument of {name}")
        refs = packed.refs
        if not (deps or refs or full or num_returns != 1 or packed.is_large()):
            return (
                (messages.Run(0, key, packed.data) if key else messages.Call(0, method, packed.data)),
                [],
                refs,
            )
        value = self._objects.make_value(packed, self.client_id)
        if value.segment is not None:
            # Large arguments are an object of ours that lives until the result is here, or as long as views of it do.
            with self._lock:
                refs = [*refs, self._objects.own(value, packed.refs, f"argument of {name}")]
        return (
            messages.RunFull(0, key, method, num_returns, value, []),
            deps,
            [*refs, *(ref for _, ref in deps)],
        )

    def _record(
        self, message: Any, key: str, name: str, num_returns: int, refs: list[ObjectRef]
    ) -> tuple[TaskRecord, Any]:
        """Write the call into the books; its refs."""
        objects = self._objects
        objects.collect()
        ids = (
            tuple(next(objects.ids) for _ in range(num_returns)) if num_returns > 1 else (next(objects.ids),)
        )
        message.task = ids[0]
        record = self._tasks[ids[0]] = TaskRecord(ids[0], message, key, name, ids, refs)
        for id in ids:
            objects.book.add(id)
        if num_returns == 1 or num_returns < 0:
            return record, objects.new_ref(ids[0])
        return record, [objects.new_ref(id) for id in ids]

    def _open_special(self, record: TaskRecord, out: Any, options: Options | CallOptions) -> Any:
        """The call of a generator, or one with a deadline: what its caller gets."""
        if options.timeout_s is not None:
            self._cancels.add_deadline(record, options.timeout_s)
        if options.num_returns < 0:
            out = self._streams.open(record, out, options.num_returns, options.generator_backpressure)
        return out

    def _code_key(self, code: RemoteCode) -> str:
        if code.key is None or code.key not in self._codes:
            codec.dump_code(code)
            assert code.key is not None and code.blob is not None
            check_travels(code.refs)
            keys = [(ref.owner, ref.id) for ref in code.refs]
            self._codes[code.key] = messages.Code(code.key, code.name, code.blob, keys)
            self._code_refs[code.key] = code.refs
        return code.key

    def _lane(self, options: Options, name: str) -> Lane:
        shape = self._shape(options, 1, f"task {name}")
        if shape not in self._lanes:
            most = most_leases(shape, group_of(options), self._total)
            self._lanes[shape] = Lane(shape, most)
        return self._lanes[shape]

    def _shape(self, options: Options, default_cpus: float, who: str) -> Shape:
        """What a task or an actor needs; raises for what could never be met."""
        return shape_of(options, default_cpus, self._total, who, self._envs.key(options))

    # ---------------------------------------------------------------- arguments that are not there yet (lock held)

    def _resolve(self, record: TaskRecord, deps: Deps) -> bool:
        """Put the values of ref arguments into the message as they arrive; True when all are there."""
        record.waits = len(deps)
        is_submitted = False

        def arrived(value: Value, place: int | str, ref: ObjectRef) -> None:
            record.waits -= 1
            if value.error is not None:  # the call fails without running; the first error counts
                if record.id in self._tasks:
                    self._fail_unsent(record, value.error)
                return
            if value.segment is not None:
                value.holder = (ref.owner, ref.id)
            record.message.deps.append((place, value))
            if not record.waits and is_submitted:
                self._on_resolved(record)

        for place, ref in deps:
            self._objects.when_ready(ref, lambda value, place=place, ref=ref: arrived(value, place, ref))  # type: ignore[misc]
        is_submitted = True
        return not record.waits and record.id in self._tasks

    def _on_resolved(self, record: TaskRecord) -> None:
        if record.id in self._tasks:
            if record.lane is not None:
                record.lane.ready.append(record)
                self._dispatch(record.lane)
            else:
                self._actors.advance(record.target)

    def _submit_again(self, record: TaskRecord, deps: Deps) -> None:
        """A call whose result was lost, once more, with the same ids."""
        self._tasks[record.id] = record
        if record.lane is not None:
            if not deps or self._resolve(record, deps):
                record.lane.ready.append(record)
                self._dispatch(record.lane)
            return
        actor = self._actors.find(record.target)
        if deps:
            self._resolve(record, deps)
        if actor is None or actor.gone is not None:
            gone = ErrorInfo("ActorDied", f"the actor that made it ({record.name}) is gone")
            self._fail(record, gone if actor is None or actor.gone is None else actor.gone)
        else:
            self._actors.send(actor, actor.queued(record, False))

    def _fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        if type(record.message) is messages.CreateActor:
            self._transport.post(NODE, messages.EndActor(record.target, "an argument of its failed", True))
            self._actors.on_gone(record.target, error)
        else:
            self._fail(record, error)
            if record.lane is None:
                self._actors.advance(record.target)

    # ---------------------------------------------------------------- sending (lock held)

    def _dispatch(self, lane: Lane) -> None:
        if lane.leases:
            for lease, records in lane.assign(self._pace):
                for record in records:
                    if type(record.message) is messages.Run and record.code_key in lease.known_code:
                        continue
                    self._introduce(lease.worker, lease.known_code, record)
                self._transport.post_all(lease.worker, [record.message for record in records])
        if lane.ready:
            if lane.shape.env in self._envs.failed:
                self._fail_lane(lane, self._envs.failed[lane.shape.env])
                return
            count = lane.leases_to_request()
            if count:
                self._return_leases(0.0, [other for other in self._lanes.values() if other is not lane])
                self._transport.post(NODE, messages.RequestLeases(lane.shape, count))

    def _send_call(self, worker: str, known_code: set[str], record: TaskRecord) -> None:
        self._introduce(worker, known_code, record)
        self._transport.post(worker, record.message)

    def _introduce(self, worker: str, known_code: set[str], record: TaskRecord) -> None:
        """What goes ahead of a call: its code, once, and the news of refs that are lent with it."""
        key = record.code_key
        if key and key not in known_code:
            known_code.add(key)
            self._objects.hand_over(self._codes[key].refs, worker)
            self._transport.post(worker, self._codes[key])
        for value in values_of(record.message):
            self._objects.hand_over(value.keys(), worker)

    # ---------------------------------------------------------------- results (lock held)

    def _after_frame(self) -> None:
        if self._touched:
            lanes, self._touched = self._touched, {}
            for lane in lanes:
                if lane.ready:
                    self._dispatch(lane)
                else:
                    lane.is_hungry = True
                    lease = lane.to_ask_back() if len(self._tasks) > 1 else None
                    if lease is not None:
                        self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    def _on_done(self, sender: str, message: messages.Done) -> None:
        """`_finish` for the common case: small values of tasks that somebody waits for."""
        tasks, entries = self._tasks, self._objects.book.entries
        lane: Lane | None = None
        lease: Lease | None = None
        actor: ActorCalls | None = None
        for id, data in zip(message.tasks, message.data, strict=True):
            record = tasks.get(id)
            if record is None:
                pass
            elif record.lane is None:
                if actor is None:
                    actor = self._actors.find(record.target)
                entry = entries.get(id)
                if (
                    actor is not None
                    and actor.worker == sender
                    and not actor.queue
                    and type(record.message) is messages.Call
                    and entry is not None
                    and entry.num_refs
                    and entry.callbacks is None
                    and actor.in_flight.pop(id, None) is not None
                ):
                    del tasks[id]
                    record.refs = None
                    entry.value = Value(data)
                    continue
            else:
                if record.lane is not lane:
                    lane = record.lane
                    lease = lane.leases.get(sender)
                    if lease is not None:
                        lease.is_stalled = lease.was_asked_back = False
                        self._touched[lane] = True
                entry = entries.get(id)
                if lease is not None and entry is not None and entry.num_refs and entry.callbacks is None:
                    if lease.in_flight.pop(id, None) is not None:
                        del tasks[id]
                        record.refs = None
                        entry.value = Value(data)
                        continue
            self._finish(sender, id, (Value(data),))

    def _finish(self, sender: str, id: int, values: Sequence[Value]) -> None:
        record = self._tasks.get(id)
        if record is None or sender != self._worker_of(record):
            # A late result of an attempt that was given up (R1): refused.
            for value in values:
                if value.segment is not None:
                    self._objects.free_segment(value.segment)
                self._objects.hand_over(value.refs, self.client_id, -1)
            return
        if record.history is not None and values[0].error is not None and record.lane is not None:
            if runs_again_after_error(record, values[0].error):
                record.lane.again(record)
                self._touched[record.lane] = True
                return
        values, inner = self._streams.finish(id, values)
        del self._tasks[id]
        if record.lane is not None:
            lease = record.lane.leases.get(sender)
            if lease is not None:
                lease.in_flight.pop(id, None)
                lease.is_stalled = lease.was_asked_back = False
            self._touched[record.lane] = True
        else:
            values = self._actors.on_replied(record, values)
        self._fill(record, values, inner)
        if values and (len(values) > 1 or values[0].segment is not None):
            self._rebuilder.remember(record, values)

    def _worker_of(self, record: TaskRecord) -> str | None:
        if record.lane is not None:
            return record.target
        actor = self._actors.find(record.target)
        return None if actor is None else actor.worker

    def _fill(
        self, record: TaskRecord, values: Sequence[Value], inner: list[ObjectRef] | None = None
    ) -> None:
        record.refs = None
        if values and values[0].error is not None:
            self.failures[record.name if len(self.failures) < _MAX_NAMES else "(others)"] += 1
        if record.id in self._running_again:
            values = self._rebuilder.finished(record, values)
        for id, value in zip(record.ids, values, strict=True):
            self._objects.fill(id, value, inner)

    def _fail(self, record: TaskRecord, error: ErrorInfo) -> None:
        self._tasks.pop(record.id, None)
        if record.lane is None:
            self._actors.forget_call(record)
        self._fill(record, [Value(error=error) for _ in record.ids])
        self._loop.notify()

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        if sender in self._objects.dead:
            return  # its tasks were queued again when it died
        for id in message.tasks:
            record = self._tasks.get(id)
            if record is not None:
                for value in values_of(record.message):
                    self._objects.hand_over(value.keys(), sender, -1)
        for lane in self._lanes.values():
            if sender in lane.leases:
                lane.gave_back(sender, message.tasks)
                self._touched[lane] = True
        self._cancels.on_gave_back(message.tasks)

    # ---------------------------------------------------------------- news from the node (lock held)

    def _on_welcome(self, sender: str, message: messages.Welcome) -> None:
        self._total.update(message.total)
        self.namespace = message.namespace
        for worker, reason in message.dead.items():
            self._objects.dead.setdefault(worker, reason)

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        lane = self._lanes[message.shape]
        lane.num_requested = max(0, lane.num_requested - 1)
        if message.worker not in self._objects.dead:
            lane.leases[message.worker] = Lease(message.worker)
            lane.is_hungry = True
            self._touched[lane] = True

    def _on_leases_refused(self, sender: str, message: messages.LeasesRefused) -> None:
        lane = self._lanes.get(message.shape)
        if lane is not None:
            lane.num_requested = 0
            records = list(lane.ready)
            lane.ready.clear()
            for record in records:
                error = ErrorInfo(message.error.kind, f"task {record.name}: {message.error.message}")
                self._fail(record, error)

    def _on_group_news(self, sender: str, message: messages.GroupNews) -> None:
        for id, value in self._groups.on_news(message).items():
            self._objects.fill(id, value)
        self._loop.notify()

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        worker, reason = message.worker, message.reason
        if worker in self._objects.dead:
            return
        self._objects.peer_died(worker, reason)
        self._cancels.on_worker_died(worker)

        def runs_again(record: TaskRecord, was_alone: bool) -> bool:
            return runs_again_after_death(record, was_alone, reason, message.kind)

        for lane in self._lanes.values():
            self._touched[lane] = True
            for record in lane.lose(worker, runs_again):
                self._fail(record, death_error(record, worker, reason, message.kind))
        self._loop.notify()

    def _define_env(self, key: str, spec: str) -> None:
        with self._lock:
            self._transport.post(NODE, messages.DefineEnv(key, spec))

    def _on_env_failed(self, sender: str, message: messages.EnvFailed) -> None:
        self._envs.failed[message.key] = message.error
        for lane in self._lanes.values():
            if lane.shape.env == message.key:
                lane.num_requested = 0
                self._fail_lane(lane, message.error)

    def _fail_lane(self, lane: Lane, error: ErrorInfo) -> None:
        """What waits for a worker that there will never be."""
        while lane.ready:
            self._fail(lane.ready.popleft(), error)

    def _on_who_makes(self, sender: str, message: messages.WhoMakes) -> None:
        """The node looks for circles of processes that wait for each other."""
        for id in message.ids:
            record = self._tasks.get(id) or next((r for r in self._tasks.values() if id in r.ids), None)
            if record is None:
                continue
            first = self._actors.head_of_queue(record) or record
            refs = first.refs if first.waits else ()
            waits = [(ref.owner, ref.id) for ref in refs if ref and self._objects.holder(ref).value is None]
            self._transport.post(NODE, messages.Makes(id, self._worker_of(record) or "", record.name, waits))

    def _on_node_lost(self) -> None:
        self._lost_node = ErrorInfo(
            "NodeLost", "the node process of this cluster has ended; what it said last is above, on stderr"
        )
        self._loop.is_open = False
        for record in list(self._tasks.values()):
            self._fail(record, self._lost_node)
        self._awaiting.fail(self._lost_node)
        self._loop.notify()

    # ---------------------------------------------------------------- waiting

    def _wait_until(
        self,
        is_done: Callable[[], bool],
        timeout_s: float | None,
        what: str,
        ref: ObjectRef | None = None,
    ) -> None:
        self._loop.wait_until(is_done, timeout_s, what, self._check_open, self._patience(ref))

    def _patience(self, ref: ObjectRef | None) -> Patience | None:
        """Workers override: the node is told that a task waits, so that its CPUs can be lent."""
        return None

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        me, entries, unpack = self.client_id, self._objects.book.entries, codec.unpack
        deadline = None if timeout is None else time.monotonic() + timeout
        values: list[Any] = []
        for index, ref in enumerate(refs):
            entry = entries.get(ref.id) if ref.owner == me else None
            value = None if entry is None else entry.value
            if value is None:
                value = self._await_value(refs, index, deadline, timeout)
            if value.segment is None and value.error is None:
                values.append(unpack(value.data))
            else:
                values.append(self._objects.open_value(value, ref, deadline))
        return values

    def _await_value(
        self, refs: Sequence[ObjectRef], index: int, deadline: float | None, timeout_s: float | None
    ) -> Value:
        """The value of `refs[index]`; the owners of those behind it are asked for theirs meanwhile."""
        with self._lock:
            holder = self._objects.holder(refs[index])
            if holder.value is None:
                if refs[index].owner != self.client_id:
                    for ref in refs[index + 1 :]:
                        self._objects.holder(ref)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    self._wait_until(lambda: holder.value is not None, left, "", refs[index])
                except GetTimeout:
                    rest = refs[index:]
                    holders = [self._objects.holder(ref) for ref in rest]
                    raise GetTimeout(self._missing(rest, holders, len(refs), timeout_s)) from None
            value = holder.value
            assert value is not None
            return value

    def _missing(
        self, refs: Sequence[ObjectRef], holders: Sequence[Any], num_refs: int, timeout_s: float | None
    ) -> str:
        """What `get` waits for, in words."""
        waiting = [ref for ref, holder in zip(refs, holders, strict=True) if holder.value is None]
        ref = waiting[0]
        record = self._tasks.get(ref.id) if ref.owner == self.client_id else None
        if ref.owner != self.client_id:
            why = f"{ref!r}, which {ref.owner} owns"
        elif record is None:
            why = f"{ref!r}"
        elif record.waits:
            why = f"{record.name}, which waits for {record.waits} of its arguments"
        elif record.lane is not None and not record.target:
            why = f"{record.name}, which waits for a worker with {dict(record.lane.shape.demand)}"
        elif record.lane is None:
            why = f"{record.name}, {self._actors.describe_wait(record)}"
        else:
            why = f"{record.name}, which is with worker {self._worker_of(record)}"
        return f"get() timed out after {timeout_s:g} s: {len(waiting)} of {num_refs} values are missing, first {why}"

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        with self._lock:
            holders = [self._objects.holder(ref) for ref in refs]
            missing = holders
            most_missing = len(holders) - num_returns

            def enough() -> bool:
                nonlocal missing
                missing = [holder for holder in missing if holder.value is None]
                return len(missing) <= most_missing

            try:
                self._wait_until(enough, timeout, "")
            except GetTimeout:
                pass
            ready: list[ObjectRef] = []
            rest: list[ObjectRef] = []
            for ref, holder in zip(refs, holders, strict=True):
                (ready if holder.value is not None and len(ready) < num_returns else rest).append(ref)
        return ready, rest

    def future(self, ref: ObjectRef) -> Future[Any]:
        return self._awaiting.future_of(ref)

    def value_of(self, ref: ObjectRef) -> Coroutine[Any, Any, Any]:
        return self._awaiting.value_of(ref)

    def _on_await_cancelled(self, ref: ObjectRef) -> None:
        """Workers override: a cancelled call of an async actor cancels what it awaits."""

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        self._cancels.cancel(ref, force, recursive)

    def exit_actor(self) -> None:
        raise TypeError("rlplat.exit_actor() is for the methods of an actor; this process is no actor")

    # ---------------------------------------------------------------- other verbs

    def put(self, value: Any) -> ObjectRef:
        packed = codec.pack(value, "the value of rlplat.put")
        made = self._objects.make_value(packed, self.client_id)
        with self._lock:
            self._check_open()
            self._objects.collect()
            return self._objects.own(made, packed.refs)

    def kill(self, handle: ActorHandle, no_restart: bool) -> None:
        self._actors.kill(handle, no_restart)

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle:
        return self._actors.get(name, namespace)

    def actor_names(self, all_namespaces: bool) -> list[tuple[str, str]]:
        return self._actors.names(all_namespaces)

    def cluster(self) -> messages.Cluster:
        with self._lock:
            self._check_open()
            request = next(self._objects.ids)
            self._transport.post(NODE, messages.AskCluster(request))
            self._wait_until(lambda: request in self._clusters, None, "the node's answer")
            return self._clusters.pop(request)

    def create_group(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
    ) -> PlacementGroup:
        with self._lock:
            self._check_open()
            group = PlacementGroup(f"{self.client_id}:g{next(self._objects.ids)}", bundles, strategy, name)
            self._transport.post(
                NODE, messages.CreateGroup(group.id, list(bundles), strategy, name, is_detached)
            )
        # Once this is answered the node knows the group: the handle may travel, and news of it cannot be early.
        self.resources(available=False)
        return group

    def group_ready(self, group: PlacementGroup) -> ObjectRef:
        value = Value(codec.pack(group).data)
        with self._lock:
            self._check_open()
            self._objects.collect()
            id = next(self._objects.ids)
            self._objects.book.add(id)
            ask = self._groups.wait_for(group.id, id, value)
            if ask is not None:
                self._transport.post(NODE, ask)
                self._loop.send_now()
            return self._objects.new_ref(id)

    def remove_group(self, group: PlacementGroup) -> None:
        with self._lock:
            self._check_open()
            self._transport.post(NODE, messages.RemoveGroup(group.id))
            self._loop.send_now()

    def resources(self, available: bool) -> dict[str, float]:
        return self._ask(lambda request: messages.AskResources(request, available)).amounts

    def _ask(self, make: Callable[[int], Any]) -> messages.Answer:
        with self._lock:
            self._check_open()
            request = next(self._objects.ids)
            self._transport.post(NODE, make(request))
            self._wait_until(lambda: request in self._answers, None, "the node's answer")
            return self._answers.pop(request)

    def _check_open(self) -> None:
        if self._loop.is_closed:
            raise NotInitialized("the runtime was shut down")
        if self._lost_node is not None:
            raise codec.to_exception(self._lost_node)
        if self._loop.failure is not None:
            raise RuntimeFault(
                f"the runtime's I/O thread in {self.client_id} failed (this is a bug of rlplat; its traceback is on "
                f"stderr): {self._loop.failure!r}"
            ) from self._loop.failure

    def _idle_tick_s(self) -> float | None:
        """How soon to look after the house when nothing comes in: leases and dropped refs must not lie about."""
        if any(lane.leases for lane in self._lanes.values()):
            tick_s: float | None = _IDLE_LEASE_S
        else:
            tick_s = _IDLE_OBJECTS_S if self._objects.has_any() else None
        next_s = self._cancels.next_s()
        return tick_s if next_s is None else min(next_s, tick_s or next_s)

    def _keep_house(self) -> None:
        """Every few milliseconds while there is life, else when an idle lease may be due."""
        self._objects.collect()
        self._streams.collect()
        self._cancels.tick()
        self._return_leases(_IDLE_LEASE_S, self._lanes.values())

    def _return_leases(self, idle_s: float, lanes: Iterable[Lane]) -> None:
        now = time.monotonic()
        for lane in lanes:
            for lease in lane.idle_leases(now, idle_s):
                del lane.leases[lease.worker]
                self._transport.post(NODE, messages.ReturnLease(lease.worker))

    def close(self) -> None:
        self._awaiting.close()
        self._loop.close()
        with self._lock:
            self._objects.close()
            for record in self._tasks.values():
                record.refs = None


def values_of(message: Any) -> list[Value]:
    """The values that travel with a call."""
    if type(message) is messages.Run or type(message) is messages.Call:
        return []
    return [message.args, *(value for _, value in message.deps)]
