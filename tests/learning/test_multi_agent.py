"""What agents learn from each other. Of a zero-sum game the moves themselves are checked: its mean return is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.algorithms.dqn import DQN, DQNConfig
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.rl.envs.diagnostic_multi_agent import best_nim_action
from rlplat.rl.learning.weights import split_weights

HERE = "rlplat.rl.envs.diagnostic_multi_agent"
STONES = np.arange(1, 10)
SELF_PLAY = {
    "policies": {"main": {}, "old": {"trained": False}},
    "mapping": {"first": "main", "second": "old"},
    "self_play": {"opponent": "old", "snapshot_period": 2_000, "pool": 5},
}


def nim_moves(algorithm: Any, name: str) -> dict[int, int]:
    """Greedy action by the number of stones."""
    policy = algorithm.spaces.policies[name]
    settings = algorithm.spaces.settings(algorithm.config.model_dump(), name)
    acting = algorithm.make_policy(settings, policy.spaces, np.random.SeedSequence(0))
    acting.set_weights(split_weights(rlplat.get(algorithm.weights())[1])[name])
    legal = np.arange(1, 4) <= STONES[:, None]
    obs = {"observation": np.eye(10, dtype=np.float32)[STONES], "action_mask": legal}
    return dict(zip(STONES.tolist(), acting.act(obs, deterministic=True).actions.tolist(), strict=True))


def finds_all_winning_moves(moves: dict[int, int]) -> bool:
    return all(best_nim_action(stones) in (None, action) for stones, action in moves.items())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ppo_learns_nim_turn_by_turn_against_older_ones_of_itself() -> None:
    config = PPOConfig(
        env=f"{HERE}:Nim",
        num_rollout_workers=0,
        num_envs_per_worker=8,
        rollout_length=64,
        learning_rate=1e-3,
        entropy_coef=0.01,
        discount=1.0,
        stop={"env_steps": 40_000},
        seed=1,
        multi_agent=SELF_PLAY,
    )
    with PPO(config) as ppo:
        while (result := ppo.step()).env_steps < 40_000:
            if result.iteration % 20 == 0 and finds_all_winning_moves(nim_moves(ppo, "main")):
                break
        assert finds_all_winning_moves(nim_moves(ppo, "main"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mapping", [{}, {"left": "l", "right": "r"}])
def test_ppo_learns_to_meet(mapping: dict[str, str]) -> None:
    config = PPOConfig(
        env=f"{HERE}:Rendezvous",
        num_rollout_workers=0,
        num_envs_per_worker=8,
        rollout_length=64,
        learning_rate=1e-3,
        entropy_coef=0.01,
        stop={"env_steps": 60_000},
        seed=1,
        multi_agent={"mapping": mapping},
    )
    with PPO(config) as ppo:
        *_, last = rlplat.training_loop(ppo, stop={"episode_return_mean": 0.77})
        assert last.episode_return_mean is not None and last.episode_return_mean >= 0.77
        assert np.mean([episode.episode_return for episode in ppo.evaluate(40)]) >= 0.77


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dqn_learns_nim_with_one_policy_for_both() -> None:
    config = DQNConfig(
        env=f"{HERE}:Nim",
        num_rollout_workers=0,
        num_envs_per_worker=4,
        rollout_length=4,
        batch_size=64,
        learning_rate=1e-3,
        learning_starts=500,
        target_period=250,
        replay_capacity=20_000,
        discount=1.0,
        stop={"env_steps": 10_000},
        seed=1,
    )
    with DQN(config) as dqn:
        while (result := dqn.step()).env_steps < 10_000:
            if result.iteration % 50 == 0 and finds_all_winning_moves(nim_moves(dqn, "shared")):
                break
        assert finds_all_winning_moves(nim_moves(dqn, "shared"))
