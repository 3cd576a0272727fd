"""The check of what is freed, on known events in order: which frames hand a ref to somebody, and which do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlplat.runtime.core.gone import Dead
from rlplat.runtime.core.owner.book import Book
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value
from rlplat.runtime.worker.queue import Queue
from rlplat.runtime.worker.worker import Worker
from tests.simulation.invariants import Invariants
from tests.simulation.world import Violation

KEY = ("w3", 1)
LENT = Value(refs=[KEY])


class Story:
    """w3 owns object 1 and has lent it to w2."""

    def __init__(self) -> None:
        self.book, self.in_flight = Book(), list[tuple[str, str, bytes]]()
        self.value = Value(codec.pack(7).data, holder=KEY)
        entry = self.book.add(1)
        entry.value = self.value
        self.book.lend(1, "w2")
        self.book.unref(1)
        self.borrower = Worker.__new__(Worker)
        self.borrower.objects = SimpleNamespace(borrows={}, dead=Dead())  # type: ignore[assignment]
        self.borrower.queue = Queue()
        processes = {name: SimpleNamespace(is_alive=True, client=self.borrower) for name in ("w2", "w3")}
        world: Any = SimpleNamespace(processes=processes, frames_in_flight=lambda: self.in_flight)
        cluster: Any = SimpleNamespace(clients=lambda: [self.borrower])
        history: Any = SimpleNamespace(found_by_name=())
        self.free = Invariants(world, cluster, history)._watched_freed(
            SimpleNamespace(client_id="w3"), lambda entry: None
        )

    def send(self, sender: str, message: Any) -> None:
        self.in_flight.append((sender, "w2", messages.encode([message])))

    def returned(self) -> None:
        self.book.returned(1, "w2", 1)
        self.free(self.book.freed.popleft())


def test_an_answer_to_one_who_has_returned_the_object_lends_nothing() -> None:
    """w2 asks for the value, and drops the ref before it comes: Fetch and Returned leave together."""
    story = Story()
    story.send("w3", messages.Fetched(1, story.value))
    story.returned()


@pytest.mark.parametrize(
    "message",
    [
        messages.Run(5, "task", "", Value(holder=KEY)),
        messages.Run(5, "task", "", b"", messages.More(deps=[(0, LENT)])),
        messages.Done([5], [b"", [Value(), LENT]]),
        messages.Fetched(2, LENT),
        messages.Item(5, 0, LENT),
        messages.Code("task", "task", b"", [KEY]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_ref_in_a_message_is_under_way(message: Any) -> None:
    story = Story()
    story.send("w1", message)
    with pytest.raises(Violation, match="under way"):
        story.returned()


def test_a_ref_in_a_call_that_waits_unopened_is_under_way_while_its_caller_lives() -> None:
    story = Story()
    story.borrower.queue.calls.append(("w1", messages.Run(5, "task", "", LENT)))
    with pytest.raises(Violation, match="under way"):
        story.returned()
    again = Story()
    again.borrower.queue.calls.append(("w1", messages.Run(5, "task", "", LENT)))
    again.borrower.objects.dead.add_with("w1", "was ended by SIGKILL")
    again.returned()
