"""One actor as one of its callers sees it: which calls wait, which are under way, what a restart means for them. Pure.

Rules
1. Calls leave in the order in which they were made: one that waits for an argument holds up those behind it.
2. Calls wait while the actor has no address: before its first worker, and between a death and the next incarnation.
3. When an incarnation is lost, what was under way there may or may not have run. A call with `max_task_retries` left
   goes back to the head of the queue, in order; the others fail and say so. What was never sent just waits.
4. The creator sends the constructor's call to each incarnation, ahead of all others. It is never charged: how often an
   actor may restart is the scheduler's to count.
5. News of an incarnation that is older than the present one is void.
6. A call that raised what its `retry_exceptions` name goes once more, behind those that were sent meanwhile.
7. Exactly-once calls are numbered from 1; at most `WINDOW` of them are under way, which bounds what the actor keeps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rlplat.runtime.core.owner.lanes import Lease, TaskRecord
from rlplat.runtime.wire.values import ErrorInfo

WINDOW = 1000


@dataclass(frozen=True)
class Fail:
    """This call will have no result."""

    record: TaskRecord
    error: ErrorInfo


class ActorCalls:
    kind, shape = "call", None

    def __init__(self, actor_id: str, class_name: str) -> None:
        self.actor_id, self.class_name = actor_id, class_name
        self.lease: Lease | None = None
        """Its present incarnation; None while it has none."""
        self.incarnation = 0
        self.gone: ErrorInfo | None = None
        self.queue: deque[TaskRecord] = deque()
        self.creation: TaskRecord | None = None
        """The creator of an actor that may restart keeps what it takes to make it again."""
        self.names: dict[str, str] = {}
        """Of its methods, as messages call them."""
        self.last_seq = 0

    @property
    def worker(self) -> str | None:
        return None if self.lease is None else self.lease.worker

    def calls(self) -> list[TaskRecord]:
        """All that somebody waits for: those under way, then those that were not sent."""
        in_flight = () if self.lease is None else self.lease.in_flight.values()
        return [record for record in (*in_flight, *self.queue) if record.is_open]

    def num_pending(self) -> int:
        """Its creation is none."""
        return sum(record.message.creation is None for record in self.calls())

    def why_waiting(self, record: TaskRecord) -> str:
        if self.lease is not None:
            return f"which is with worker {self.lease.worker}"
        return "whose actor starts again" if self.incarnation else "whose actor waits for its resources"

    def waits_for(self, record: TaskRecord) -> tuple[str, TaskRecord]:
        """See `Lane.waits_for`."""
        is_queued = record.lease is None and self.queue
        return self.worker or "", self.queue[0] if is_queued else record

    # ---------------------------------------------------------------- what goes next

    def queued(self, record: TaskRecord) -> None:
        """A call was made. (One that is to take effect once has a `seq` of -1.)"""
        if seq_of(record) < 0:
            self.last_seq += 1
            record.message.more.seq = self.last_seq
        self.queue.append(record)

    def resolved(self, record: TaskRecord) -> None:
        """The last of its arguments has come: it stands in the queue already."""

    def assign(self, pace: object = None) -> list[tuple[Lease, list[TaskRecord]]]:
        """The calls to send now, in order."""
        out: list[TaskRecord] = []
        queue, lease = self.queue, self.lease
        while lease is not None and queue:
            record = queue[0]
            if not record.is_open:
                queue.popleft()
                continue
            if record.waits:
                break
            if seq_of(record):
                if len(lease.in_flight) >= WINDOW:
                    break
                # The oldest may be the creation, or a call without a number: then nothing new has been answered.
                record.message.more.answered = max(0, seq_of(next(iter(lease.in_flight.values()), record)) - 1)
            queue.popleft()
            lease.add(record)
            out.append(record)
        return [(lease, out)] if lease is not None and out else []

    # ---------------------------------------------------------------- news

    def placed(self, worker: str, incarnation: int) -> bool:
        """It runs in this worker. (Its loss, if there was one before, has been told: `restarting`.) Returns whether its
        creation is to go ahead of what is queued."""
        if self.gone is not None or incarnation <= self.incarnation:
            return False
        self.lease, self.incarnation = Lease(worker), incarnation
        is_queued = bool(self.queue) and self.queue[0].message.creation is not None
        return self.creation is not None and not is_queued

    def again(self, record: TaskRecord) -> None:
        """It raised, and is to run once more."""
        if record.lease is not None:
            record.lease.remove(record)
        self.queue.appendleft(record)

    def restarting(self, reason: str) -> list[Fail]:
        """Its incarnation is lost; it will have another."""
        if self.gone is not None or self.lease is None:
            return []
        again: list[TaskRecord] = []
        failed: list[Fail] = []
        for record in self.lease.in_flight.values():
            record.lease = None
            if record.message.creation is not None:
                again.append(record)
            elif record.retries_left == 0:
                text = (
                    f"{record.name} may or may not have run: its actor's process died while the call was with it, and "
                    f"no max_task_retries are left. The actor starts again. {reason}"
                )
                failed.append(Fail(record, ErrorInfo("ActorDied", text)))
            else:
                if record.retries_left > 0:
                    record.retries_left -= 1
                again.append(record)
        self.lease = None
        self.queue.extendleft(reversed(again))
        return failed

    def ended(self, error: ErrorInfo, was_made: bool = True) -> list[Fail]:
        """It is gone for good. `was_made`: False when its constructor failed, so that no call can have run."""
        if self.gone is not None:
            return []
        out = []
        for record in self.calls():
            fate = "may or may not have run" if was_made and record.lease is not None else "did not run"
            out.append(Fail(record, _with_fate(record, error, fate)))
            record.lease = None
        self.gone, self.lease, self.creation = error, None, None
        self.queue.clear()
        return out


def seq_of(record: TaskRecord) -> int:
    """The number of an exactly-once call; 0: it is none."""
    more = record.message.more
    return 0 if more is None else int(more.seq)


def _with_fate(record: TaskRecord, error: ErrorInfo, fate: str) -> ErrorInfo:
    if record.message.creation is not None or error.kind != "ActorDied":
        return error
    return ErrorInfo(error.kind, f"{record.name} {fate}: {error.message}", error.exception)
