from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rlplat.rl.interfaces import Episode
from rlplat.rl.obs_tree import put_obs
from rlplat.rl.sampling.sample_batch import COLUMNS, SampleBatch, episode_starts, join_envs


def make_batch(num_steps: int = 3, num_envs: int = 2) -> SampleBatch:
    obs, actions = np.zeros((num_envs, 4, 5), np.uint8), np.zeros(num_envs, np.int64)
    batch = SampleBatch.empty(num_steps, obs, actions, worker_index=1, weights_version=7)
    for name in COLUMNS:
        column = getattr(batch, name)
        column[:] = np.arange(column.size).reshape(column.shape) % 2
    batch.valid[:] = True
    return batch


def make_tree_batch(num_steps: int = 3, num_envs: int = 2) -> SampleBatch:
    obs = {"camera": np.zeros((num_envs, 1, 6, 6), np.uint8), "gear": np.zeros(num_envs, np.int64)}
    batch = SampleBatch.empty(num_steps, obs, np.zeros((num_envs, 3), np.float32))
    for t in range(num_steps):
        put_obs(batch.obs, t, {"camera": obs["camera"] + t, "gear": np.arange(num_envs) + 10 * t})
    batch.core_state = np.arange(num_envs * 4, dtype=np.float32).reshape(num_envs, 4)
    return batch


def test_empty_makes_columns_after_one_step() -> None:
    batch = make_batch()
    assert batch.shape == (3, 2)
    assert batch.obs.shape == (3, 2, 4, 5) and batch.obs.dtype == np.uint8
    assert batch.actions.shape == (3, 2) and batch.actions.dtype == np.int64
    assert batch.truncated.dtype == np.bool_ and batch.next_values.dtype == np.float32
    assert (batch.worker_index, batch.weights_version, batch.incarnation) == (1, 7, 0)


def test_rows_that_hold_no_decision_do_not_count() -> None:
    batch = make_batch()
    batch.valid[1, 0] = False
    assert batch.env_steps == 5
    np.testing.assert_array_equal(batch.valid_rows(), [0, 1, 3, 4, 5])


def test_flat_goes_through_time_then_environments_without_a_copy() -> None:
    batch = make_batch()
    batch.rewards[:] = [[0, 1], [2, 3], [4, 5]]
    np.testing.assert_array_equal(batch.flat("rewards"), [0, 1, 2, 3, 4, 5])
    obs = batch.flat_obs()
    assert isinstance(obs, np.ndarray) and isinstance(batch.obs, np.ndarray)
    assert obs.shape == (6, 4, 5) and np.shares_memory(obs, batch.obs)


def test_observations_by_path() -> None:
    batch = make_tree_batch()
    obs = batch.flat_obs()
    assert isinstance(obs, dict) and isinstance(batch.obs, dict)
    assert obs["camera"].shape == (6, 1, 6, 6) and obs["camera"].dtype == np.uint8
    np.testing.assert_array_equal(obs["gear"], [0, 1, 10, 11, 20, 21])
    np.testing.assert_array_equal(obs["camera"][:, 0, 0, 0], [0, 0, 1, 1, 2, 2])
    assert np.shares_memory(obs["gear"], batch.obs["gear"])


def test_put_obs_copies() -> None:
    """An environment may write its next observation into the same memory."""
    batch = make_batch()
    assert isinstance(batch.obs, np.ndarray)
    obs = np.full((2, 4, 5), 7, np.uint8)
    put_obs(batch.obs, 1, obs)
    obs[:] = 9
    assert (batch.obs[1] == 7).all() and not (batch.obs[0] == 7).all()


def test_episodes_start_after_ends_and_after_rows_that_only_reset() -> None:
    """Environment 0 terminates at t=1 and begins at once; environment 1 is cut off at t=1, row 2 only resets it, and
    the episode begins with row 3. What began before the fragment is the core state's business."""
    batch = make_batch(5, 3)
    batch.terminated[:], batch.truncated[:], batch.valid[:] = False, False, True
    batch.terminated[1, 0] = True
    batch.truncated[1, 1], batch.valid[2, 1] = True, False
    batch.terminated[4, 2] = True
    np.testing.assert_array_equal(episode_starts(batch), [[0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])


def test_no_episode_starts_after_a_forced_action() -> None:
    """Environment 0 only resets in row 2, in environment 1 FIRE was pressed there and the episode goes on."""
    batch = make_batch(5, 2)
    batch.terminated[:], batch.truncated[:], batch.valid[:] = False, False, True
    batch.terminated[1, 0] = True
    batch.valid[2] = False
    batch.forced = np.zeros(batch.shape, np.bool_)
    batch.forced[2, 1] = True
    np.testing.assert_array_equal(episode_starts(batch), [[0, 0], [0, 0], [1, 0], [1, 0], [0, 0]])
    joined = join_envs([make_batch(5, 3), batch])
    np.testing.assert_array_equal(episode_starts(joined)[:, 3:], episode_starts(batch))


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"values": np.zeros((2, 3), np.float32)}, "values: shape"),
        ({"rewards": np.zeros((3, 2), np.float64)}, "rewards: dtype float64"),
        ({"truncated": np.zeros((3, 2), np.int8)}, "truncated: dtype int8"),
        ({"log_probs": np.zeros((3, 2, 1), np.float32)}, "log_probs: shape"),
        ({"actions": np.zeros((3, 2), np.int32)}, "actions: dtype int32"),
        ({"obs": {"a": np.zeros((3, 2)), "b": np.zeros((2, 3))}}, r"obs: shape \(2, 3\)"),
        ({"core_state": np.zeros((3, 4), np.float32)}, r"core_state: shape \(3, 4\).*B = 2"),
    ],
)
def test_wrong_columns_are_refused_at_the_door(changes: dict[str, np.ndarray], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        replace(make_batch(), **changes)


def test_arrays_travel_out_of_band() -> None:
    batch = make_batch(64, 8)
    batch.episodes = [Episode(21.0, 900)]
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == len(COLUMNS) + 1  # the core's state
    assert len(header) < 2_000
    copy = pickle.loads(header, buffers=[buffer.raw().toreadonly() for buffer in buffers])
    assert copy.episodes == batch.episodes and copy.weights_version == 7
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(copy, name), getattr(batch, name))
        assert np.shares_memory(getattr(copy, name), getattr(batch, name))


def test_workers_are_joined_side_by_side() -> None:
    one, two = make_batch(3, 2), make_batch(3, 4)
    one.episodes, two.episodes = [Episode(1.0, 1)], [Episode(2.0, 2)]
    one.timing, two.timing = {"act_s": 1.0, "env_s": 5.0}, {"act_s": 2.0, "env_s": 4.0}
    assert join_envs([one]) is one
    joined = join_envs([one, two])
    assert joined.shape == (3, 6)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(joined, name)[:, :2], getattr(one, name))
        np.testing.assert_array_equal(getattr(joined, name)[:, 2:], getattr(two, name))
    assert joined.episodes == [Episode(1.0, 1), Episode(2.0, 2)]
    assert joined.timing == {"act_s": 2.0, "env_s": 5.0}


def test_trees_and_core_states_are_joined_as_well() -> None:
    one, two = make_tree_batch(3, 2), make_tree_batch(3, 4)
    joined = join_envs([one, two])
    assert isinstance(joined.obs, dict) and isinstance(two.obs, dict)
    assert joined.obs["camera"].shape == (3, 6, 1, 6, 6)
    np.testing.assert_array_equal(joined.obs["gear"][:, 2:], two.obs["gear"])
    np.testing.assert_array_equal(joined.core_state, np.concatenate([one.core_state, two.core_state]))
    assert join_envs([make_batch(3, 2), make_batch(3, 4)]).core_state.size == 0


@pytest.mark.parametrize("seed", range(10))
def test_what_is_cut_between_environments_anywhere_is_joined_as_it_was(seed: int) -> None:
    rng = np.random.default_rng(seed)
    T, B, S = (int(n) for n in rng.integers(1, 9, size=3))
    whole = make_tree_batch(T, B)
    whole.core_state = rng.normal(size=(B, S)).astype(np.float32)
    for name in COLUMNS[1:]:
        column = getattr(whole, name)
        column[:] = rng.integers(0, 2, size=column.shape)
    ends = [0, *np.flatnonzero(rng.random(B - 1) < 0.5) + 1, B]
    parts = [
        replace(
            whole,
            obs={path: leaf[:, start:stop] for path, leaf in whole.obs.items()},  # type: ignore[union-attr]
            core_state=whole.core_state[start:stop],
            **{name: getattr(whole, name)[:, start:stop] for name in COLUMNS[1:]},
        )
        for start, stop in pairwise(ends)
    ]
    joined = join_envs(parts)
    assert isinstance(joined.obs, dict) and isinstance(whole.obs, dict)
    for path, leaf in whole.obs.items():
        np.testing.assert_array_equal(joined.obs[path], leaf)
    for name in (*COLUMNS[1:], "core_state"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
