"""The owner's book of a generator: order, window, what is given at the end."""

from __future__ import annotations

from rlplat.runtime.core.owner.streams import Stream


def stream(window: int = 4) -> Stream:
    return Stream(7, "numbers", window, is_dynamic=False)


def test_values_count_once_and_in_order() -> None:
    book = stream()
    assert book.arrived(0)
    assert not book.arrived(0), "the same value again"
    assert not book.arrived(2), "a gap"
    assert book.arrived(1)
    assert book.num_have == 2
    book.ended(has_failed=False)
    assert not book.arrived(2), "a value behind the end"


def test_the_worker_is_told_in_time_and_not_for_every_value() -> None:
    for window in (1, 2, 3, 4, 64):
        book = stream(window)
        sent = told = 0
        tellings = 0
        for value in range(500):
            while sent - told < window:  # the worker goes on as far as it may
                assert book.arrived(sent)
                book.ready.append(sent)
                sent += 1
            assert book.can_take(), "the worker waits for a consumer who waits for the worker"
            ref, count = book.take()
            assert ref == value
            if count:
                assert told < count <= value + 1
                told = count
                tellings += 1
        assert sent - 500 <= window
        assert tellings <= 500 // max(1, window // 2)


def test_without_a_window_the_worker_is_never_told() -> None:
    book = stream(0)
    for i in range(100):
        book.arrived(i)
        book.ready.append(i)
    assert [book.take() for _ in range(100)] == [(i, 0) for i in range(100)]


def test_a_failure_is_given_once_behind_the_values() -> None:
    book = stream()
    assert not book.can_take()
    book.arrived(0)
    book.ready.append("value")
    book.ended(has_failed=True)
    assert book.can_take()
    assert book.take() == ("value", 0), "nobody is there to be told"
    assert book.can_take()
    assert book.take_failure()
    assert not book.take_failure()
