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
from collections.abc import Container
from copy import copy
from dataclasses import dataclass

from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.wire.values import ErrorInfo

WINDOW = 1000


@dataclass(frozen=True)
class Fail:
    """This call will have no result."""

    record: TaskRecord
    error: ErrorInfo


class ActorCalls:
    """Events are methods: those that let calls go return the records to send now, in order; the others what to fail."""

    def __init__(self, class_name: str, open_calls: Container[int]) -> None:
        self.class_name = class_name
        self.worker: str | None = None
        """Where its present incarnation is; None while it has none."""
        self.incarnation = 0
        self.gone: ErrorInfo | None = None
        self.queue: deque[TaskRecord] = deque()
        self.in_flight: dict[int, TaskRecord] = {}
        self.known_code: set[str] = set()
        self.creation: TaskRecord | None = None
        """The creator of an actor that may restart keeps what it takes to make it again."""
        self.names: dict[str, str] = {}
        """Of its methods, as messages call them."""
        self.last_seq = 0
        self._open_calls = open_calls
        """Calls that somebody waits for: one that failed or was cancelled meanwhile is passed over."""

    def num_pending(self) -> int:
        """Calls that somebody waits for; its creation is none."""
        records = [*self.queue, *self.in_flight.values()]
        return sum(each.message.creation is None and each.id in self._open_calls for each in records)

    # ---------------------------------------------------------------- events that let calls go

    def queued(self, record: TaskRecord, is_exactly_once: bool = False) -> list[TaskRecord]:
        """A call was made."""
        if is_exactly_once:
            self.last_seq += 1
            record.message.more.seq = self.last_seq
        self.queue.append(record)
        return self.advance()

    def advance(self) -> list[TaskRecord]:
        """Arguments have come, or a place in the window is free: what can go now."""
        out: list[TaskRecord] = []
        if self.worker is None:
            return out
        queue, in_flight, is_open = self.queue, self.in_flight, self._open_calls
        while queue:
            record = queue[0]
            if record.id not in is_open:
                queue.popleft()
                continue
            if record.waits:
                break
            if seq_of(record):
                if len(in_flight) >= WINDOW:
                    break
                # An actor's creation may be the oldest, or a call without a number: then nothing new has been answered.
                record.message.more.answered = max(0, seq_of(next(iter(in_flight.values()), record)) - 1)
            queue.popleft()
            in_flight[record.id] = record
            out.append(record)
        return out

    def placed(self, worker: str, incarnation: int) -> list[TaskRecord]:
        """It runs in this worker. (Its loss, if there was one before, has been told: `restarting`.)"""
        if self.gone is not None or incarnation <= self.incarnation:
            return []
        self.worker, self.incarnation = worker, incarnation
        self.known_code = set()
        head = self.queue[0] if self.queue else None
        if self.creation is not None and (head is None or head.message is not self.creation.message):
            again = copy(self.creation)
            self.in_flight[again.id] = again
            return [again, *self.advance()]
        return self.advance()

    def replied(self, id: int) -> list[TaskRecord]:
        """The result of a call is here (or nobody waits for it any more)."""
        self.in_flight.pop(id, None)
        return self.advance() if self.queue else []

    def again(self, record: TaskRecord) -> list[TaskRecord]:
        """It raised, and is to run once more."""
        self.in_flight.pop(record.id, None)
        self.queue.appendleft(record)
        return self.advance()

    # ---------------------------------------------------------------- events that are the end of calls

    def restarting(self, reason: str) -> list[Fail]:
        """Its incarnation is lost; it will have another."""
        if self.gone is not None:
            return []
        lost, self.worker = list(self.in_flight.values()), None
        self.in_flight.clear()
        again: list[TaskRecord] = []
        failed: list[Fail] = []
        for record in lost:
            if record.id not in self._open_calls:
                continue
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
        self.queue.extendleft(reversed(again))
        return failed

    def ended(self, error: ErrorInfo, was_made: bool = True) -> list[Fail]:
        """It is gone for good. `was_made`: False when its constructor failed, so that no call can have run."""
        if self.gone is not None:
            return []
        self.gone, self.worker, self.creation = error, None, None
        out = [
            Fail(record, _with_fate(record, error, "may or may not have run" if was_made else "did not run"))
            for record in self.in_flight.values()
        ]
        out += [Fail(record, _with_fate(record, error, "did not run")) for record in self.queue]
        self.in_flight.clear()
        self.queue.clear()
        return [fail for fail in out if fail.record.id in self._open_calls]


def seq_of(record: TaskRecord) -> int:
    """The number of an exactly-once call; 0: it is none."""
    more = record.message.more
    return 0 if more is None else int(more.seq)


def _with_fate(record: TaskRecord, error: ErrorInfo, fate: str) -> ErrorInfo:
    if record.message.creation is not None or error.kind != "ActorDied":
        return error
    return ErrorInfo(error.kind, f"{record.name} {fate}: {error.message}", error.exception)
