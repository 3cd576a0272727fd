"""What PPO's options are for: each learns where PPO without it does not, or not as well."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from rlplat.algorithms.ppo import PPO, PPOConfig

pytestmark = pytest.mark.slow


def returns(env: Any, env_steps: int, **settings: Any) -> float:
    """The mean return of the last 100 episodes of a run in this process."""
    with PPO(PPOConfig(env=env, num_rollout_workers=0, rollout_length=64, seed=1, **settings)) as ppo:
        while (result := ppo.step()).env_steps < env_steps:
            pass
    assert result.episode_return_mean is not None
    return result.episode_return_mean


def hundredfold() -> Any:
    return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 100.0 * reward)


def test_a_critic_learns_returns_of_any_scale_by_their_deviation() -> None:
    """With one encoder for both, a value loss in the hundred thousands leaves nothing of the policy's gradient."""
    shared: dict[str, Any] = {"env": hundredfold, "env_steps": 20_000, "policy": {"share_encoder": True}}
    assert returns(**shared) < 3_500.0 < returns(**shared, normalize_value=True)


def test_an_adapted_learning_rate_finds_its_size() -> None:
    slow: dict[str, Any] = {"env": "CartPole-v1", "env_steps": 20_000, "learning_rate": 1e-5}
    assert returns(**slow) < 40.0
    assert returns(**slow, desired_kl=0.01) > 100.0
