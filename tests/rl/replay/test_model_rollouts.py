"""Rollouts in a model, and the replay of what they gave."""

from __future__ import annotations

import numpy as np
import pytest

from rlplat.rl.off_policy.model_rollouts import Imagined, ModelReplay, branched_rollouts, mixed

A = np.array([[1.0, 0.5], [0.0, 0.5]], np.float32)  # powers of two: exact in float32
STARTS = np.arange(6, dtype=np.float32).reshape(3, 2)


def act(obs: np.ndarray) -> np.ndarray:
    return obs[:, :1] - 1


def linear_system(obs: np.ndarray, actions: np.ndarray) -> Imagined:
    next_obs = obs @ A + actions
    return Imagined(obs, actions, next_obs.sum(axis=1), next_obs, np.zeros(len(obs), np.bool_))


def test_rollouts_with_a_perfect_model_are_the_true_ones() -> None:
    imagined, num_dropped = branched_rollouts(linear_system, act, STARTS, 4)
    for start, first in enumerate(STARTS):
        s = first
        for step in range(4):
            row = 3 * step + start
            a = s[0] - 1
            np.testing.assert_array_equal(imagined.obs[row], s)
            assert imagined.actions[row] == [a]
            s = np.array([s[0] + a, 0.5 * s[0] + 0.5 * s[1] + a])
            np.testing.assert_array_equal(imagined.next_obs[row], s)
            assert imagined.rewards[row] == s.sum()
    assert len(imagined.rewards) == 12 and num_dropped == 0


def test_a_rollout_ends_where_the_model_says_so() -> None:
    def predict(obs: np.ndarray, actions: np.ndarray) -> Imagined:
        found = linear_system(obs, actions)
        return found._replace(terminated=obs[:, 0] >= 4)

    imagined, _ = branched_rollouts(predict, act, STARTS, 3)
    # First numbers: 0 -> -1 -> -3; 2 -> 3 -> 5 (ends); 4 (ends).
    assert imagined.obs[:, 0].tolist() == [0, 2, 4, -1, 3, -3, 5]
    assert imagined.terminated.tolist() == [False, False, True, False, False, False, True]
    everything_ends, _ = branched_rollouts(
        lambda *given: predict(*given)._replace(terminated=np.ones(len(given[0]), np.bool_)), act, STARTS, 3
    )
    assert len(everything_ends.rewards) == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_predictions_that_are_not_finite_end_a_rollout_and_are_left_out(bad: float) -> None:
    def predict(obs: np.ndarray, actions: np.ndarray) -> Imagined:
        found = linear_system(obs, actions)
        found.next_obs[obs[:, 0] == 2, 1] = bad
        found.rewards[obs[:, 0] == 4] = bad
        return found

    imagined, num_dropped = branched_rollouts(predict, act, STARTS, 2)
    assert imagined.obs[:, 0].tolist() == [0, -1] and num_dropped == 2


def rows(first: int, count: int) -> Imagined:
    number = np.arange(first, first + count, dtype=np.float32)
    return Imagined(
        number[:, None].repeat(2, 1),
        number[:, None],
        number,
        number[:, None].repeat(2, 1) + 1,
        number % 2 == 1,
    )


@pytest.mark.parametrize("counts", [(3,), (4, 1), (5,), (5, 1), (2, 5), (6,), (11,), (4, 4, 4, 0, 1)])
def test_the_newest_rows_are_kept(counts: tuple[int, ...]) -> None:
    replay, written = ModelReplay(5, 2, 1, 0.5, np.random.SeedSequence(1)), 0
    for count in counts:
        replay.add(rows(written, count))
        written += count
    assert len(replay) == min(5, written)
    drawn = replay.sample(400)
    kept = set(range(written)) if written <= 5 else set(range(written - 5, written))
    assert set(drawn.returns.astype(int)) == kept
    assert (drawn.obs[:, 1] == drawn.returns).all() and (drawn.next_obs[:, 0] == drawn.returns + 1).all()
    assert (drawn.actions[:, 0] == drawn.returns).all()
    assert (drawn.discounts == np.where(drawn.returns % 2 == 1, 0.0, 0.5)).all()
    other = ModelReplay(5, 2, 1, 0.5, np.random.SeedSequence(9))
    other.set_state(replay.get_state())
    for each in (replay, other):
        each.add(rows(100, 2))
    np.testing.assert_array_equal(replay.sample(50).obs, other.sample(50).obs)
    kept = sorted(set(replay.sample(400).returns.astype(int)))
    for capacity in (1, 3, 8, 30):
        resized = ModelReplay(capacity, 2, 1, 0.5, np.random.SeedSequence(3))
        resized.set_state(replay.get_state())
        found = set(resized.sample(400).returns.astype(int))
        assert len(resized) == len(found) == min(capacity, len(kept)) and found <= set(kept)


def test_every_minibatch_has_its_share_of_both() -> None:
    real, imagined = (
        ModelReplay(9, 2, 1, 0.5, np.random.SeedSequence(1)),
        ModelReplay(9, 2, 1, 0.5, np.random.SeedSequence(2)),
    )
    real.add(rows(0, 9))
    imagined.add(rows(100, 9))
    drawn = mixed(real.sample(3), imagined.sample(12), 3)
    assert (drawn.returns.reshape(3, 5) >= 100).tolist() == [[False, *[True] * 4]] * 3
    assert (drawn.obs[:, 1] == drawn.returns).all() and drawn.actions.shape == (15, 1)
