"""Ending calls ahead of their time: `cancel`, deadlines, generators that nobody reads. The owner's side.

Rules
1. A call that was not sent yet is taken out of its queue, and fails there and then.
2. One that was sent: its worker is asked. It drops a queued one, interrupts a running task (KeyboardInterrupt in its
   main thread), cancels a coroutine; a running sync call of an actor goes on. Whatever comes first counts, so a result
   that is under way stands.
3. A task that has not ended `CANCEL_GRACE_S` later, or at once with `force`: its worker is killed. Others that were
   queued there run elsewhere and are not charged. The calls of an actor are not worth its life, but at a deadline.
4. A deadline fails the ref at once, then ends the call as above with `DEADLINE_GRACE_S`, in actors too.
5. A cancelled call is not retried. One that has finished, or is not known, is left alone.

`Pending` (`core.owner.deadlines`) is pure; this is its shell, with the client's lock held unless said otherwise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlplat.runtime.core.owner.deadlines import Pending, Stopping
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import ErrorInfo, Value

if TYPE_CHECKING:
    from rlplat.runtime.client.client import Client
    from rlplat.runtime.core.owner.lanes import TaskRecord

CANCEL_GRACE_S = 5.0
DEADLINE_GRACE_S = 1.0
NODE = "node"


class Cancels:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._pending = Pending()
        self._killed: set[str] = set()
        client._loop.handlers |= {
            messages.CancelObject: lambda _, m: self._cancel(m.id, m.force, m.recursive)
        }

    # ---------------------------------------------------------------- what users do

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        """(Takes the lock.)"""
        client = self._client
        with client._lock:
            client._check_open()
            if ref.owner == client.client_id:
                record = self._find(ref.id)
                if force and record is not None and record.lane is None:
                    raise ValueError(
                        "force=True is for tasks; an actor's process is ended by rlplat.kill(actor)"
                    )
                self._cancel(ref.id, force, recursive)
            elif ref.owner not in client._objects.dead:
                client._transport.post(ref.owner, messages.CancelObject(ref.id, force, recursive))
            client._loop.send_now()
            client._loop.notify()

    def _find(self, id: int) -> TaskRecord | None:
        """The unfinished call that is to make this object."""
        tasks, entry = self._client._calls.records, self._client._objects.book.find(id)
        if entry is None or entry.value is not None:
            return None
        record = tasks.get(id)
        if record is None:
            record = next((each for each in tasks.values() if id in each.ids), None)
        return None if record is None or type(record.message) is messages.CreateActor else record

    def _cancel(self, id: int, force: bool, recursive: bool) -> None:
        record = self._find(id)
        if record is not None:
            self.stop(record, force, recursive)

    def stop(self, record: TaskRecord, force: bool, recursive: bool) -> None:
        what = "task" if record.lane is not None else "call"
        error = ErrorInfo("TaskCancelled", f"{what} {record.name} was cancelled by rlplat.cancel")
        force = force and record.lane is not None
        grace_s = None if record.lane is None else 0.0 if force else CANCEL_GRACE_S
        self._stop(record, error, grace_s, recursive, is_asked=not force)

    def add_deadline(self, record: TaskRecord, timeout_s: float) -> None:
        self._pending.forget_finished(self._client._calls.records)
        if self._pending.add_deadline(record.id, time.monotonic() + timeout_s, timeout_s):
            self._client._loop.wake()

    def close_generator(self, task: int) -> None:
        record = self._client._calls.records.get(task)
        if record is None:
            return
        worker = self._worker_of(record)
        if worker is None:
            self._fail_unsent(record, ErrorInfo("TaskCancelled", f"nobody reads {record.name} any more"))
        else:
            self._client._transport.post(worker, messages.CancelTask(task, False, is_close=True))
            self._client._loop.send_now()

    # ---------------------------------------------------------------- how calls end

    def _stop(
        self, record: TaskRecord, error: ErrorInfo, grace_s: float | None, recursive: bool, is_asked: bool
    ) -> None:
        worker = self._worker_of(record)
        if worker is None:
            self._fail_unsent(record, error)
            return
        record.retries_left = 0
        kill_at = None if grace_s is None else time.monotonic() + grace_s
        self._pending.stopping[record.id] = Stopping(record, worker, error, kill_at)
        if is_asked:
            self._client._transport.post(worker, messages.CancelTask(record.id, recursive))
        self._tick(time.monotonic())
        self._client._loop.wake()

    def _worker_of(self, record: TaskRecord) -> str | None:
        """Where the call is; None when it was not sent."""
        client = self._client
        if record.lane is not None:
            lease = record.lane.leases.get(record.target)
            return record.target if lease is not None and record.id in lease.in_flight else None
        actor = client._actors.find(record.target)
        return actor.worker if actor is not None and record.id in actor.in_flight else None

    def _fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        if record.lane is not None and not record.waits:
            try:
                record.lane.ready.remove(record)
            except ValueError:
                pass
        self._client._calls.fail_unsent(record, error)

    def _expire(self, record: TaskRecord, timeout_s: float) -> None:
        """Its deadline has passed: the ref fails now, the call is ended behind its back."""
        worker = self._worker_of(record)
        where = "it had not been sent to a worker" if worker is None else f"it was with worker {worker}"
        error = ErrorInfo(
            "DeadlineExceeded",
            f"{record.name} did not finish within its timeout_s={timeout_s:g}: {where}. It is stopped",
        )
        if worker is not None:
            for id in record.ids:
                self._client._objects.fill(id, Value(error=error))
                entry = self._client._objects.book.find(id)
                if entry is not None:
                    entry.callbacks = []  # no short way for a result that comes too late: see Calls._on_done
        self._stop(record, error, DEADLINE_GRACE_S, recursive=True, is_asked=True)

    # ---------------------------------------------------------------- time and deaths

    def tick(self) -> None:
        self._tick(time.monotonic())

    def next_s(self) -> float | None:
        """How long until `tick` has something to do."""
        at = self._pending.next_at()
        return None if at is None else max(0.0, at - time.monotonic())

    def _tick(self, now: float) -> None:
        tasks = self._client._calls.records
        for task, timeout_s in self._pending.due_deadlines(now):
            record = tasks.get(task)
            if record is not None:
                self._expire(record, timeout_s)
        for stopping in self._pending.due_kills(now):
            record = stopping.record
            if tasks.get(record.id) is record and self._worker_of(record) == stopping.worker:
                self._killed.add(stopping.worker)
                reason = f"was killed to end {record.name} ({stopping.error.message})"
                self._client._transport.post(NODE, messages.KillWorker(stopping.worker, reason))
                self._client._transport.flush()
        stopping_now = self._pending.stopping
        if stopping_now:
            for id in [id for id, each in stopping_now.items() if tasks.get(id) is not each.record]:
                del stopping_now[id]

    def on_gave_back(self, ids: list[int]) -> None:
        """Tasks have come back unbegun, and wait in their lanes."""
        for id in ids:
            stopping = self._pending.stopping.pop(id, None)
            if stopping is not None and id in self._client._calls.records:
                self._fail_unsent(stopping.record, stopping.error)

    def on_worker_died(self, worker: str) -> None:
        """Ahead of what its death means for others."""
        for stopping in self._pending.with_worker(worker):
            record = stopping.record
            if record.lane is None or self._client._calls.records.get(record.id) is not record:
                continue
            lease = record.lane.leases.get(worker)
            if lease is not None and lease.in_flight.pop(record.id, None) is not None:
                self._client._calls.fail(record, stopping.error)
                if worker in self._killed:  # by us: the others there are not to blame
                    record.lane.gave_back(worker, list(lease.in_flight))
        self._killed.discard(worker)
