"""Ending calls ahead of their time: `cancel`, deadlines, generators that nobody reads. The owner's side.

Rules
1. A call that was not sent yet is taken out of its queue, and fails there and then.
2. One that was sent: its worker is asked. It drops a queued one, interrupts a running task (KeyboardInterrupt in its
   main thread), cancels a coroutine; a running sync call of an actor goes on, its generator to the next value. Whatever
   comes first counts, so a result that is under way stands.
3. A task that has not ended `CANCEL_GRACE_S` later, or at once with `force`: its worker is killed. From then on it gets
   no other, whether this one still finishes or not; those that were queued there run elsewhere and are not charged.
   The calls of an actor are not worth its life, but at a deadline.
4. A deadline fails the ref at once, then ends the call as above with `DEADLINE_GRACE_S`, in actors too.
5. A cancelled call is not retried, nor one whose generator nobody reads. One that has finished, or is not known, is
   left alone.

`Pending` (`core.owner.deadlines`) is pure; this is its shell, with the client's lock held unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlplat.runtime.client.calls import Calls
from rlplat.runtime.client.objects import Objects
from rlplat.runtime.core.owner.deadlines import Stopping
from rlplat.runtime.core.owner.lanes import Lane, TaskRecord
from rlplat.runtime.link.chores import NEVER
from rlplat.runtime.link.link import Link
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import NODE
from rlplat.runtime.wire.values import ErrorInfo, Value

CANCEL_GRACE_S = 5.0
DEADLINE_GRACE_S = 1.0


class Cancels:
    def __init__(self, link: Link, objects: Objects, calls: Calls) -> None:
        self._link, self._loop, self._transport = link, link.loop, link.transport
        self._objects, self._calls, self._clock = objects, calls, link.clock
        self._pending = calls.pending
        link.on(messages.CancelObject, lambda _, m: self._cancel(m.id, m.force, m.recursive))
        link.chore(self._look, self._due_s)

    # ---------------------------------------------------------------- what users do

    def cancel(self, ref: ObjectRef, force: bool, recursive: bool) -> None:
        """(Takes the lock.)"""
        with self._link.lock:
            self._link.check_open()
            if ref.owner == self._link.client_id:
                record = self._find(ref.id)
                if force and record is not None and record.queue.kind == "call":
                    raise ValueError("force=True is for tasks; an actor's process is ended by rlplat.kill(actor)")
                self._cancel(ref.id, force, recursive)
            elif ref.owner not in self._objects.dead:
                self._transport.post(ref.owner, messages.CancelObject(ref.id, force, recursive))
            self._calls.go_on()
            self._loop.send_now()
            self._loop.notify()

    def _find(self, id: int) -> TaskRecord | None:
        """The unfinished call that is to make this object."""
        entry = self._objects.book.find(id)
        record: TaskRecord | None = None if entry is None or entry.value is not None else entry.call
        return None if record is None or record.message.creation is not None else record

    def _cancel(self, id: int, force: bool, recursive: bool) -> None:
        record = self._find(id)
        if record is not None:
            self.stop(record, force, recursive)

    def stop(self, record: TaskRecord, force: bool, recursive: bool) -> None:
        kind = record.queue.kind
        error = ErrorInfo("TaskCancelled", f"{kind} {record.name} was cancelled by rlplat.cancel")
        force = force and kind == "task"
        grace_s = None if kind == "call" else 0.0 if force else CANCEL_GRACE_S
        self._stop(record, error, grace_s, recursive, is_asked=not force)

    def close_generators(self, records: Iterable[TaskRecord]) -> None:
        """Nobody reads what these calls yield: they end at their next value, or with their worker."""
        for record in records:
            worker, error = record.worker, ErrorInfo("TaskCancelled", f"nobody reads {record.name} any more")
            if worker is None:
                self._calls.fail_unsent(record, error)
                continue
            record.retries_left = 0
            # (One that is being cancelled has its time limit already.)
            self._pending.stopping.setdefault(record.id, Stopping(record, worker, error, kill_at=None))
            self._transport.post(worker, messages.CancelTask(record.id, False, is_close=True))
        self._look()

    # ---------------------------------------------------------------- how calls end

    def _stop(
        self, record: TaskRecord, error: ErrorInfo, grace_s: float | None, recursive: bool, is_asked: bool
    ) -> None:
        worker = record.worker
        if worker is None:
            self._calls.fail_unsent(record, error)
            return
        record.retries_left = 0
        kill_at = None if grace_s is None else self._clock() + grace_s
        self._pending.stopping[record.id] = Stopping(record, worker, error, kill_at)
        if is_asked:
            self._transport.post(worker, messages.CancelTask(record.id, recursive))
        self._tick()
        self._loop.wake()

    def _expire(self, record: TaskRecord, timeout_s: float) -> None:
        """Its deadline has passed: the ref fails now, the call is ended behind its back."""
        worker = record.worker
        where = "it had not been sent to a worker" if worker is None else f"it was with worker {worker}"
        error = ErrorInfo(
            "DeadlineExceeded",
            f"{record.name} did not finish within its timeout_s={timeout_s:g}: {where}. It is stopped",
        )
        if worker is not None:
            for id in record.ids:
                self._objects.fill(id, Value(error=error))
        self._stop(record, error, DEADLINE_GRACE_S, recursive=True, is_asked=True)

    # ---------------------------------------------------------------- time and deaths

    def _due_s(self) -> float:
        at = self._pending.next_at()
        return NEVER if at is None else at - self._clock()

    def _look(self) -> None:
        self._tick()
        self._calls.go_on()

    def _tick(self) -> None:
        now, pending = self._clock(), self._pending
        for task, timeout_s in pending.due_deadlines(now):
            record = self._objects.book.call(task)
            if record is not None:
                self._expire(record, timeout_s)
        for stopping in pending.due_kills(now):
            record = stopping.record
            if record.is_open and record.worker == stopping.worker:
                if isinstance(record.queue, Lane):
                    record.queue.doom(stopping.worker)
                reason = f"was killed to end {record.name} ({stopping.error.message})"
                self._transport.post(NODE, messages.KillWorker(stopping.worker, reason))
                self._transport.flush()
        for id in [id for id, each in pending.stopping.items() if not each.record.is_open]:
            del pending.stopping[id]
