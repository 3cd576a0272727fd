"""How a process takes part in the cluster: tasks, actor calls, the verbs. The driver and every worker have one.

The client owns the tasks that its process submits: `dispatch` says which worker gets which, `objects` keeps their
results, `io_loop` sends and receives. Calls to an actor go straight to its process, in order.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from rlplat.errors import ActorDied, GetTimeout, NotInitialized, RuntimeFault
from rlplat.runtime import codec, inspection, messages
from rlplat.runtime.api import ActorHandle, methods_of
from rlplat.runtime.backend import Options, RemoteCode
from rlplat.runtime.client_envs import ClientEnvs
from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.dispatch import Lane, Lease, TaskRecord
from rlplat.runtime.io_loop import IoLoop, Patience
from rlplat.runtime.messages import ActorInfo, CallOptions, Shape, Value
from rlplat.runtime.objects import Objects
from rlplat.runtime.ownership import Entry
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.resources import check_feasible
from rlplat.runtime.transport import Transport

NODE = "node"
_IDLE_LEASE_S = 0.1
_IDLE_OBJECTS_S = 1.0
_MAX_NAMES = 1000
Deps = list[tuple[int | str, ObjectRef]]
"""Refs among the arguments of a call that stand for their values, by position or keyword."""


class _Actor:
    """What this process knows of an actor that it calls."""

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self.worker: str | None = None
        self.gone: ErrorInfo | None = None
        self.queue: deque[TaskRecord] = deque()
        """Calls that wait for the actor's address or for an argument; order is kept."""
        self.in_flight: dict[int, TaskRecord] = {}
        self.known_code: set[str] = set()


class Client:
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
        self._actors: dict[str, _Actor] = {}
        self._pace: dict[str, float] = {}
        self._codes: dict[str, messages.Code] = {}
        self._answers: dict[int, messages.Answer] = {}
        self._total: dict[str, float] = {}
        self._lost_node: ErrorInfo | None = None
        self.failures: Counter[str] = Counter()
        """Calls that ended in an error, by name."""
        self._envs = ClientEnvs(self._define_env)
        self._objects.on_freed = self._on_freed
        self._loop.after_frame = self._after_frame
        self._loop.on_tick = self._keep_house
        self._loop.idle_tick_s = self._idle_tick_s
        self._loop.on_lifeline = self._on_node_lost
        self._loop.handlers |= {
            messages.Done: self._on_done,
            messages.DoneFull: lambda sender, m: self._finish(sender, m.task, m.values),
            messages.Pace: lambda _, m: self._pace.update({m.code: m.seconds}),
            messages.GaveBack: self._on_gave_back,
            messages.Welcome: self._on_welcome,
            messages.Granted: self._on_granted,
            messages.Placed: self._on_placed,
            messages.ActorGone: lambda _, m: self._on_actor_gone(m.actor, m.error),
            messages.Answer: lambda _, m: self._answers.update({m.request: m}),
            messages.WorkerDied: self._on_worker_died,
            messages.Inspect: lambda sender, m: inspection.answer(self, sender, m),
            messages.EnvFailed: self._on_env_failed,
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

    def use_runtime_env(self, env: dict[str, Any], snapshots: str) -> None:
        """What this process runs in, which what it submits inherits."""
        self._envs.own, self._envs.folder = env, snapshots

    def adopt(self, owner: str, id: int) -> ObjectRef:
        return self._objects.adopt(owner, id)

    # ---------------------------------------------------------------- submitting

    def submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options, lane: Lane) -> Any:
        key = self._code_key(code)
        name = options.name or code.name
        message, deps, refs = self._make_call(args, kwargs, name, options.num_returns, key, "")
        with self._lock:
            self._check_open()
            record, out = self._record(message, key, name, options.num_returns, refs)
            record.retries_left = options.max_retries
            record.lane = lane
            if deps and not self._resolve(record, deps):
                return out
            self._queue(lane, record)
        return out

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """`submit_task` for one function and its options: small plain arguments take a short way."""
        name, retries = options.name or code.name, options.max_retries
        lane, key = self._lane(options, name), ""
        is_plain = (
            options.num_returns == 1 and options.timeout_s is None and options.retry_exceptions is False
        )
        pack, lock, objects, tasks = codec.pack_scalars, self._lock, self._objects, self._tasks
        ids, entries, me, drop = objects.ids, objects.book.entries, self.client_id, objects.drop

        def submit(args: tuple, kwargs: dict) -> Any:
            nonlocal key
            data = pack(args) if is_plain and not kwargs else None
            if data is None:
                return self.submit_task(code, args, kwargs, options, lane)
            key = key or self._code_key(code)
            with lock:
                if not self._loop.is_open:
                    self._check_open()
                id = next(ids)
                record = tasks[id] = TaskRecord(
                    id, messages.Run(id, key, data), key, name, (id,), None, lane, retries
                )
                entries[id] = Entry(id)
                self._queue(lane, record)
            return ObjectRef(me, id, drop, id)

        return submit

    def _queue(self, lane: Lane, record: TaskRecord) -> None:
        """A task that could run now (lock held)."""
        lane.ready.append(record)
        if lane.is_hungry or len(lane.ready) == 1:
            self._dispatch(lane)
        self._loop.send_soon(len(self._tasks))

    def submit_call(
        self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, options: CallOptions
    ) -> Any:
        num_returns = options.num_returns
        name = f"{handle._info.class_name}.{method}"
        message, deps, refs = self._make_call(args, kwargs, name, num_returns, "", method)
        refs.append(handle._creation)
        with self._lock:
            self._check_open()
            actor = self._actors.get(handle._actor_id)
            if actor is None:
                actor = self._actors[handle._actor_id] = _Actor(handle._info.class_name)
                self._transport.post(NODE, messages.FindActor(handle._actor_id))
            record, out = self._record(message, "", name, num_returns, refs)
            record.target = handle._actor_id
            if deps:
                self._resolve(record, deps)
            if actor.gone is not None:
                self._fail(record, actor.gone)
                return out
            actor.queue.append(record)
            self._advance(actor)
            self._loop.send_soon(len(self._tasks))
        return out

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        key = self._code_key(code)
        demand = options.demand(default_cpus=0)
        check_feasible(demand, self._total, f"actor {code.name}")
        call, deps, refs = self._make_call(
            args, kwargs, f"{code.name}.__init__", 1, key, "__init__", full=True
        )
        shape = Shape(tuple(sorted(demand.items())), options.memory, self._envs.key(options))
        info = ActorInfo(code.name, methods_of(code.target), options.max_task_retries, options.exactly_once)
        with self._lock:
            self._check_open()
            message = messages.CreateActor(0, key, "", options.max_concurrency or 0, call.args, call.deps)
            record, ref = self._record(message, key, code.name, 1, refs)
            actor_id = record.target = message.actor = f"{self.client_id}:{record.id}"
            actor = self._actors[actor_id] = _Actor(code.name)
            actor.queue.append(record)
            self._transport.post(NODE, messages.PlaceActor(actor_id, info, shape, options.name or ""))
            if deps:
                self._resolve(record, deps)
            self._loop.send_now()
            if options.name is not None:  # a taken name is the caller's error, here and now
                self._wait_until(lambda: bool(actor.worker or actor.gone), None, "the actor's name")
                if actor.gone is not None and actor.gone.kind == "ConfigError":
                    raise codec.to_exception(actor.gone)
        return ActorHandle(actor_id, info, ref)

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
        if not (deps or refs or full or num_returns > 1 or packed.is_large()):
            return (
                (messages.Run(0, key, packed.data) if key else messages.Call(0, method, packed.data)),
                [],
                refs,
            )
        value = self._objects.make_value(packed, self.client_id)
        if value.segment is not None:
            # Large arguments are an object of ours that lives until the result is here, or as long as views of it do.
            with self._lock:
                refs = [*refs, self._objects.own(value, packed.refs)]
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
        if num_returns == 1:
            return record, objects.new_ref(ids[0])
        return record, [objects.new_ref(id) for id in ids]

    def _code_key(self, code: RemoteCode) -> str:
        if code.key is None or code.key not in self._codes:
            codec.dump_code(code)
            assert code.key is not None and code.blob is not None
            self._codes[code.key] = messages.Code(code.key, code.name, code.blob)
        return code.key

    def _lane(self, options: Options, name: str) -> Lane:
        demand = options.demand(default_cpus=1)
        check_feasible(demand, self._total, f"task {name}")
        shape = Shape(
            tuple(sorted(demand.items())),
            options.memory,
            self._envs.key(options),
            can_retry=options.max_retries != 0,
        )
        if shape not in self._lanes:
            fits = [int(self._total[resource] / amount) for resource, amount in demand.items()]
            most = min(fits, default=int(self._total.get("CPU", 1)))
            self._lanes[shape] = Lane(shape, max(1, most))
        return self._lanes[shape]

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
                self._advance(self._actors[record.target])

    def _fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        actor = self._actors.get(record.target) if record.lane is None else None
        if type(record.message) is messages.CreateActor:
            self._transport.post(NODE, messages.EndActor(record.target, "an argument of its failed", True))
            self._on_actor_gone(record.target, error)
        else:
            self._fail(record, error)
            if actor is not None:
                self._advance(actor)

    # ---------------------------------------------------------------- sending (lock held)

    def _dispatch(self, lane: Lane) -> None:
        if lane.leases:
            for lease, record in lane.assign(self._pace):
                self._send_call(lease.worker, lease.known_code, record)
        if lane.ready:
            if lane.shape.env in self._envs.failed:
                self._fail_lane(lane, self._envs.failed[lane.shape.env])
                return
            count = lane.leases_to_request()
            if count:
                self._return_leases(0.0, [other for other in self._lanes.values() if other is not lane])
                self._transport.post(NODE, messages.RequestLeases(lane.shape, count))

    def _send_call(self, worker: str, known_code: set[str], record: TaskRecord) -> None:
        key = record.code_key
        if key and key not in known_code:
            known_code.add(key)
            self._transport.post(worker, self._codes[key])
        for value in _values_of(record.message):
            self._objects.hand_over(value.keys(), worker)
        self._transport.post(worker, record.message)

    def _advance(self, actor: _Actor) -> None:
        """Send an actor's queued calls as far as their arguments are there."""
        if actor.worker is None:
            return
        queue = actor.queue
        while queue and (not queue[0].waits or queue[0].id not in self._tasks):
            record = queue.popleft()
            if record.id in self._tasks:
                actor.in_flight[record.id] = record
                self._send_call(actor.worker, actor.known_code, record)

    # ---------------------------------------------------------------- results (lock held)

    def _after_frame(self) -> None:
        if self._touched:
            lanes, self._touched = self._touched, {}
            for lane in lanes:
                self._dispatch(lane)
                lease = lane.to_ask_back()
                if lease is not None:
                    self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    def _on_done(self, sender: str, message: messages.Done) -> None:
        """`_finish` for the common case: small values of tasks that somebody waits for."""
        tasks, entries = self._tasks, self._objects.book.entries
        lane: Lane | None = None
        lease: Lease | None = None
        for id, data in zip(message.tasks, message.data, strict=True):
            record = tasks.get(id)
            if record is not None and record.lane is not None:
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
        del self._tasks[id]
        if record.lane is not None:
            lease = record.lane.leases.get(sender)
            if lease is not None:
                lease.in_flight.pop(id, None)
                lease.is_stalled = lease.was_asked_back = False
            self._touched[record.lane] = True
        else:
            self._actors[record.target].in_flight.pop(id, None)
            error = values[0].error
            if type(record.message) is messages.CreateActor and error is not None:
                what = f"actor {record.name} could not be created: {error.message}"
                gone = ErrorInfo("ActorDied", what, error.exception)
                self._transport.post(NODE, messages.EndActor(record.target, gone.message, True))
                self._on_actor_gone(record.target, gone)
                values = (Value(error=gone),)
        self._fill(record, values)

    def _worker_of(self, record: TaskRecord) -> str | None:
        if record.lane is not None:
            return record.target
        actor = self._actors.get(record.target)
        return None if actor is None else actor.worker

    def _fill(self, record: TaskRecord, values: Sequence[Value]) -> None:
        record.refs = None
        if values and values[0].error is not None:
            self.failures[record.name if len(self.failures) < _MAX_NAMES else "(others)"] += 1
        for id, value in zip(record.ids, values, strict=True):
            self._objects.fill(id, value)

    def _fail(self, record: TaskRecord, error: ErrorInfo) -> None:
        self._tasks.pop(record.id, None)
        self._fill(record, [Value(error=error) for _ in record.ids])
        self._loop.notify()

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        if sender in self._objects.dead:
            return  # its tasks were queued again when it died
        for id in message.tasks:
            record = self._tasks.get(id)
            if record is not None:
                for value in _values_of(record.message):
                    self._objects.hand_over(value.keys(), sender, -1)
        for lane in self._lanes.values():
            if sender in lane.leases:
                lane.gave_back(sender, message.tasks)
                self._touched[lane] = True

    # ---------------------------------------------------------------- news from the node (lock held)

    def _on_welcome(self, sender: str, message: messages.Welcome) -> None:
        self._total.update(message.total)
        for worker in message.dead:
            self._objects.dead.setdefault(worker, "it died before this process came")

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        lane = self._lanes[message.shape]
        lane.num_requested = max(0, lane.num_requested - 1)
        if message.worker not in self._objects.dead:
            lane.leases[message.worker] = Lease(message.worker)
            lane.is_hungry = True
            self._touched[lane] = True

    def _on_placed(self, sender: str, message: messages.Placed) -> None:
        actor = self._actors.get(message.actor)
        if actor is not None and actor.gone is None:
            actor.worker = message.worker
            self._advance(actor)
            self._loop.notify()

    def _on_actor_gone(self, actor_id: str, error: ErrorInfo) -> None:
        actor = self._actors.get(actor_id)
        if actor is None or actor.gone is not None:
            return
        actor.gone, actor.worker = error, None
        lost = [*actor.in_flight.values(), *actor.queue]
        actor.in_flight.clear()
        actor.queue.clear()
        for record in lost:
            if record.id in self._tasks:
                self._fail(record, error)
        self._loop.notify()

    def _on_freed(self, entry: Entry) -> None:
        """Nobody needs the object any more; when it stood for an actor's handles, the actor may go."""
        actor_id = f"{self.client_id}:{entry.id}"
        actor = self._actors.pop(actor_id, None)
        if actor is not None and actor.gone is None:
            self._transport.post(NODE, messages.EndActor(actor_id, "its last handle is gone", False))

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        worker, reason = message.worker, message.reason
        if worker in self._objects.dead:
            return
        self._objects.peer_died(worker, reason)
        for lane in self._lanes.values():
            self._touched[lane] = True
            for record in lane.lose(worker):
                text = f"task {record.name}: its worker {worker} died and no retries are left: {reason}"
                self._fail(record, ErrorInfo(message.kind, text))
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

    def _on_node_lost(self) -> None:
        self._lost_node = ErrorInfo(
            "NodeLost", "the node process of this cluster has ended; what it said last is above, on stderr"
        )
        self._loop.is_open = False
        for record in list(self._tasks.values()):
            self._fail(record, self._lost_node)
        self._loop.notify()

    # ---------------------------------------------------------------- waiting

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        self._loop.wait_until(is_done, timeout_s, what, self._check_open, self._patience())

    def _patience(self) -> Patience | None:
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
                values.append(self._objects.open_value(value, ref))
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
                    self._wait_until(lambda: holder.value is not None, left, "")
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
        elif self._worker_of(record) is None:
            why = f"{record.name}, whose actor waits for its resources"
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
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def open_it(value: Value) -> None:
            try:
                future.set_result(self._objects.open_value(value, ref))
            except BaseException as error:
                future.set_exception(error)

        def settle(value: Value) -> None:
            # The lock is held here, and opening a value takes it.
            threading.Thread(target=open_it, args=(value,), daemon=True).start()

        with self._lock:
            self._objects.when_ready(ref, settle)
            self._loop.send_now()
        return future

    # ---------------------------------------------------------------- other verbs

    def put(self, value: Any) -> ObjectRef:
        packed = codec.pack(value, "the value of rlplat.put")
        made = self._objects.make_value(packed, self.client_id)
        with self._lock:
            self._check_open()
            self._objects.collect()
            return self._objects.own(made, packed.refs)

    def kill(self, handle: ActorHandle) -> None:
        actor_id, reason = handle._actor_id, "it was killed by rlplat.kill"
        with self._lock:
            self._check_open()
            self._actors.setdefault(actor_id, _Actor(handle._info.class_name))
            self._transport.post(NODE, messages.EndActor(actor_id, reason, True))
            self._loop.send_now()
            text = f"actor {handle._info.class_name} is gone: {reason}"
            self._on_actor_gone(actor_id, ErrorInfo("ActorDied", text))

    def get_actor(self, name: str, namespace: str | None) -> ActorHandle:
        answer = self._ask(lambda request: messages.AskByName(request, name))
        if answer.error is not None:
            raise ActorDied(answer.error.message)
        assert answer.info is not None
        owner, id = answer.actor.rsplit(":", 1)
        with self._lock:
            creation = self._objects.borrow_from(owner, int(id))
            self._loop.send_now()
        return ActorHandle(answer.actor, answer.info, creation)

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
            return _IDLE_LEASE_S
        return _IDLE_OBJECTS_S if self._objects.has_any() else None

    def _keep_house(self) -> None:
        """Every few milliseconds while there is life, else when an idle lease may be due."""
        self._objects.collect()
        self._return_leases(_IDLE_LEASE_S, self._lanes.values())

    def _return_leases(self, idle_s: float, lanes: Iterable[Lane]) -> None:
        now = time.monotonic()
        for lane in lanes:
            for lease in lane.idle_leases(now, idle_s):
                del lane.leases[lease.worker]
                self._transport.post(NODE, messages.ReturnLease(lease.worker))

    def close(self) -> None:
        self._loop.close()
        with self._lock:
            self._objects.close()
            for record in self._tasks.values():
                record.refs = None


def _values_of(message: Any) -> list[Value]:
    """The values that travel with a call."""
    if type(message) is messages.Run or type(message) is messages.Call:
        return []
    return [message.args, *(value for _, value in message.deps)]
