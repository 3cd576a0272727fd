"""How a process takes part in the cluster: the shell around `ownership` and `dispatch`. Driver and workers each have one.

Threads. Everything is guarded by one lock. Only one thread at a time, the leader, waits for input, and it does so
without the lock:
  - a thread that waits in `get` or `wait` leads itself: no hand-over on the way of a reply;
  - when nobody waits, the background thread leads: it answers fetches, fails over, retries;
  - for a while after a user thread was here the background thread only ticks, so that a loop of calls and
    gets never meets it.
Sending never waits for the leader: whoever has something to send takes the lock and sends it.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rlplat.errors import ActorDied, GetTimeout, NotInitialized
from rlplat.runtime import codec, messages
from rlplat.runtime.api import ActorHandle, methods_of
from rlplat.runtime.backend import Options, RemoteCode
from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.dispatch import Lane, Lease, TaskRecord
from rlplat.runtime.messages import Value
from rlplat.runtime.ownership import Book, Entry
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.resources import check_feasible
from rlplat.runtime.store import Store
from rlplat.runtime.transport import Transport

_SPIN_S = 60e-6
_TICK_S = 0.005
_STANDBY_S = 0.02
_IDLE_LEASE_S = 0.1
_BLOCKED_AFTER_S = 0.002
_FRAME_MESSAGES = 64
_NODE = "node"


class _Borrow:
    """An object of another process, of which this one has copies of the ref."""

    __slots__ = ("callbacks", "handed", "inner", "num_refs", "value", "was_asked")

    def __init__(self) -> None:
        self.num_refs = 0
        self.handed = 0
        self.value: Value | None = None
        self.was_asked = False
        self.inner: Any = None
        self.callbacks: list[Any] | None = None


class _Actor:
    """What this process knows of an actor that it calls."""

    __slots__ = ("class_name", "gone", "in_flight", "known_code", "num_ahead", "queue", "worker")

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self.worker: str | None = None
        self.gone: ErrorInfo | None = None
        self.queue: deque[TaskRecord] = deque()
        """Calls that wait for the actor's address or for an argument; order is kept."""
        self.in_flight: dict[int, TaskRecord] = {}
        self.known_code: set[str] = set()


class Client:
    def __init__(self, session: str, client_id: str, *, spin: bool, on_node_lost: Callable[[], None]) -> None:
        self.client_id = client_id
        self.gpu_ids: tuple[int, ...] = ()
        self._session = session
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._background_wakes = threading.Condition(self._lock)
        self._transport = Transport(session, client_id)
        self._store = Store(session, client_id)
        self._book = Book()
        self._borrows: dict[messages.Key, _Borrow] = {}
        self._dropped: deque[tuple[str, int]] = deque()
        self._ids = itertools.count(1)
        self._tasks: dict[int, TaskRecord] = {}
        self._lanes: dict[tuple[tuple[str, float], ...], Lane] = {}
        self._actors: dict[str, _Actor] = {}
        self._pace: dict[str, float] = {}
        self._codes: dict[str, messages.Code] = {}
        self._answers: dict[int, messages.Answer] = {}
        self._dead: dict[str, str] = {}
        self._total: dict[str, float] = {}
        self._spin_s = _SPIN_S if spin else 0.0
        self._on_node_lost = on_node_lost
        self._touched: dict[Lane, bool] | None = None
        self.is_closed = False
        self._lost_node: ErrorInfo | None = None

        self._has_leader = False
        self._num_users = 0
        self._last_use = 0.0
        self._background_waits = False
        self._background_sleeps = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._transport.fd, select.POLLIN)
        self._poller.register(self._wake_fd, select.POLLIN)
        self._lifeline: int | None = None

        self._handlers: dict[type, Callable[[str, Any], None]] = {
            messages.Done: self._on_done,
            messages.DoneFull: self._on_done_full,
            messages.Pace: self._on_pace,
            messages.GaveBack: self._on_gave_back,
            messages.Fetch: self._on_fetch,
            messages.Fetched: self._on_fetched,
            messages.Lent: lambda _, m: self._lend_own(m.id, m.borrower, m.count),
            messages.Returned: lambda sender, m: self._book.returned(m.id, sender, m.count),
            messages.FreeSegments: lambda _, m: [self._store.free(name) for name in m.names],
            messages.Welcome: lambda _, m: self._total.update(m.total),
            messages.Granted: self._on_granted,
            messages.Placed: self._on_placed,
            messages.ActorGone: lambda _, m: self._on_actor_gone(m.actor, m.error),
            messages.Answer: lambda _, m: self._answers.update({m.request: m}),
            messages.WorkerDied: self._on_worker_died,
        }
        self._background = threading.Thread(target=self._run_background, name="rlplat-io", daemon=True)

    def start(self, lifeline: int | None = None) -> None:
        """Join the cluster. `lifeline`: a pipe that ends when the node does."""
        if lifeline is not None:
            self._lifeline = lifeline
            self._poller.register(lifeline, select.POLLIN)
        with self._lock:
            self._transport.post(_NODE, messages.Hello(self.client_id))
            self._transport.flush()
            self._wait_until(lambda: bool(self._total), 30, "the node's welcome")
        self._background.start()

    # ---------------------------------------------------------------- refs

    def _new_ref(self, id: int) -> ObjectRef:
        return ObjectRef(self.client_id, id, self._dropped.append)

    def adopt(self, owner: str, id: int) -> ObjectRef:
        """A ref came out of a value that this thread unpickles."""
        with self._lock:
            return self._adopt(owner, id)

    def _adopt(self, owner: str, id: int) -> ObjectRef:
        if owner == self.client_id:
            entry = self._book.find(id)
            if entry is not None:
                entry.num_refs += 1
                return self._new_ref(id)
            return ObjectRef(owner, id, _ignore)
        borrow = self._borrows.get((owner, id))
        if borrow is None:
            borrow = self._borrows[(owner, id)] = _Borrow()
        borrow.num_refs += 1
        return ObjectRef(owner, id, self._dropped.append)

    def _receive_refs(self, keys: list[messages.Key]) -> list[ObjectRef] | None:
        """Refs that were handed over inside a value: account for the hand-over, hold them."""
        if not keys:
            return None
        refs = []
        for owner, id in keys:
            refs.append(self._adopt(owner, id))
            if owner != self.client_id:
                self._borrows[(owner, id)].handed += 1
            else:
                self._book.returned(id, self.client_id, 1)
        return refs

    def _hand_over(self, keys: Sequence[messages.Key], peer: str) -> None:
        """Refs are about to travel to `peer` inside a value."""
        for owner, id in keys:
            if owner == self.client_id:
                self._book.lend(id, peer)
            elif owner not in self._dead:
                self._transport.post(owner, messages.Lent(id, peer, 1))

    def _lend_own(self, id: int, borrower: str, count: int) -> None:
        if borrower not in self._dead:
            self._book.lend(id, borrower, count)

    def _collect(self) -> None:
        """Act on refs that were garbage-collected and on objects that nobody needs."""
        dropped, me = self._dropped, self.client_id
        while dropped:
            owner, id = dropped.popleft()
            if owner == me:
                self._book.unref(id)
            else:
                borrow = self._borrows[(owner, id)]
                borrow.num_refs -= 1
                if not borrow.num_refs:
                    del self._borrows[(owner, id)]
                    if borrow.handed and owner not in self._dead:
                        self._transport.post(owner, messages.Returned(id, borrow.handed))
        freed = self._book.freed
        while freed:
            entry = freed.popleft()
            value: Value = entry.value
            entry.inner = None
            if value.segment is not None:
                self._free_segment(value.segment)
            actor = self._actors.get(f"{me}:{entry.id}")
            if actor is not None:
                self._release_actor(f"{me}:{entry.id}", actor)

    def _free_segment(self, segment: messages.Segment) -> None:
        if segment.creator == self.client_id:
            self._store.free(segment.name)
        elif segment.creator not in self._dead:
            self._transport.post(segment.creator, messages.FreeSegments([segment.name]))

    # ---------------------------------------------------------------- packing values

    def _make_value(self, value: Any, what: str, owner: str) -> tuple[Value, list[ObjectRef]]:
        """Packed inline or into shared memory that `owner` will free; the refs in it (to be held meanwhile)."""
        packed = codec.pack(value, what)
        keys = [(ref.owner, ref.id) for ref in packed.refs]
        if packed.buffers or len(packed.data) > codec.OUT_OF_BAND_BYTES:
            with self._lock:
                segment = self._store.write(packed, owner)
            return Value(b"", segment, keys), packed.refs
        return Value(packed.data, None, keys), packed.refs

    def _open_value(self, value: Value, ref: ObjectRef) -> Any:
        if value.error is not None:
            raise codec.to_exception(value.error)
        if value.segment is None:
            return codec.unpack(value.data)
        # The views need a ref of their own: `ref` may be the caller's last.
        return self._store.read(value.segment, self.adopt(ref.owner, ref.id))

    # ---------------------------------------------------------------- submitting

    def submit_task(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> Any:
        key = code.key if code.key in self._codes else self._code_key(code)
        assert key is not None
        name = options.name or code.name
        num_returns = options.num_returns
        data = codec.pack_scalars(args) if not kwargs and num_returns == 1 else None
        deps: list[tuple[int | str, ObjectRef]] = []
        refs: list[ObjectRef] | None = None
        if data is None:
            message, deps, refs = self._pack_call(args, kwargs, name, num_returns, key, "")
        else:
            message = messages.Run(0, key, data)
        with self._lock:
            self._check_open()
            lane = self._lane(options, name)
            record, out = self._record(message, key, name, num_returns, refs)
            record.retries_left = options.max_retries
            record.lane = lane
            if deps and not self._resolve_deps(record, deps):
                return out
            lane.ready.append(record)
            if len(lane.ready) == 1 or lane.has_idle():
                self._dispatch(lane)
            self._send_soon()
        return out

    def submit_call(self, handle: ActorHandle, method: str, args: tuple, kwargs: dict, num_returns: int) -> Any:
        name = f"{handle._class_name}.{method}"
        data = codec.pack_scalars(args) if not kwargs and num_returns == 1 else None
        if data is None:
            message, deps, refs = self._pack_call(args, kwargs, name, num_returns, "", method)
            refs.append(handle._creation)
        else:
            message, deps, refs = messages.Call(0, method, data), [], [handle._creation]
        with self._lock:
            self._check_open()
            record, out = self._record(message, "", name, num_returns, refs)
            record.target = handle._actor_id
            actor = self._actor(handle._actor_id, handle._class_name)
            if deps:
                self._resolve_deps(record, deps)
            if actor.gone is not None:
                self._fail(record, actor.gone)
                return out
            actor.queue.append(record)
            self._advance_actor(actor)
            self._send_soon()
        return out

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        key = self._code_key(code)
        check_feasible(options.demand(0), self._total, f"actor {code.name}")
        message, deps, refs = self._pack_call(args, kwargs, f"{code.name}.__init__", 1, key, "__init__")
        if not isinstance(message, messages.RunFull):
            message = messages.RunFull(0, key, "__init__", 1, Value(message.args), [])
        methods = methods_of(code.target)
        with self._lock:
            self._check_open()
            record, ref = self._record(message, key, code.name, 1, refs)
            actor_id = f"{self.client_id}:{record.id}"
            created = messages.CreateActor(
                record.id, key, actor_id, options.max_concurrency, message.args, message.deps
            )
            record.message, record.target = created, actor_id
            actor = self._actor(actor_id, code.name, find=False)
            if deps:
                self._resolve_deps(record, deps)
            actor.queue.append(record)
            self._transport.post(
                _NODE,
                messages.PlaceActor(actor_id, code.name, options.demand(0), options.name or "", methods),
            )
            self._transport.flush()
            if options.name is not None:  # a taken name is the caller's error, here and now
                self._wait_until(lambda: actor.worker is not None or actor.gone is not None, None, "the actor's name")
                if actor.gone is not None and actor.gone.kind == "ConfigError":
                    raise codec.to_exception(actor.gone)
        return ActorHandle(actor_id, code.name, methods, ref)

    def _pack_call(
        self, args: tuple, kwargs: dict, name: str, num_returns: int, code_key: str, method: str
    ) -> tuple[Any, list[tuple[int | str, ObjectRef]], list[ObjectRef]]:
        """The message for a call, the refs among its arguments that stand for their values, all refs to hold."""
        deps: list[tuple[int | str, ObjectRef]] = []
        for index, arg in enumerate(args):
            if type(arg) is ObjectRef:
                deps.append((index, arg))
        for keyword, arg in kwargs.items():
            if type(arg) is ObjectRef:
                deps.append((keyword, arg))
        if deps:
            places = {place for place, _ in deps}
            args = tuple(None if index in places else arg for index, arg in enumerate(args))
            kwargs = {keyword: None if keyword in places else arg for keyword, arg in kwargs.items()}
        packed = codec.pack((args, kwargs), f"an argument of {name}")
        refs = packed.refs
        if not deps and not refs and num_returns == 1 and not packed.buffers and len(packed.data) <= 65536:
            if method:
                return messages.Call(0, method, packed.data), deps, refs
            return messages.Run(0, code_key, packed.data), deps, refs
        keys = [(ref.owner, ref.id) for ref in refs]
        if packed.buffers or len(packed.data) > codec.OUT_OF_BAND_BYTES:
            # A large argument is an object of ours that lives until the result is here.
            with self._lock:
                segment = self._store.write(packed, self.client_id)
                entry = self._book.add(next(self._ids))
                entry.value, entry.inner = Value(b"", segment, keys, None, (self.client_id, entry.id)), refs
            refs = [*refs, self._new_ref(entry.id)]
            value = entry.value
        else:
            value = Value(packed.data, None, keys)
        message = messages.RunFull(0, code_key, method, num_returns, value, [])
        return message, deps, [*refs, *(ref for _, ref in deps)]

    def _record(
        self, message: Any, code_key: str, name: str, num_returns: int, refs: list[ObjectRef] | None
    ) -> tuple[TaskRecord, Any]:
        if self._dropped:
            self._collect()
        id = next(self._ids)
        message.task = id
        ids = (id,) if num_returns == 1 else (id, *(next(self._ids) for _ in range(num_returns - 1)))
        record = TaskRecord(id, message, code_key, name, ids, refs)
        self._tasks[id] = record
        for each in ids:
            self._book.add(each)
        if num_returns == 1:
            return record, self._new_ref(id)
        return record, [self._new_ref(each) for each in ids]

    def _code_key(self, code: RemoteCode) -> str:
        if code.key is None or code.key not in self._codes:
            codec.dump_code(code)
            assert code.key is not None and code.blob is not None
            self._codes[code.key] = messages.Code(code.key, code.name, code.blob)
        return code.key

    def _lane(self, options: Options, name: str) -> Lane:
        cached = options.__dict__.get("_lane")
        if cached is not None and cached[0] is self:
            lane: Lane = cached[1]
            return lane
        demand = options.demand(default_cpus=1)
        check_feasible(demand, self._total, f"task {name}")
        shape = tuple(sorted(demand.items()))
        if shape not in self._lanes:
            fits = [int(self._total[k] / v) for k, v in demand.items()]
            self._lanes[shape] = Lane(demand, max(1, min(fits, default=int(self._total.get("CPU", 1)) or 1)))
        options.__dict__["_lane"] = (self, self._lanes[shape])
        return self._lanes[shape]

    def _resolve_deps(self, record: TaskRecord, deps: list[tuple[int | str, ObjectRef]]) -> bool:
        """Put the values of ref arguments into the message as they arrive; True when all are there."""
        for place, ref in deps:

            def arrived(value: Value, place: int | str = place, ref: ObjectRef = ref) -> None:
                if value.segment is not None:
                    value.holder = (ref.owner, ref.id)
                record.message.deps.append((place, value))
                record.waits -= 1
                if value.error is not None:
                    # A failed argument fails the task without running it; the first error counts.
                    if record.id in self._tasks:
                        self._fail_before_start(record, value.error)
                    return
                if not record.waits and is_later:
                    self._on_deps_ready(record)

            record.waits += 1
            is_later = False
            self._when_ready(ref, arrived)
            is_later = True
        return not record.waits and record.id in self._tasks

    def _fail_before_start(self, record: TaskRecord, error: ErrorInfo) -> None:
        actor = None if record.lane is not None else self._actors.get(record.target)
        if actor is not None and type(record.message) is messages.CreateActor:
            self._transport.post(_NODE, messages.EndActor(record.target, "an argument of it failed", True))
            self._on_actor_gone(record.target, error)
        else:
            self._fail(record, error)
            if actor is not None:
                self._advance_actor(actor)

    def _on_deps_ready(self, record: TaskRecord) -> None:
        if record.id not in self._tasks:
            return
        if record.lane is not None:
            record.lane.ready.append(record)
            self._dispatch(record.lane)
        else:
            self._advance_actor(self._actors[record.target])

    def _when_ready(self, ref: ObjectRef, callback: Callable[[Value], None]) -> None:
        """Call back with the value of any ref, at once or when it comes (with the lock held)."""
        holder: Entry | _Borrow | None
        if ref.owner == self.client_id:
            holder = self._book.find(ref.id)
        else:
            holder = self._borrows.get((ref.owner, ref.id))
            if holder is not None:
                self._ask_owner(ref.owner, ref.id, holder)
        if holder is None:
            callback(Value(error=ErrorInfo("ObjectLost", f"{ref!r} was freed already")))
        elif holder.value is not None:
            callback(holder.value)
        else:
            if holder.callbacks is None:
                holder.callbacks = []
            holder.callbacks.append(callback)

    def _ask_owner(self, owner: str, id: int, borrow: _Borrow) -> None:
        if borrow.value is None and not borrow.was_asked:
            borrow.was_asked = True
            if owner in self._dead:
                borrow.value = Value(error=_owner_died(owner, id, self._dead[owner]))
            else:
                self._transport.post(owner, messages.Fetch(id))

    # ---------------------------------------------------------------- sending

    def _dispatch(self, lane: Lane) -> None:
        if lane.leases:
            for lease, record in lane.assign(self._pace):
                self._send_call(lease.worker, lease.known_code, record)
        if lane.ready:
            count = lane.leases_to_request()
            if count:
                self._transport.post(_NODE, messages.RequestLeases(lane.demand, count))

    def _send_call(self, worker: str, known_code: set[str], record: TaskRecord) -> None:
        key = record.code_key
        if key and key not in known_code:
            known_code.add(key)
            self._transport.post(worker, self._codes[key])
        message = record.message
        if type(message) is not messages.Run and type(message) is not messages.Call:
            self._hand_over(message.args.keys(), worker)
            for _, value in message.deps:
                self._hand_over(value.keys(), worker)
        self._transport.post(worker, message)

    def _advance_actor(self, actor: _Actor) -> None:
        """Send queued calls as far as their arguments are there."""
        if actor.worker is None:
            return
        queue = actor.queue
        while queue and (not queue[0].waits or queue[0].id not in self._tasks):
            record = queue.popleft()
            if record.id in self._tasks:
                actor.in_flight[record.id] = record
                self._send_call(actor.worker, actor.known_code, record)

    def _send_soon(self) -> None:
        """Send at once when little is under way, else let messages gather into larger frames."""
        transport = self._transport
        self._last_use = time.monotonic()
        if transport.num_unsent:
            if transport.num_unsent >= _FRAME_MESSAGES or len(self._tasks) <= 2:
                transport.flush()
                self._drain_if_unread()
            elif self._has_leader or self._background_sleeps:
                self._wake()

    def _drain_if_unread(self) -> None:
        """After a send: ZeroMQ signals new input once only, and the send may have swallowed the signal."""
        if self._has_leader and self._transport.has_input():
            self._drain()

    def _wake(self) -> None:
        if self._background_waits:
            self._background_waits = False
            os.eventfd_write(self._wake_fd, 1)
        elif self._background_sleeps:
            self._background_sleeps = False
            self._background_wakes.notify()

    # ---------------------------------------------------------------- receiving

    def _drain(self) -> bool:
        """Handle whatever input is here (lock held)."""
        handlers, did = self._handlers, False
        for sender, batch in self._transport.receive():
            did = True
            for message in batch:
                handler = handlers.get(type(message))
                if handler is not None:  # else: a message that nobody may send us
                    handler(sender, message)
            if self._touched:
                self._after_frame()
        if did and self._num_users > 1:
            self._changed.notify_all()
        return did

    def _after_frame(self) -> None:
        lanes, self._touched = self._touched, None
        for lane in lanes:
            self._dispatch(lane)
            lease = lane.to_ask_back()
            if lease is not None:
                self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    def _touch(self, lane: Lane) -> None:
        if self._touched is None:
            self._touched = {lane: True}
        else:
            self._touched[lane] = True

    def _on_done(self, sender: str, message: messages.Done) -> None:
        """`_finish` for the common case: one small value of a task."""
        id = message.task
        record = self._tasks.get(id)
        lane = None if record is None else record.lane
        lease = None if lane is None else lane.leases.get(sender)
        entry = self._book.find(id)
        if lease is None or entry is None or not entry.num_refs or entry.callbacks is not None:
            self._finish(sender, id, (Value(message.data),))
            return
        del self._tasks[id]
        record.refs = None  # type: ignore[union-attr]
        lease.in_flight.pop(id, None)
        lease.is_stalled = lease.was_asked_back = False
        if self._touched is None or lane not in self._touched:
            self._touch(lane)
        entry.value = Value(message.data)

    def _on_done_full(self, sender: str, message: messages.DoneFull) -> None:
        self._finish(sender, message.task, message.values)

    def _finish(self, sender: str, id: int, values: Sequence[Value]) -> None:
        record = self._tasks.pop(id, None)
        if record is None:  # a late result of an attempt that was given up (R1): its segments are not ours to read
            for value in values:
                if value.segment is not None:
                    self._free_segment(value.segment)
            return
        lane = record.lane
        if lane is not None:
            lease = lane.leases.get(sender)
            if lease is not None:
                lease.in_flight.pop(id, None)
                lease.is_stalled = lease.was_asked_back = False
            self._touch(lane)
        else:
            actor = self._actors.get(record.target)
            if actor is not None:
                actor.in_flight.pop(id, None)
                error = values[0].error
                if type(record.message) is messages.CreateActor and error is not None:
                    gone = ErrorInfo("ActorDied", f"actor {record.name} could not be created: {error.message}")
                    self._transport.post(_NODE, messages.EndActor(record.target, gone.message, True))
                    self._on_actor_gone(record.target, gone)
                    values = (Value(error=gone),)
        self._fill(record, values)

    def _fill(self, record: TaskRecord, values: Sequence[Value]) -> None:
        record.refs = None
        for id, value in zip(record.ids, values, strict=True):
            entry = self._book.fill(id, value, self._receive_refs(value.refs) if value.refs else None)
            if entry is not None and entry.callbacks:
                callbacks, entry.callbacks = entry.callbacks, None
                for callback in callbacks:
                    callback(value)

    def _fail(self, record: TaskRecord, error: ErrorInfo) -> None:
        self._tasks.pop(record.id, None)
        self._fill(record, [Value(error=error)] * len(record.ids))
        self._changed.notify_all()

    def _on_pace(self, sender: str, message: messages.Pace) -> None:
        self._pace[message.code] = message.seconds

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        for id in message.tasks:
            record = self._tasks.get(id)
            if record is not None and record.lane is not None:
                if type(record.message) is not messages.Run:
                    for value in (record.message.args, *(value for _, value in record.message.deps)):
                        self._take_back(value.keys(), sender)
                self._touch(record.lane)
        for lane in self._lanes.values():
            lane.gave_back(sender, message.tasks)

    def _take_back(self, keys: Sequence[messages.Key], peer: str) -> None:
        """What `_hand_over` did, undone: the values came back unopened."""
        for owner, id in keys:
            if owner == self.client_id:
                self._book.returned(id, peer, 1)
            elif owner not in self._dead:
                self._transport.post(owner, messages.Lent(id, peer, -1))

    def _on_fetch(self, sender: str, message: messages.Fetch) -> None:
        id = message.id

        def answer(value: Value) -> None:
            if sender not in self._dead:
                self._hand_over(value.refs, sender)
                self._transport.post(sender, messages.Fetched(id, value))
                self._transport.flush()

        self._when_ready(ObjectRef(self.client_id, id, _ignore), answer)

    def _on_fetched(self, sender: str, message: messages.Fetched) -> None:
        borrow = self._borrows.get((sender, message.id))
        inner = self._receive_refs(message.value.refs)
        if borrow is not None:
            self._settle_borrow(borrow, message.value, inner)

    def _settle_borrow(self, borrow: _Borrow, value: Value, inner: Any = None) -> None:
        borrow.value, borrow.inner = value, inner
        if borrow.callbacks:
            callbacks, borrow.callbacks = borrow.callbacks, None
            for callback in callbacks:
                callback(value)
        self._transport.flush()
        self._changed.notify_all()

    # ---------------------------------------------------------------- news from the node

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        lane = self._lanes[tuple(sorted(message.demand.items()))]
        lane.num_requested = max(0, lane.num_requested - 1)
        if message.worker in self._dead:
            return
        lane.leases[message.worker] = Lease(message.worker)
        self._touch(lane)

    def _actor(self, actor_id: str, class_name: str, find: bool = True) -> _Actor:
        actor = self._actors.get(actor_id)
        if actor is None:
            actor = self._actors[actor_id] = _Actor(class_name)
            if find:
                self._transport.post(_NODE, messages.FindActor(actor_id))
        return actor

    def _on_placed(self, sender: str, message: messages.Placed) -> None:
        actor = self._actors.get(message.actor)
        if actor is not None and actor.gone is None:
            actor.worker = message.worker
            self._advance_actor(actor)
            self._transport.flush()
            self._changed.notify_all()

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
        self._changed.notify_all()

    def _release_actor(self, actor_id: str, actor: _Actor) -> None:
        """The last handle anywhere is gone."""
        if actor.gone is None:
            self._transport.post(_NODE, messages.EndActor(actor_id, "its last handle is gone", False))
        del self._actors[actor_id]

    def _on_worker_died(self, sender: str, message: messages.WorkerDied) -> None:
        worker, reason = message.worker, message.reason
        if worker in self._dead:
            return
        self._dead[worker] = reason
        for entry in self._book.values():
            value = entry.value
            if value is not None and value.segment is not None and value.segment.creator == worker:
                value.segment = self._store.take_over(value.segment)
        self._transport.forget(worker)
        self._book.peer_died(worker)
        self._store.owner_died(worker)
        for (owner, id), borrow in list(self._borrows.items()):
            if owner == worker and borrow.value is None:
                self._settle_borrow(borrow, Value(error=_owner_died(owner, id, reason)))
        for lane in self._lanes.values():
            lease = lane.leases.pop(worker, None)
            if lease is not None:
                for record in reversed(list(lease.in_flight.values())):
                    self._retry(record, lane, worker, reason)
                self._touch(lane)
        if self._touched:
            self._after_frame()
        self._changed.notify_all()

    def _retry(self, record: TaskRecord, lane: Lane, worker: str, reason: str) -> None:
        if record.retries_left > 0:
            record.retries_left -= 1
            lane.ready.appendleft(record)
            return
        text = f"task {record.name}: its worker {worker} died ({reason}); no retries are left"
        self._fail(record, ErrorInfo("WorkerCrashed", text))

    # ---------------------------------------------------------------- waiting

    def _pump(self, timeout: float | None, spin_s: float = 0.0) -> None:
        """One step of waiting for input (lock held; given up while this sleeps)."""
        transport = self._transport
        if transport.num_unsent:
            transport.flush()
        if self._has_leader:
            if self._background_waits:
                self._background_waits = False
                os.eventfd_write(self._wake_fd, 1)
            self._changed.wait(0.1 if timeout is None else min(timeout, 0.1))
            return
        if self._drain():
            return
        if spin_s:
            end = time.perf_counter() + spin_s
            while time.perf_counter() < end:
                if transport.has_input():
                    self._drain()
                    return
        self._lead(timeout)

    def _lead(self, timeout: float | None) -> None:
        self._has_leader = True
        self._lock.release()
        try:
            ready = self._poller.poll(None if timeout is None else max(0.0, timeout * 1000))
        finally:
            self._lock.acquire()
            self._has_leader = False
        for descriptor, _ in ready:
            if descriptor == self._wake_fd:
                try:
                    os.eventfd_read(self._wake_fd)
                except BlockingIOError:
                    pass
            elif descriptor == self._lifeline:
                self._lose_node()
        if self._background_sleeps:
            self._background_sleeps = False
            self._background_wakes.notify()
        self._drain()
        if self._num_users > 1:
            self._changed.notify_all()

    def _lose_node(self) -> None:
        assert self._lifeline is not None
        self._poller.unregister(self._lifeline)
        self._lifeline = None
        if not self.is_closed:
            self._lost_node = ErrorInfo(
                "NodeLost", "the node process of this cluster has ended; its last words are above, on stderr"
            )
            for record in list(self._tasks.values()):
                self._fail(record, self._lost_node)
            self._on_node_lost()

    def _enter(self) -> None:
        self._num_users += 1
        if self._has_leader and self._background_waits:
            self._background_waits = False
            os.eventfd_write(self._wake_fd, 1)

    def _leave(self) -> None:
        self._num_users -= 1
        self._last_use = time.monotonic()
        if self._num_users:
            self._changed.notify_all()

    def _wait_until(self, is_done: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Wait with the lock held; GetTimeout after `timeout` seconds."""
        if is_done():
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        self._enter()
        waiter = self._blocked_notice()
        spin_s = self._spin_s
        try:
            while not is_done():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise GetTimeout(f"timed out after {timeout:g} s waiting for {what}")
                if self._lost_node is not None:
                    raise codec.to_exception(self._lost_node)
                self._check_open()
                if waiter is not None:
                    left = waiter.patience(left)
                self._pump(left, spin_s)
                spin_s = 0.0
        finally:
            self._leave()
            if waiter is not None:
                waiter.finish()

    def _blocked_notice(self) -> Any:
        """Workers override: tell the node that the task waits, so that its CPUs can be lent."""
        return None

    def get(self, refs: Sequence[ObjectRef], timeout: float | None) -> list[Any]:
        deadline = None if timeout is None else time.monotonic() + timeout
        values = []
        with self._lock:
            holders = [self._holder(ref) for ref in refs]
            for index, holder in enumerate(holders):
                if holder.value is None:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    try:
                        self._wait_until(lambda h=holder: h.value is not None, left, "")  # type: ignore[misc]
                    except GetTimeout:
                        raise GetTimeout(self._timeout_text(refs[index:], timeout)) from None
                values.append(holder.value)
        return [self._open_value(value, ref) for value, ref in zip(values, refs, strict=True)]

    def _holder(self, ref: ObjectRef) -> Any:
        if ref.owner == self.client_id:
            entry = self._book.find(ref.id)
            if entry is not None:
                return entry
        else:
            borrow = self._borrows.get((ref.owner, ref.id))
            if borrow is not None:
                self._ask_owner(ref.owner, ref.id, borrow)
                return borrow
        raise NotInitialized(f"{ref!r} belongs to a cluster that was shut down")

    def _timeout_text(self, refs: Sequence[ObjectRef], timeout: float | None) -> str:
        waiting = [ref for ref in refs if self._holder(ref).value is None]
        ref = waiting[0]
        record = self._tasks.get(ref.id) if ref.owner == self.client_id else None
        if ref.owner != self.client_id:
            why = f"{ref!r}, which {ref.owner} owns"
        elif record is None:
            why = f"{ref!r}"
        elif record.waits:
            why = f"{record.name}, which waits for {record.waits} of its arguments"
        elif record.lane is not None and not any(record.id in lease.in_flight for lease in record.lane.leases.values()):
            why = f"{record.name}, which waits for a worker with {record.lane.demand}"
        elif record.lane is None and self._actors[record.target].worker is None:
            why = f"{record.name}, whose actor waits for its resources"
        else:
            where = record.target if record.lane is not None else self._actors[record.target].worker
            why = f"{record.name}, which is with worker {where}"
        return f"get() timed out after {timeout:g} s: {len(waiting)} of {len(refs)} values are missing, first {why}"

    def wait(
        self, refs: Sequence[ObjectRef], num_returns: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        with self._lock:
            holders = [self._holder(ref) for ref in refs]
            missing = [holder for holder in holders if holder.value is None]
            needed = len(missing) - (len(holders) - num_returns)

            def enough() -> bool:
                nonlocal missing
                missing = [holder for holder in missing if holder.value is None]
                return len(missing) <= len(holders) - num_returns

            if needed > 0:
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

        def settle(value: Value) -> None:
            # Opening a value takes the lock, which the thread that calls this holds.
            threading.Thread(target=open_it, args=(value,), daemon=True).start()

        def open_it(value: Value) -> None:
            try:
                future.set_result(self._open_value(value, ref))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._when_ready(ref, settle)
            self._transport.flush()
            self._drain_if_unread()
        return future

    # ---------------------------------------------------------------- other verbs

    def put(self, value: Any) -> ObjectRef:
        made, refs = self._make_value(value, "the value of rlplat.put", self.client_id)
        with self._lock:
            self._check_open()
            self._collect()
            entry = self._book.add(next(self._ids))
            entry.value, entry.inner = made, refs
            return self._new_ref(entry.id)

    def kill(self, handle: ActorHandle) -> None:
        name = handle._class_name
        with self._lock:
            self._actor(handle._actor_id, name)
            self._transport.post(_NODE, messages.EndActor(handle._actor_id, "it was killed by rlplat.kill", True))
            self._transport.flush()
            self._on_actor_gone(
                handle._actor_id, ErrorInfo("ActorDied", f"actor {name} was killed by rlplat.kill")
            )

    def get_actor(self, name: str) -> ActorHandle:
        answer = self._ask(lambda request: messages.AskByName(request, name))
        if answer.error is not None:
            raise ActorDied(answer.error.message)
        owner, id = answer.actor.rsplit(":", 1)
        with self._lock:
            if owner != self.client_id:
                self._transport.post(owner, messages.Lent(int(id), self.client_id, 1))
                creation = self._adopt(owner, int(id))
                self._borrows[(owner, int(id))].handed += 1
            else:
                creation = self._adopt(owner, int(id))
            self._transport.flush()
        return ActorHandle(answer.actor, answer.class_name, answer.methods, creation)

    def resources(self, available: bool) -> dict[str, float]:
        return self._ask(lambda request: messages.AskResources(request, available)).amounts

    def _ask(self, make: Callable[[int], Any]) -> messages.Answer:
        with self._lock:
            self._check_open()
            request = next(self._ids)
            self._transport.post(_NODE, make(request))
            self._wait_until(lambda: request in self._answers, None, "the node's answer")
            return self._answers.pop(request)

    def _check_open(self) -> None:
        if self.is_closed:
            raise NotInitialized("the runtime was shut down")
        if self._lost_node is not None:
            raise codec.to_exception(self._lost_node)

    # ---------------------------------------------------------------- the background thread

    def _run_background(self) -> None:
        with self._lock:
            while not self.is_closed:
                if self._num_users and self._has_leader:
                    # A user thread waits for input: it serves everybody, and wakes us when it leaves.
                    self._background_sleeps = True
                    self._background_wakes.wait()
                    self._background_sleeps = False
                elif self._num_users or time.monotonic() < self._last_use + _STANDBY_S:
                    self._lock.release()
                    time.sleep(_TICK_S)
                    self._lock.acquire()
                    if self.is_closed:
                        return
                    if not self._has_leader:
                        self._transport.flush()
                        self._drain()
                else:
                    self._background_waits = True
                    self._lead(_IDLE_LEASE_S if self._has_idle_leases() else None)
                    self._background_waits = False
                    self._changed.notify_all()
                if not self.is_closed:
                    self._keep_house()

    def _has_idle_leases(self) -> bool:
        return any(lane.leases for lane in self._lanes.values())

    def _keep_house(self) -> None:
        self._collect()
        now = time.monotonic()
        for lane in self._lanes.values():
            for lease in lane.idle_leases(now, _IDLE_LEASE_S):
                del lane.leases[lease.worker]
                self._transport.post(_NODE, messages.ReturnLease(lease.worker))
        self._transport.flush()

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            os.eventfd_write(self._wake_fd, 1)
            self._changed.notify_all()
            self._background_wakes.notify_all()
        if self._background is not threading.current_thread() and self._background.is_alive():
            self._background.join(5)
        with self._lock:
            self._transport.close()
            self._store.close()
            os.close(self._wake_fd)
            for record in list(self._tasks.values()):
                record.refs = None


def _owner_died(owner: str, id: int, reason: str) -> ErrorInfo:
    return ErrorInfo(
        "OwnerDied", f"object {owner}:{id} is lost: {owner}, the process that owned it, died ({reason})"
    )


def _ignore(_: tuple[str, int]) -> None:
    pass
