"""A buffer against a list, with sizes at the boundaries; and restored into another size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlplat.rl.replay.circular_buffer import CircularBuffer


def empty(capacity: int) -> CircularBuffer:
    columns = {"pairs": np.zeros((capacity, 2), np.int64), "numbers": np.zeros(capacity, np.float32)}
    return CircularBuffer(columns, np.random.SeedSequence(1))


def add(buffer: CircularBuffer, first: int, count: int) -> None:
    numbers = np.arange(first, first + count)
    buffer.add([np.stack([numbers, -numbers], axis=1), numbers.astype(np.float32)])


def numbers_of(buffer: CircularBuffer) -> list[float]:
    """Sorted, having looked whether rows are whole."""
    pairs, numbers = buffer.get_state()["columns"].values()
    assert len(numbers) == len(buffer)
    assert (pairs[:, 0] == numbers).all() and (pairs[:, 1] == -numbers).all()
    return sorted(numbers.tolist())


@given(st.integers(1, 5), st.lists(st.integers(0, 12), max_size=5), st.integers(1, 12), st.integers(0, 12))
def test_it_holds_the_newest_also_after_it_was_restored(
    capacity: int, counts: list[int], other: int, more: int
) -> None:
    buffer, number = empty(capacity), 0
    for count in counts:
        add(buffer, number, count)
        number += count
        assert buffer.num_added == number
    everything = list(range(number))
    assert len(buffer) == min(number, capacity) and numbers_of(buffer) == everything[-capacity:]
    saved = buffer.get_state()
    restored = empty(other)
    restored.set_state(saved)
    held = everything[-capacity:][-other:]
    assert numbers_of(restored) == held
    if other == capacity:
        for name, column in restored.get_state()["columns"].items():
            np.testing.assert_array_equal(column, saved["columns"][name])
        assert restored.num_added == number
    add(restored, number, more)
    assert numbers_of(restored) == [*held, *range(number, number + more)][-other:]
