"""Which task goes to which leased worker, and how many leases to ask for. Pure: no I/O, no clock, no locks.

Rules
1. One lane per shape (what its tasks need). A lane queues the tasks that are ready and holds the workers leased for it.
2. A worker gets as many tasks ahead as it can run in `AHEAD_S`, by the pace it reported for their code; one when
   the pace is unknown. Short tasks so travel in large frames, and a long task never has others queued behind it.
3. Leases asked for = tasks not yet covered by a lease, at most `max_leases`.
4. A worker that gave tasks back (it waits for something) gets none until it finishes one.
5. When a worker dies its tasks run again one by one, as far as `retries` allows.
6. A worker that is to be killed gets nothing more; what it has besides when it dies runs again, uncharged.
7. When nothing is queued and a worker is idle, the fullest other worker is asked to give back what it has not begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlplat.runtime.wire.values import Shape

AHEAD_S = 0.003
MAX_AHEAD = 512
MOST_CODES = 1000
"""So many functions a worker keeps, and an owner takes it to know."""


class TaskRecord(msgspec.Struct, eq=False, gc=False):
    """A task or actor call that its owner has not got the result of. (A Struct: a million of them must be cheap.)"""

    id: int
    message: Any
    """`messages.Run`."""
    code: Any
    """The `RemoteCode` that it runs; None for a call of an actor."""
    name: str
    ids: tuple[int, ...]
    """Of its return values."""
    refs: Any
    """Refs among the arguments: held until the result is here."""
    queue: Any
    """Where it waits until it is sent: a `Lane`, or the `ActorCalls` of its actor."""
    retries_left: int = 0
    lease: Lease | None = None
    """The worker that has it."""
    waits: int = 0
    """Arguments that are not there yet."""
    is_open: bool = True
    """False once it has a result. One that still waits in a queue is passed over there."""
    is_suspect: bool = False
    """It runs alone: it was in the company of others when their worker died, or it may run only once."""
    history: Any = None
    """`retries.History` of a task that failed before or that retries exceptions; else None."""
    stream: Any = None
    """`streams.Stream` of a generator's call."""

    @property
    def worker(self) -> str | None:
        """That has it, which is where its result must come from."""
        return None if self.lease is None else self.lease.worker


@dataclass(slots=True, eq=False)
class Lease:
    """A worker that runs calls of this process: leased for tasks of one shape, or the process of an actor."""

    worker: str
    in_flight: dict[int, TaskRecord] = field(default_factory=dict)
    known_code: set[str] = field(default_factory=set)
    is_stalled: bool = False
    was_asked_back: bool = False
    idle_since: float | None = None

    def add(self, record: TaskRecord) -> None:
        record.lease = self
        self.in_flight[record.id] = record

    def remove(self, record: TaskRecord) -> None:
        """It is done, or comes back."""
        record.lease = None
        self.in_flight.pop(record.id, None)
        self.is_stalled = self.was_asked_back = False


class Lane:
    kind = "task"

    def __init__(self, shape: Shape, max_leases: int) -> None:
        self.shape = shape
        self.max_leases = max_leases
        self.ready: deque[TaskRecord] = deque()
        self.leases: dict[str, Lease] = {}
        self.doomed: dict[str, Lease] = {}
        """Of workers that are to be killed."""
        self.num_requested = 0
        self.is_hungry = False
        """A worker may have nothing to do. A busy one takes what has gathered when its next results come in."""

    def is_done(self) -> bool:
        """Nothing is queued, leased or asked for."""
        return not (self.ready or self.leases or self.doomed or self.num_requested)

    def queued(self, record: TaskRecord) -> None:
        """A task was submitted."""
        if not record.waits:
            self.ready.append(record)

    def resolved(self, record: TaskRecord) -> None:
        """The last of its arguments has come."""
        self.ready.append(record)

    def why_waiting(self, record: TaskRecord) -> str:
        if record.lease is not None:
            return f"which is with worker {record.lease.worker}"
        return f"which waits for a worker with {dict(self.shape.demand)}"

    def waits_for(self, record: TaskRecord) -> tuple[str, TaskRecord]:
        """The worker that it is with or bound for ("": none yet), and the call whose arguments it waits for: its own,
        or one ahead of it."""
        return record.worker or "", record

    def lease_of(self, worker: str) -> Lease | None:
        return self.leases.get(worker) or self.doomed.get(worker)

    def doom(self, worker: str) -> None:
        """It is to be killed."""
        lease = self.leases.pop(worker, None)
        if lease is not None:
            self.doomed[worker] = lease

    def leases_to_request(self) -> int:
        """How many more to ask for now; counts them as requested."""
        have = len(self.leases) + self.num_requested
        stalled = sum(lease.is_stalled for lease in self.leases.values())
        wanted = min(len(self.ready) + len(self.leases), self.max_leases + stalled)
        count = max(0, wanted - have) if self.ready else 0
        self.num_requested += count
        return count

    def assign(self, pace: dict[str, float]) -> list[tuple[Lease, list[TaskRecord]]]:
        """Take ready tasks for workers with room, evenly."""
        assigned: list[tuple[Lease, list[TaskRecord]]] = []
        ready = self.ready
        self.is_hungry = False
        for index, lease in enumerate(self.leases.values()):
            if not ready:
                self.is_hungry = self.is_hungry or not lease.in_flight
                continue
            if lease.is_stalled:
                continue
            in_flight = lease.in_flight
            if in_flight:
                first = next(iter(in_flight.values()))
                if first.is_suspect or self._ahead(pace.get(first.code.key)) == 1:
                    continue  # it runs alone, or takes a while
            room = self._ahead(pace.get(ready[0].code.key)) - len(in_flight)
            room = min(room, -(-len(ready) // (len(self.leases) - index)))
            records: list[TaskRecord] = []
            while room > 0 and ready:
                record = ready[0]
                if not record.is_open:
                    del ready[0]
                    continue
                if record.is_suspect:
                    if in_flight:
                        break
                    room = 1
                del ready[0]
                record.lease = lease
                in_flight[record.id] = record
                records.append(record)
                room -= 1
            if records:
                assigned.append((lease, records))
        return assigned

    @staticmethod
    def _ahead(pace_s: float | None) -> int:
        if pace_s is None:
            return 1
        return max(1, min(MAX_AHEAD, int(AHEAD_S / max(pace_s, 1e-6))))

    def to_ask_back(self) -> Lease | None:
        """The worker to relieve (rule 7), once per filling."""
        if self.ready or not any(not lease.in_flight for lease in self.leases.values()):
            return None
        fullest = max(self.leases.values(), key=lambda lease: len(lease.in_flight))
        if len(fullest.in_flight) < 2 or fullest.was_asked_back:
            return None
        fullest.was_asked_back = True
        return fullest

    def gave_back(self, worker: str, ids: list[int], forgotten: str = "") -> None:
        """`forgotten`: the key of their code, when that is why."""
        lease = self.lease_of(worker)
        if lease is None:
            return
        lease.known_code.discard(forgotten)
        records = [lease.in_flight[id] for id in ids if id in lease.in_flight]
        for record in records:
            lease.remove(record)
        lease.is_stalled = bool(lease.in_flight)
        self.ready.extendleft(reversed(records))

    def again(self, record: TaskRecord) -> None:
        """It raised, and is to be tried again: behind those that wait."""
        if record.lease is not None:
            record.lease.remove(record)
        self.ready.append(record)

    def lose(self, worker: str, runs_again: Callable[[TaskRecord, bool], bool]) -> list[TaskRecord]:
        """The worker died. `runs_again(record, was it alone there)` is queued; those that do not are returned."""
        is_doomed = worker in self.doomed
        lease = self.doomed.pop(worker) if is_doomed else self.leases.pop(worker, None)
        if lease is None:
            return []
        records = list(lease.in_flight.values())
        for record in records:
            record.lease = None  # what the dead worker may have sent last is refused from now on
        failed = [record for record in records if not is_doomed and not runs_again(record, len(records) == 1)]
        self.ready.extendleft(record for record in reversed(records) if record not in failed)
        return failed

    def idle_leases(self, now: float, idle_s: float) -> list[Lease]:
        """Leases to return: nothing to run for `idle_s`."""
        out = []
        for lease in self.leases.values():
            if lease.in_flight or self.ready:
                lease.idle_since = None
                continue
            if lease.idle_since is None:
                lease.idle_since = now
            if now - lease.idle_since >= idle_s:
                out.append(lease)
        return out
