"""Tasks on their way to leased workers: the shell around `lanes`. Submit, send, and what happens to leases.

Everything here but `submit` and `submitter` is called with the client's lock held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from rlplat.runtime.client.calls import NODE, Calls, values_of
from rlplat.runtime.core.owner.book import Entry
from rlplat.runtime.core.owner.lanes import Lane, Lease, TaskRecord
from rlplat.runtime.core.owner.retries import History, death_error, exception_names, runs_again_after_death
from rlplat.runtime.demand import capture_of, group_of, most_leases
from rlplat.runtime.options import Options
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.values import Capture, ErrorInfo, Shape

if TYPE_CHECKING:
    from rlplat.runtime.client.client import Client

IDLE_LEASE_S = 0.1


class Tasks:
    def __init__(self, client: Client, calls: Calls) -> None:
        self.lanes: WeakValueDictionary[Shape, Lane] = WeakValueDictionary()
        """All that a function, with its options, or a task refers to."""
        self._busy: dict[Lane, None] = {}
        """Those that have tasks or leases, or have asked for some."""
        self.touched: dict[Lane, bool] = {}
        """Lanes in which something has changed since the last frame."""
        self._pace: dict[str, float] = {}
        self._client, self._calls, self._envs = client, calls, client._envs
        self._objects, self._loop, self._transport = client._objects, client._loop, client._transport
        self._loop.handlers |= {
            messages.Pace: lambda _, m: self._pace.update({m.code: m.seconds}),
            messages.GaveBack: self._on_gave_back,
            messages.Granted: self._on_granted,
            messages.LeasesRefused: self._on_leases_refused,
            messages.EnvFailed: self._on_env_failed,
        }

    # ---------------------------------------------------------------- submitting

    def submit(
        self,
        code: RemoteCode,
        args: tuple,
        kwargs: dict,
        options: Options,
        lane: Lane,
        capture: Capture | None,
    ) -> Any:
        key = self._calls.code_key(code)
        name = options.name or code.name
        is_full, own_name = capture is not None or bool(options.name), options.name or ""
        message, deps, refs = self._calls.make(
            args, kwargs, name, options.num_returns, key, own_name, is_full
        )
        if is_full:
            message.capture = capture
        with self._loop.lock:
            self._client._check_open()
            record, out = self._calls.record(message, key, name, options.num_returns, refs)
            record.retries_left = options.max_retries
            record.is_suspect = not options.max_retries
            record.lane = lane
            if options.retry_exceptions:
                record.history = History(exception_names(options.retry_exceptions))
            if options.num_returns < 0 or options.timeout_s is not None:
                out = self._calls.open_special(record, out, options)
            if deps and not self._calls.resolve(record, deps):
                return out
            lane.ready.append(record)
            if lane.is_hungry or len(lane.ready) == 1:
                self.dispatch(lane)
            self._loop.send_soon(len(self._calls.records))
        return out

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        """`submit` for one function and its options: small plain arguments take a short way."""
        name, retries = options.name or code.name, options.max_retries
        lane, key, capture = self._lane(options, name), "", capture_of(options)
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
        ids, entries, me, drop = objects.ids, objects.book.entries, self._client.client_id, objects.drop
        loop, ready, dropped, Run = self._loop, lane.ready, objects.dropped, messages.Run  # noqa: N806  (bound once, for speed)

        def submit(args: tuple, kwargs: dict) -> Any:
            nonlocal key
            data = pack(args) if is_plain and not kwargs else None
            if data is None:
                return self.submit(code, args, kwargs, options, lane, capture)
            key = key or self._calls.code_key(code)
            take_lock()
            try:
                if not loop.is_open:
                    self._client._check_open()
                if dropped:
                    objects.collect()
                id = next(ids)
                record = tasks[id] = TaskRecord(id, Run(id, key, data), key, name, (id,), None, lane, retries)
                entries[id] = Entry(id)
                ready.append(record)
                if lane.is_hungry or len(ready) == 1:
                    self.dispatch(lane)
                loop.send_soon(len(tasks))
                return ObjectRef(me, id, drop, id)
            finally:
                release_lock()

        return submit

    def _lane(self, options: Options, name: str) -> Lane:
        shape = self._client._shape(options, 1, f"task {name}")
        lane = self.lanes.get(shape)
        if lane is None:
            lane = self.lanes[shape] = Lane(shape, most_leases(shape, group_of(options), self._client._total))
        return lane

    # ---------------------------------------------------------------- sending

    def dispatch(self, lane: Lane) -> None:
        self._busy[lane] = None
        if lane.leases:
            for lease, records in lane.assign(self._pace):
                for record in records:
                    if type(record.message) is messages.Run and record.code_key in lease.known_code:
                        continue
                    self._calls.introduce(lease.worker, lease.known_code, record)
                self._transport.post_all(lease.worker, [record.message for record in records])
        if lane.ready:
            if lane.shape.env in self._envs.failed:
                self._fail_lane(lane, self._envs.failed[lane.shape.env])
                return
            count = lane.leases_to_request()
            if count:
                self._return_leases(0.0, [other for other in self._busy if other is not lane])
                self._transport.post(NODE, messages.RequestLeases(lane.shape, count))

    def after_frame(self) -> None:
        """All messages of a frame are handled: tasks for those who have become free, then whatever is to be sent."""
        if self.touched:
            lanes, self.touched = self.touched, {}
            for lane in lanes:
                if lane.ready:
                    self.dispatch(lane)
                else:
                    lane.is_hungry = True
                    lease = lane.to_ask_back() if len(self._calls.records) > 1 else None
                    if lease is not None:
                        self._transport.post(lease.worker, messages.GiveBack())
        self._transport.flush()

    # ---------------------------------------------------------------- leases and workers

    def has_leases(self) -> bool:
        return any(lane.leases for lane in self._busy)

    def return_idle_leases(self) -> None:
        self._return_leases(IDLE_LEASE_S, self._busy)
        for lane in [lane for lane in self._busy if lane.is_done()]:
            del self._busy[lane]

    def _return_leases(self, idle_s: float, lanes: Iterable[Lane]) -> None:
        now = time.monotonic()
        for lane in lanes:
            for lease in lane.idle_leases(now, idle_s):
                del lane.leases[lease.worker]
                self._transport.post(NODE, messages.ReturnLease(lease.worker))

    def _on_granted(self, sender: str, message: messages.Granted) -> None:
        lane = self.lanes.get(message.shape)
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
        lane = self.lanes.get(message.shape)
        if lane is not None:
            lane.num_requested = 0
            records = list(lane.ready)
            lane.ready.clear()
            for record in records:
                error = ErrorInfo(message.error.kind, f"task {record.name}: {message.error.message}")
                self._calls.fail(record, error)

    def _on_gave_back(self, sender: str, message: messages.GaveBack) -> None:
        if sender in self._objects.dead:
            return  # its tasks were queued again when it died
        theirs = [id for id in message.tasks if self._is_with(sender, id)]
        for id in theirs:
            for value in values_of(self._calls.records[id].message):
                self._objects.hand_over(value.keys(), sender, -1)
        for lane in self._busy:
            if sender in lane.leases:
                lane.gave_back(sender, message.tasks)
                if message.is_worn and not lane.leases[sender].in_flight:
                    del lane.leases[sender]
                    self._transport.post(NODE, messages.ReturnLease(sender, is_worn=True))
                self.touched[lane] = True
        self._client._cancels.on_gave_back(theirs)

    def _is_with(self, worker: str, id: int) -> bool:
        """Whether it is a task that this worker has."""
        record = self._calls.records.get(id)
        return record is not None and record.lane is not None and record.target == worker

    def on_worker_died(self, worker: str, reason: str, kind: str) -> None:
        """Its tasks run again, or fail."""

        def runs_again(record: TaskRecord, was_alone: bool) -> bool:
            return runs_again_after_death(record, was_alone, reason, kind)

        for lane in list(self._busy):
            self.touched[lane] = True
            for record in lane.lose(worker, runs_again):
                self._calls.fail(record, death_error(record, worker, reason, kind))

    def _on_env_failed(self, sender: str, message: messages.EnvFailed) -> None:
        self._envs.failed[message.key] = message.error
        for lane in list(self._busy):
            if lane.shape.env == message.key:
                lane.num_requested = 0
                self._fail_lane(lane, message.error)

    def _fail_lane(self, lane: Lane, error: ErrorInfo) -> None:
        """What waits for a worker that there will never be."""
        while lane.ready:
            self._calls.fail(lane.ready.popleft(), error)
