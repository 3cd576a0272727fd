"""What PPO's options are for: each learns where PPO without it does not, or not as well."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

import rlplat
from rlplat.algorithms.a3c import A3C, A3CConfig
from rlplat.algorithms.ppo import PPO, PPOConfig

pytestmark = pytest.mark.slow
ENV = "tests.rl.privileged_env:HiddenBonus"


def returns(env: Any, env_steps: int, **settings: Any) -> float:
    """The mean return of the last 100 episodes of a run in this process."""
    with PPO(PPOConfig(env=env, num_rollout_workers=0, rollout_length=64, seed=1, **settings)) as ppo:
        while (result := ppo.step()).env_steps < env_steps:
            pass
    assert result.episode_return_mean is not None
    return result.episode_return_mean


@pytest.mark.parametrize(("critic", "knows"), [(["cue"], False), (["cue", "sim"], True)])
def test_a_critic_that_sees_more_explains_what_the_actor_cannot_see(critic: list[str], knows: bool) -> None:
    groups = {"obs_groups": {"actor": ["cue"], "critic": critic}}
    with A3C(A3CConfig(env=ENV, num_rollout_workers=0, seed=1, policy=groups)) as a3c:
        while (result := a3c.step()).env_steps < 6_000:
            pass
    assert (result.metrics["learner/explained_variance"] > 0.4) is knows
    assert (result.metrics["env/hits_mean"] > 0.93) is knows


class Follow(gymnasium.Env[Any, Any]):
    """Each of 8 actions is to be as the number seen."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        error = float(action[0] - self._target[0])
        self._time += 1
        return self._seen(), -(error**2), self._time == 8, False, {}

    def _seen(self) -> Any:
        self._target = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._target


def test_state_dependent_exploration_learns() -> None:
    settings: dict[str, Any] = {
        "env": Follow,
        "learning_rate": 3e-3,
        "policy": {"use_sde": True, "sde_sample_freq": 4},
    }
    assert returns(**settings, env_steps=1_000) < -2.0
    assert returns(**settings, env_steps=15_000) > -0.5


class Cut(gymnasium.Env[Any, Any]):
    """Each step pays 1, and the limit is two of them: what is seen is how many there were."""

    observation_space = gymnasium.spaces.Box(0.0, 2.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return np.float32([0.0]), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        return np.float32([self._time]), 1.0, False, self._time == 2, {}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_beyond_a_time_limit_that_is_an_end_nothing_is_worth_anything(backend: str) -> None:
    """V = 1 + 0.5, then 1. Where it bootstraps the critic says what two steps are worth that it never saw: more."""
    values = {}
    for limits in ("bootstrap", "end"):
        settings: dict[str, Any] = {"time_limits": limits, "discount": 0.5, "gae_lambda": 0.5, "learning_rate": 1e-2}
        settings |= {"rollout_length": 32, "minibatch_size": 64, "learner": {"backend": backend}}
        config = PPOConfig(env=Cut, num_rollout_workers=0, seed=1, **settings)
        with PPO(config) as ppo:
            for _ in range(15):
                ppo.step()
            policy = PPO.make_policy(config.model_dump(), ppo.spaces, np.random.SeedSequence(0))
            policy.set_weights(rlplat.get(ppo.weights())[1])
        values[limits] = policy.values(np.float32([[0.0], [1.0]]))
    np.testing.assert_allclose(values["end"], [1.5, 1.0], atol=0.02)
    assert (values["bootstrap"] > values["end"] + 0.1).all(), values


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
