"""A ring against a list, with sizes at the boundaries; and restored into another size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlplat.rl.replay.ring import Ring


def empty(capacity: int) -> Ring:
    return Ring({"pairs": np.zeros((capacity, 2), np.int64), "numbers": np.zeros(capacity, np.float32)})


def add(ring: Ring, first: int, count: int) -> None:
    numbers = np.arange(first, first + count)
    ring.add([np.stack([numbers, -numbers], axis=1), numbers.astype(np.float32)])


def numbers_of(ring: Ring) -> list[float]:
    """Sorted, having looked whether rows are whole."""
    pairs, numbers = ring.rows(np.arange(len(ring)))
    assert (pairs[:, 0] == numbers).all() and (pairs[:, 1] == -numbers).all()
    return sorted(numbers.tolist())


@given(st.integers(1, 5), st.lists(st.integers(0, 12), max_size=5), st.integers(1, 12), st.integers(0, 12))
def test_it_holds_the_newest_also_after_it_was_restored(
    capacity: int, counts: list[int], other: int, more: int
) -> None:
    ring, number = empty(capacity), 0
    for count in counts:
        add(ring, number, count)
        number += count
        assert ring.num_added == number
    everything = list(range(number))
    assert len(ring) == min(number, capacity) and numbers_of(ring) == everything[-capacity:]
    saved = ring.get_state()
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
