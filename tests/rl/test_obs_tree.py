"""Observations as arrays or as dicts of arrays, handled alike."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.acting import find_no_choice
from rlplat.rl.interfaces import Obs
from rlplat.rl.obs_tree import (
    concat_obs,
    copy_obs,
    find_not_finite,
    flat_actions,
    map_obs,
    obs_rows,
    take_obs,
    where_rows,
)
from rlplat.rl.spaces import ActionSpec

ARRAY = np.arange(6.0).reshape(3, 2)
TREE = {"a": ARRAY, "b/c": np.arange(3)}


@pytest.mark.parametrize("obs", [ARRAY, TREE])
def test_rows(obs: Obs) -> None:
    assert obs_rows(obs) == 3
    taken = concat_obs([take_obs(obs, np.array([2])), take_obs(obs, slice(0, 2))])
    order = [2, 0, 1]
    map_obs(np.testing.assert_array_equal, taken, take_obs(obs, order))
    chosen = where_rows(np.array([True, False, True]), obs, map_obs(np.zeros_like, obs))
    leaf = chosen["a"] if isinstance(chosen, dict) else chosen
    assert leaf.tolist() == [[0, 1], [0, 0], [4, 5]]


def test_a_copy_shares_nothing() -> None:
    copied = copy_obs(TREE)
    assert isinstance(copied, dict) and list(copied) == ["a", "b/c"]
    assert not any(np.shares_memory(copied[path], TREE[path]) for path in TREE)


def test_what_is_not_finite() -> None:
    assert find_not_finite(ARRAY) is None and find_not_finite(TREE) is None
    bad = ARRAY.copy()
    bad[1, 1] = np.inf
    assert find_not_finite(bad)[:2] == (1, " at index (1,)")  # type: ignore[index]
    row, where, values = find_not_finite({**TREE, "z": bad})  # type: ignore[misc]
    assert (row, where, values.tolist()) == (1, " 'z' at index (1,)", [2.0, np.inf])
    assert find_not_finite(np.array([0.0, np.nan]))[:2] == (1, "")  # type: ignore[index]


def test_where_nothing_can_be_chosen() -> None:
    mask = np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]], np.bool_)
    everywhere = np.ones(3, np.bool_)
    assert find_no_choice(mask, (5,), everywhere) is None
    assert find_no_choice(mask, (2, 3), everywhere) == (1, " for choice 1 (entries 2 to 4)")
    assert find_no_choice(mask, (2, 3), np.array([True, False, True])) == (
        2,
        " for choice 0 (entries 0 to 1)",
    )
    assert find_no_choice(~mask & mask, (5,), everywhere) == (0, "")


def test_actions_as_numbers() -> None:
    """A Box by its bounds, where it has both; choices one-hot; of a Dict each part."""
    box = ActionSpec("box", shape=(3,), dtype="float32", low=(-2.0, 0.0, -np.inf), high=(2.0, 10.0, 1.0))
    flat = flat_actions(np.array([[1, 10, -7], [-2, 5, 0.5]], np.float32), box)
    assert flat.dtype == np.float32 and flat.tolist() == [[0.5, 1, -7], [-1, 0, 0.5]]
    discrete, bits = ActionSpec("discrete", n=3), ActionSpec("multi_binary", shape=(2,))
    assert flat_actions(np.array([2, 0]), discrete).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert flat_actions(np.array([[1, 0]]), bits).tolist() == [[1, 0]]
    several = ActionSpec("multi_discrete", shape=(2,), nvec=(2, 3))
    assert flat_actions(np.array([[1, 0]]), several).tolist() == [[0, 1, 1, 0, 0]]
    tree = ActionSpec("composite", parts=(("a", discrete), ("b", box)))
    assert flat_actions(np.array([[1, 1, 10, -7]], np.float32), tree).tolist() == [[0, 1, 0, 0.5, 1, -7]]
