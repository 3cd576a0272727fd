"""The way of a call, to a worker that is leased for tasks of its shape, or to its actor: what is asked of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.wire.values import ErrorInfo, Value


class Route(Protocol):
    @property
    def kind(self) -> str:
        """ "task" or "call"."""
        ...

    def worker_of(self, record: TaskRecord) -> str | None:
        """Where its result must come from."""
        ...

    def sent_to(self, record: TaskRecord) -> str | None:
        """The worker that has it; None when it was not sent."""
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
        """It has left the books without a result."""
        ...

    def withdraw(self, record: TaskRecord) -> None:
        """It is to leave the queue that it waits in."""
        ...

    def fail_unsent(self, record: TaskRecord, error: ErrorInfo) -> None:
        """It fails, and has not left this process."""
        ...

    def doom(self, worker: str) -> None:
        """This worker is to be killed to end a call: what it has besides runs again, and is not charged."""
        ...

    def ended_with(self, record: TaskRecord, worker: str) -> bool:
        """Whether it was to end, and has done so with its worker."""
        ...

    def held_up_by(self, record: TaskRecord) -> TaskRecord | None:
        """The call that it waits behind, because that waits for an argument; maybe itself."""
        ...

    def why_waiting(self, record: TaskRecord) -> str:
        """Why it has no result yet, in words."""
        ...

    def resources(self) -> dict[str, float]:
        """What each of its calls takes."""
        ...
