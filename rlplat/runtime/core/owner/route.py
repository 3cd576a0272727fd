"""The way of a call, to a worker that is leased for tasks of its shape, or to its actor: what is asked of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlplat.runtime.core.owner.lanes import Lane, TaskRecord
from rlplat.runtime.wire.values import ErrorInfo, Value


class Route(Protocol):
    @property
    def kind(self) -> str:
        """ "task" or "call"."""
        ...

    @property
    def lane(self) -> Lane | None:
        """Where a task waits; None for calls of actors."""
        ...

    def sent_to(self, record: TaskRecord) -> str | None:
        """The worker that has it, which is where its result must come from; None when none has it."""
        ...

    def in_flight(self, record: TaskRecord, worker: str) -> dict[int, TaskRecord] | None:
        """What this worker has, when a small result from there needs no more than to be taken out of it."""
        ...

    def resolved(self, record: TaskRecord) -> None:
        """The last of its arguments has come."""
        ...

    def finished(self, record: TaskRecord, worker: str, values: Sequence[Value]) -> Sequence[Value]:
        """Its result is here; returns the values to give to whoever waits."""
        ...

    def again(self, record: TaskRecord) -> None:
        """It raised, and is to run once more."""
        ...

    def rebuild(self, record: TaskRecord) -> None:
        """Its result was lost, and is to be made again: it is in the books, with as many arguments as are there."""
        ...

    def failed(self, record: TaskRecord) -> None:
        """It has left the books without a result: no worker has it any more."""
        ...

    def fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        """It fails, and has not left this process."""
        ...

    def waits_for(self, record: TaskRecord) -> tuple[str, TaskRecord]:
        """The worker that it is with or bound for ("": none yet), and the call whose arguments it waits for: its own,
        or one ahead of it."""
        ...

    def why_waiting(self, record: TaskRecord) -> str:
        """Why it has no result yet, in words."""
        ...
