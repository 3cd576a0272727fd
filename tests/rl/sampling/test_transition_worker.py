"""`RolloutWorker` recording transitions, on an environment whose episodes are written down beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlplat.algorithms.dqn import DQNConfig
from rlplat.rl.interfaces import Weights
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.make import q_policy_for
from rlplat.rl.sampling.rollout_worker import RolloutWorker

ENV = "tests.rl.fixture_envs:ScriptedEnv"
"""Episodes of 3 (terminated), 2 (cut off), 1 (both: terminated) steps; obs [episode, step, last action]; four actions;
reward 10 * episode + step."""


@pytest.fixture
def make_worker() -> Iterator[Any]:
    workers = []

    def make(**settings: Any) -> RolloutWorker:
        epsilons = settings.pop("epsilons", None)
        policy = {"hidden_sizes": [4]}
        config = DQNConfig(**({"env": ENV, "rollout_length": 7, "num_envs_per_worker": 2, "policy": policy} | settings))
        acting = partial(q_policy_for, epsilons=epsilons)
        worker = RolloutWorker(config.model_dump(), 0, 0, acting, record="transitions")
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()


def weights(epsilon: float = 0.0) -> Weights:
    """Action 2 is the best everywhere."""
    return {
        "encoder.layers.0.weight": np.zeros((4, 3), np.float32),
        "encoder.layers.0.bias": np.zeros(4, np.float32),
        "advantage_head.out.weight": np.zeros((4, 4), np.float32),
        "advantage_head.out.bias": np.array([0.0, 1.0, 5.0, 2.0], np.float32),
        EPSILON: np.array([epsilon], np.float32),
    }


CARTPOLE = {
    "encoder.layers.0.weight": np.zeros((4, 4), np.float32),
    "advantage_head.out.weight": np.zeros((2, 4), np.float32),
    "advantage_head.out.bias": np.array([0.0, 1.0], np.float32),
}


def test_a_fragment_is_what_happened(make_worker: Any) -> None:
    worker = make_worker()
    worker.set_weights(0, weights())
    batch = worker.roll_out()
    # Environment 0 has been looked at before it was played: 1 shows its first episodes.
    first = batch.obs[:, 1]
    np.testing.assert_array_equal(first[:, 0], [0, 0, 0, 1, 1, 2, 3])  # episodes
    np.testing.assert_array_equal(first[:, 1], [0, 1, 2, 0, 1, 0, 0])  # steps
    np.testing.assert_array_equal(batch.rewards[:, 1], [1, 2, 3, 11, 12, 21, 31])
    np.testing.assert_array_equal(batch.terminated[:, 1], [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(batch.truncated[:, 1], [0, 0, 0, 0, 1, 0, 0])
    of_first = batch.cut_rows % 2 == 1
    np.testing.assert_array_equal(batch.cut_rows[of_first], [4 * 2 + 1])  # t * B + b
    np.testing.assert_array_equal(batch.final_obs[of_first], [[1, 2, 2]])  # the true last one
    assert (batch.actions == 2).all() and (batch.q_taken == 5).all() and (batch.q_max == 5).all()
    assert not batch.continues and worker.roll_out().continues
    assert {(6.0, 3), (23.0, 2), (21.0, 1)} <= {tuple(episode[:2]) for episode in batch.episodes}


def test_random_actions_come_with_their_own_q(make_worker: Any) -> None:
    worker = make_worker(rollout_length=200)
    worker.set_weights(0, weights(epsilon=1.0))
    batch = worker.roll_out()
    assert set(np.unique(batch.actions)) == {0, 1, 2, 3}
    np.testing.assert_array_equal(batch.q_taken, np.array([0.0, 1.0, 5.0, 2.0])[batch.actions])
    assert (batch.q_max == 5).all()


def test_epsilons_of_its_own(make_worker: Any) -> None:
    worker = make_worker(rollout_length=100, epsilons=np.array([0.0, 1.0]))
    worker.set_weights(0, weights(epsilon=1.0))
    batch = worker.roll_out()
    assert (batch.actions[:, 0] == 2).all() and len(np.unique(batch.actions[:, 1])) == 4


def test_goes_on_where_it_was_saved(make_worker: Any) -> None:
    settings = {"env": "CartPole-v1", "deterministic": True, "rollout_length": 30}
    one, other = make_worker(**settings), make_worker(**settings, seed=9)
    for worker in (one, other):
        worker.set_weights(0, weights(epsilon=0.5) | CARTPOLE)
    one.roll_out()
    other.set_state(one.get_state())
    assert one.not_saved() == ""
    first, second = one.roll_out(), other.roll_out()
    assert second.continues
    for name in ("obs", "actions", "rewards", "terminated", "final_obs"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def test_a_fragment_that_was_broken_off_leaves_nothing_behind(
    make_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, within an environment's step, after an episode that was cut off."""
    worker = make_worker()
    worker.set_weights(0, weights())
    worker.roll_out()
    step, steps = worker._env.step, iter(range(100))

    def interrupted(actions: Any) -> Any:
        if next(steps) == 5:
            raise KeyboardInterrupt
        return step(actions)

    monkeypatch.setattr(worker._env, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.roll_out()
    assert not worker.get_state()["continues"]
    batch = worker.roll_out()
    assert not batch.continues and (batch.obs[0, :, 1] == 0).all(), "new episodes"
    number, start, _ = batch.obs[0, 1]
    np.testing.assert_array_equal(batch.obs[1, 1, :2], [number, start + 1])
    after = worker.roll_out()
    assert after.continues and (batch.number, after.number) == (1, 2)


def test_without_the_environments_state_a_gap_begins(make_worker: Any) -> None:
    one, other = make_worker(), make_worker()
    one.set_weights(0, weights())
    one.roll_out()
    assert "new episodes start" in one.not_saved()
    other.set_state(one.get_state())
    other.set_weights(0, weights())
    assert not other.roll_out().continues
