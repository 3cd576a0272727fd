"""Reduction in a tree of tasks: the same bits as in one process, for every number of items and every fan-in."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import rlplat
from rlplat.errors import RlplatError
from rlplat.rl.sampling.perturbed_episodes import reduce_in_tasks, reduce_pairs


def bracket(left: str, right: str) -> str:
    return f"({left}{right})"


def add(left: float, right: float) -> float:
    return left + right


@pytest.mark.parametrize(
    "items, expected",
    [("a", "a"), ("ab", "(ab)"), ("abc", "((ab)c)"), ("abcde", "(((ab)(cd))e)"), ("abcdef", "(((ab)(cd))(ef))")],
)  # fmt: skip
def test_neighbours_are_combined_level_by_level(items: str, expected: str) -> None:
    assert reduce_pairs(list(items), bracket) == expected


@pytest.mark.parametrize("fan_in", [2, 4, 8])
def test_the_tree_has_the_order_of_one_process(fan_in: int) -> None:
    rlplat.init(backend="inproc")
    for number in (1, 2, 7, 8, 9, 31, 33, 50):
        items = [chr(ord("A") + index) for index in range(number)]
        refs = reduce_in_tasks([rlplat.put(item) for item in items], bracket, fan_in)
        assert len(refs) <= fan_in
        assert reduce_pairs(rlplat.get(refs), bracket) == reduce_pairs(items, bracket)
    rlplat.shutdown()


def test_sums_of_floats_are_equal_bit_for_bit(cluster: None) -> None:
    """In worker processes; left to right, the same numbers add up to something else."""
    items = np.random.default_rng(0).standard_normal(37).tolist()
    expected = reduce_pairs(items, add)
    assert expected != functools.reduce(add, items)
    refs = reduce_in_tasks([rlplat.put(item) for item in items], add, 4)
    assert reduce_pairs(rlplat.get(refs), add) == expected


def test_a_lost_item_is_not_left_out() -> None:
    @rlplat.remote
    def fails() -> float:
        raise ValueError("lost")

    rlplat.init(backend="inproc")
    refs = reduce_in_tasks([rlplat.put(1.0), fails.remote(), *map(rlplat.put, range(7))], add, 2)
    with pytest.raises(RlplatError, match="lost"):
        rlplat.get(refs)
    rlplat.shutdown()
