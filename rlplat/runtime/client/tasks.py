"""Tasks on their way to leased workers: the shell around `lanes`. Submit, send, and what happens to leases.

Everything here but `submit` and `submitter` is called with the client's lock held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from rlplat.runtime.client.calls import Calls
from rlplat.runtime.client.cancels import Cancels
from rlplat.runtime.client.envs import ClientEnvs
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.client.streams import Streams
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.lanes import Lane, Lease, TaskRecord
from rlplat.runtime.core.owner.retries import History, death_error, exception_names, runs_again_after_death
from rlplat.runtime.demand import capture_of, group_of, most_leases, shape_of
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.options import Options
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import Capture, ErrorInfo, Shape, Value

IDLE_LEASE_S = 0.1
_MOST_PACES = 10_000


class TaskRoute:
    """The way of tasks of one shape: the lane in which they wait for leased workers (see `Route`)."""

    kind = "task"

    def __init__(self, lane: Lane, tasks: Tasks, calls: Calls) -> None:
        self.lane, self._tasks, self._calls = lane, tasks, calls

    def sent_to(self, record: TaskRecord) -> str | None:
        lease = self.lane.lease_of(record.target)
        return record.target if lease is not None and record.id in lease.in_flight else None

    def in_flight(self, record: TaskRecord, worker: str) -> dict[int, TaskRecord] | None:
        lease = self.lane.lease_of(worker)
        if lease is None:
            return None
        lease.is_stalled = lease.was_asked_back = False
        self._tasks.touched[self] = True
        return lease.in_flight

    def resolved(self, record: TaskRecord) -> None:
        self.lane.ready.append(record)
        self._tasks.dispatch(self)

    def finished(self, record: TaskRecord, worker: str, values: Sequence[Value]) -> Sequence[Value]:
        in_flight = self.in_flight(record, worker)
        if in_flight is not None:
            in_flight.pop(record.id, None)
        return values

    def again(self, record: TaskRecord) -> None:
        self.lane.again(record)
        self._tasks.touched[self] = True

    def rebuild(self, record: TaskRecord) -> None:
        if not record.waits and record.id in self._calls.records:
            self.resolved(record)

    def failed(self, record: TaskRecord) -> None:
        lease = self.lane.lease_of(record.target)
        if lease is not None:
            lease.in_flight.pop(record.id, None)

    def fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        if not record.waits:
            with suppress(ValueError):
                self.lane.ready.remove(record)
        self._calls.fail(record, error)

    def waits_for(self, record: TaskRecord) -> tuple[str, TaskRecord]:
        return self.sent_to(record) or "", record

    def why_waiting(self, record: TaskRecord) -> str:
        if record.target:
            return f"which is with worker {record.target}"
        return f"which waits for a worker with {dict(self.lane.shape.demand)}"


class Tasks:
    def __init__(
        self, link: Link, objects: Objects, calls: Calls, cancels: Cancels, streams: Streams, envs: ClientEnvs
    ) -> None:
        self._routes: WeakValueDictionary[Shape, TaskRoute] = WeakValueDictionary()
        """All that a function, with its options, or a task refers to."""
        self._busy: dict[TaskRoute, None] = {}
        """Those that have tasks or leases, or have asked for some."""
        self.touched: dict[TaskRoute, bool] = {}
        """Where something has changed since the last frame."""
        self._pace: dict[str, float] = {}
        self._looked_at = 0.0
        """When leases were last looked through."""
        self._link, self._loop, self._transport = link, link.loop, link.transport
        self._objects, self._calls, self._cancels, self._streams = objects, calls, cancels, streams
        self._envs = envs
        link.on(messages.Pace, self._on_pace)
        link.on(messages.GaveBack, self._on_gave_back)
        link.on(messages.Granted, self._on_granted)
        link.on(messages.LeasesRefused, self._on_leases_refused)
        link.on(messages.EnvFailed, self._on_env_failed)
        link.after_frame(self._after_frame)
        link.chore(self._return_idle_leases, self._idle_leases_s)

    def lanes(self) -> list[Lane]:
        return [route.lane for route in self._routes.values()]

    # ---------------------------------------------------------------- submitting

    def submit(
        self,
        code: RemoteCode,
        args: tuple,
        kwargs: dict,
        options: Options,
        route: TaskRoute,
        capture: Capture | None,
    ) -> Any:
        key = self._calls.code_key(code)
        name = options.name or code.name
        more = messages.More(label=options.name or "", capture=capture) if capture or options.name else None
        message, deps, refs = self._calls.make(args, kwargs, name, options.num_returns, key, "", more)
        with self._loop.lock:
            self._link.check_open()
            record, out = self._calls.record(message, code, name, options.num_returns, refs)
            record.retries_left = options.max_retries
            record.is_suspect = not options.max_retries
            record.route, lane = route, route.lane
            if options.retry_exceptions:
                record.history = History(exception_names(options.retry_exceptions))
            if options.timeout_s is not None:
                self._cancels.add_deadline(record, options.timeout_s)
            if options.num_returns < 0:
                out = self._streams.open(record, out, options.num_returns, options.generator_backpressure)
            if deps and not self._calls.resolve(record, deps):
                return out
            lane.ready.append(record)
            if lane.is_hungry or len(lane.ready) == 1:
                self.dispatch(route)
            self._loop.send_soon(len(self._calls.records))
        return out

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """`submit` for one function and its options: small plain arguments take a short way."""
        name, retries = options.name or code.name, options.max_retries
        route, key, capture = self._route(options, name), "", capture_of(options)
        is_plain = (
            options.num_returns == 1
            and options.timeout_s is None
            and options.retry_exceptions is False
            and options.max_retries != 0  # `retries`, rule 4
            and capture is None
            and not options.name  # which travels with the call
        )
        pack, objects, tasks = codec.pack_scalars, self._objects, self._calls.records
        take_lock, release_lock = self._loop.lock.take, self._loop.lock.release
        ids, entries, me, drop = objects.ids, objects.book.entries, self._link.client_id, objects.drop
        lane, ready = route.lane, route.lane.ready
        loop, dropped, Run = self._loop, objects.dropped, messages.Run  # noqa: N806  (bound once, for speed)

        def submit(args: tuple, kwargs: dict) -> Any:
            nonlocal key
            data = pack(args) if is_plain and not kwargs else None
            if data is None:
                return self.submit(code, args, kwargs, options, route, capture)
            key = key or self._calls.code_key(code)
            take_lock()
            try:
                if not loop.is_open:
                    self._link.check_open()
                if dropped:
                    objects.collect()
                id = next(ids)
                record = tasks[id] = TaskRecord(
                    id, Run(id, key, "", data), code, name, (id,), None, route, retries
                )
                entries[id] = Entry(id)
                ready.append(record)
                if lane.is_hungry or len(ready) == 1:
                    self.dispatch(route)
                loop.send_soon(len(tasks))
                return ObjectRef(me, id, drop, id)
            finally:
                release_lock()

        return submit

    def _route(self, options: Options, name: str) -> TaskRoute:
        total = self._link.total
        shape = shape_of(options, 1, total, f"task {name}", self._envs.key(options))
        route = self._routes.get(shape)
        if route is None:
            lane = Lane(shape, most_leases(shape, group_of(options), total))
            route = self._routes[shape] = TaskRoute(lane, self, self._calls)
        return route

    def cluster_has(self, total: dict[str, float]) -> None:
        """A machine has joined, or is lost."""
        self._link.total = total
        for shape, route in self._routes.items():
            if not shape.group:
                route.lane.max_leases = most_leases(shape, None, total)
                if route.lane.ready:
                    self.dispatch(route)

    # ---------------------------------------------------------------- sending

    def dispatch(self, route: TaskRoute) -> None:
        """Send what its workers have room for, ask for leases for the rest."""
        self._busy[route] = None
        lane = route.lane
        if lane.leases:
            for lease, records in lane.assign(self._pace):
                for record in records:
                    run = record.message
                    if run.more is None and type(run.args) is bytes and run.code in lease.known_code:
                        continue
                    self._calls.introduce(lease.worker, lease.known_code, record)
                self._transport.post_all(lease.worker, [record.message for record in records])
        if lane.ready:
            if lane.shape.env in self._envs.failed:
                self._fail_lane(lane, self._envs.failed[lane.shape.env])
                return
            count = lane.leases_to_request()
            if count:
                self._return_leases(0.0, [other for other in self._busy if other is not route])
                self._transport.post(NODE, messages.RequestLeases(lane.shape, count))

    def _after_frame(self) -> None:
        """Tasks for those who have become free, then whatever is to be sent."""
        if self.touched:
            routes, self.touched = self.touched, {}
            for route in routes:
                lane = route.lane
                if lane.ready:
                    self.dispatch(route)
                else:
                    lane.is_hungry = True
                    lease = lane.to_ask_back() if len(self._calls.records) > 1 else None
                    if lease is not None:
                        self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    # ---------------------------------------------------------------- leases and workers

    def _idle_leases_s(self) -> float:
        for route in self._busy:
            if route.lane.leases:
                return self._looked_at + IDLE_LEASE_S - self._link.clock()
        return NEVER

    def _return_idle_leases(self) -> None:
        self._looked_at = self._link.clock()
        self._return_leases(IDLE_LEASE_S, self._busy)
        for route in [route for route in self._busy if route.lane.is_done()]:
            del self._busy[route]

    def _return_leases(self, idle_s: float, routes: Iterable[TaskRoute]) -> None:
        now = self._link.clock()
        for route in routes:
            for lease in route.lane.idle_leases(now, idle_s):
                del route.lane.leases[lease.worker]
                self._transport.post(NODE, messages.ReturnLease(lease.worker))

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        route = self._routes.get(message.shape)
        if route is None:  # nobody has asked
            self._transport.post(NODE, messages.ReturnLease(message.worker))
            return
        lane = route.lane
        lane.num_requested = max(0, lane.num_requested - 1)
        if message.worker not in self._objects.dead:
            self._busy[route] = None
            lane.leases[message.worker] = Lease(message.worker)
            lane.is_hungry = True
            self.touched[route] = True

    def _on_leases_refused(self, sender: str, message: messages.LeasesRefused) -> None:
        route = self._routes.get(message.shape)
        if route is not None:
            route.lane.num_requested = 0
            records = list(route.lane.ready)
            route.lane.ready.clear()
            for record in records:
                error = ErrorInfo(message.error.kind, f"task {record.name}: {message.error.message}")
                self._calls.fail(record, error)

    def _on_pace(self, sender: str, message: messages.Pace) -> None:
        self._pace.pop(message.code, None)
        self._pace[message.code] = message.seconds
        if len(self._pace) > _MOST_PACES:
            del self._pace[next(iter(self._pace))]

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        if sender in self._objects.dead:
            return  # its tasks were queued again when it died
        theirs = [id for id in message.tasks if self._is_with(sender, id)]
        for id in theirs:
            for value in self._calls.records[id].message.values():
                self._objects.hand_over(value.keys(), sender, -1)
        for route in self._busy:
            lane = route.lane
            lease = lane.lease_of(sender)
            if lease is not None:
                lane.gave_back(sender, message.tasks, message.forgotten)
                if message.is_worn and not lease.in_flight and sender in lane.leases:
                    del lane.leases[sender]
                    self._transport.post(NODE, messages.ReturnLease(sender, is_worn=True))
                self.touched[route] = True
        self._cancels.on_gave_back(theirs)

    def _is_with(self, worker: str, id: int) -> bool:
        """Whether it is a task that this worker has."""
        record = self._calls.records.get(id)
        return record is not None and record.route.kind == "task" and record.target == worker

    def on_worker_died(self, worker: str, reason: str, kind: str) -> None:
        """Its tasks run again, or fail."""
        for route in list(self._busy):
            self.touched[route] = True
            has_limit = bool(route.lane.shape.memory)

            def runs_again(record: TaskRecord, was_alone: bool, has_limit: bool = has_limit) -> bool:
                return runs_again_after_death(record, was_alone, reason, kind, has_limit)

            for record in route.lane.lose(worker, runs_again):
                self._calls.fail(record, death_error(record, worker, reason, kind))

    def _on_env_failed(self, sender: str, message: messages.EnvFailed) -> None:
        self._envs.failed[message.key] = message.error
        for route in list(self._busy):
            if route.lane.shape.env == message.key:
                route.lane.num_requested = 0
                self._fail_lane(route.lane, message.error)

    def _fail_lane(self, lane: Lane, error: ErrorInfo) -> None:
        """What waits for a worker that there will never be."""
        while lane.ready:
            self._calls.fail(lane.ready.popleft(), error)
