"""What must hold of replays and their parts between two calls."""

from __future__ import annotations

import numpy as np

from rlplat.rl.replay.buffer import ReplayBuffer
from rlplat.rl.replay.step_store import TRUNCATED, StepStore
from rlplat.rl.replay.sum_tree import SumTree


def check_buffer(replay: ReplayBuffer) -> None:
    check_store(replay.store)
    assert len(replay) == replay.store.is_complete.sum()
    if replay._priorities is not None:
        check_tree(replay._priorities.tree)
        drawable = replay._priorities.tree.get(np.arange(len(replay.store.stamps))) > 0
        np.testing.assert_array_equal(drawable, replay.store.is_complete)


def check_store(store: StepStore) -> None:
    for lane in range(store.num_lanes):
        tail, head = int(store.tails[lane]), int(store.heads[lane])
        assert 0 <= head - tail <= store.lane_capacity, (tail, head)
        stamps = np.arange(tail, head)
        rows = lane * store.lane_capacity + stamps % store.lane_capacity
        np.testing.assert_array_equal(store.stamps[rows], stamps)
    outside = np.ones(len(store.stamps), np.bool_)
    outside[store.rows_in_use()] = False
    assert not store.is_complete[outside].any(), "a row that is gone counts as complete"
    complete = np.flatnonzero(store.is_complete)
    assert (store.kinds[complete] <= TRUNCATED).all()
    boots = store.discounts[complete] > 0
    rows = store.bootstrap_rows(complete)[boots]
    assert (store.stamps[rows] == (store.stamps[complete] + store.num_steps[complete])[boots]).all()


def check_tree(tree: SumTree) -> None:
    """Every inner node is the sum of its children, and nothing is negative."""
    assert (tree._levels[0] >= 0.0).all(), "negative priority"
    for below, above in zip(tree._levels, tree._levels[1:], strict=False):
        sums = below.sum(axis=1)
        np.testing.assert_array_equal(above.reshape(-1)[: len(sums)], sums)
