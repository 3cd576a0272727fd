"""`SumTree` against a running sum over a plain array."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.rl.replay.sum_tree import SumTree
from tests.rl.replay.invariants import check_tree


@pytest.mark.parametrize("size", [1, 15, 16, 17, 300, 5000])
def test_finds_what_a_running_sum_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(20):
        indices = rng.integers(size, size=rng.integers(1, 40))
        priorities = rng.integers(0, 4, size=len(indices)).astype(float)  # sums of integers are exact
        tree.set(indices, priorities)
        for index, priority in zip(indices, priorities, strict=True):  # of an index twice, the last holds
            plain[index] = priority
        check_tree(tree)
        np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
        assert tree.total == plain.sum()
        if plain.sum():
            masses = rng.random(64) * plain.sum()
            expected = np.searchsorted(plain.cumsum(), masses, side="right")
            np.testing.assert_array_equal(tree.find(masses), expected)


def test_draws_are_proportional() -> None:
    tree = SumTree(40)
    tree.set(np.array([3, 20, 39]), np.array([1.0, 2.0, 5.0]))
    found = tree.find((np.arange(8000) + 0.5) * tree.total / 8000)
    np.testing.assert_array_equal(np.bincount(found, minlength=40)[[3, 20, 39]], [1000, 2000, 5000])


def test_rounding_never_finds_what_has_no_priority() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tree = SumTree(1000)
        some = rng.choice(1000, 7, replace=False)
        tree.set(some, rng.random(7) * 10.0 ** rng.integers(-12, 12, 7))
        edges = np.array([0.0, np.nextafter(tree.total, 0.0), tree.total, tree.total * 2.0])
        masses = np.concatenate([edges, rng.random(100) * tree.total, tree.get(some).cumsum()])
        assert np.isin(tree.find(masses), some).all()
        assert (tree.get(tree.find(masses)) > 0).all()
