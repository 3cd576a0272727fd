"""Deadlines and graces, with the clock passed in."""

from __future__ import annotations

from rlplat.runtime.core.owner.deadlines import Pending, Stopping
from rlplat.runtime.core.owner.lanes import TaskRecord
from rlplat.runtime.wire.messages import Run
from rlplat.runtime.wire.values import ErrorInfo


def record(id: int) -> TaskRecord:
    return TaskRecord(id, Run(id, "f", "", b""), None, "f", (id,), None, None)


def stopping(id: int, worker: str, kill_at: float | None) -> Stopping:
    return Stopping(record(id), worker, ErrorInfo("TaskCancelled", ""), kill_at)


def pending(*calls: Stopping) -> Pending:
    book = Pending()
    book.stopping.update({each.record.id: each for each in calls})
    return book


def test_deadlines_fall_due_in_order_and_once() -> None:
    book = pending()
    assert book.next_at() is None
    assert book.add_deadline(1, 10.0, 5.0)
    assert not book.add_deadline(2, 12.0, 5.0)
    assert book.add_deadline(3, 8.0, 1.0), "the nearest: whoever sleeps must look again"
    assert book.next_at() == 8.0
    assert book.due_deadlines(7.9) == []
    assert book.due_deadlines(10.0) == [(3, 1.0), (1, 5.0)]
    assert book.due_deadlines(11.0) == []
    assert book.next_at() == 12.0


def test_a_grace_ends_once_and_only_for_those_that_have_one() -> None:
    book = pending(stopping(1, "w1", 5.0), stopping(2, "w2", None), stopping(3, "w1", 6.0))
    assert book.next_at() == 5.0
    assert [each.record.id for each in book.due_kills(5.5)] == [1]
    assert book.due_kills(5.6) == []
    assert book.next_at() == 6.0


def test_a_dead_worker_takes_its_calls_out() -> None:
    book = pending(stopping(1, "w1", 5.0), stopping(2, "w2", None), stopping(3, "w1", 6.0))
    assert [each.record.id for each in book.with_worker("w1")] == [1, 3]
    assert list(book.stopping) == [2]
    assert book.with_worker("w1") == []


def test_deadlines_of_finished_calls_do_not_pile_up() -> None:
    book = pending()
    unfinished: dict[int, bool] = {}
    for id in range(20_000):
        unfinished[id] = True
        unfinished.pop(id - 10, None)
        book.forget_finished(unfinished.get)
        book.add_deadline(id, 3600.0 + id, 3600.0)
    assert len(book._deadlines) <= 1002
    assert {task for task, _ in book.due_deadlines(1e9)} >= set(unfinished)


def test_a_call_that_ended_while_it_was_stopped_is_looked_at_at_once() -> None:
    """It has no grace: nothing else would ever let go of its refs."""
    call = stopping(1, "w1", None)
    book = pending(call)
    assert book.next_at() is None
    call.record.is_open = False
    assert book.next_at() == 0.0
