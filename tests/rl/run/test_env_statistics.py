"""Wrappers that keep running statistics; what is set or called in running environments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.errors import EnvError, UsageError
from rlplat.rl.callbacks import Callback
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.statistics import kept_statistics, merged
from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import ENV_STATISTICS

SMALL: dict[str, Any] = {
    "num_rollout_workers": 0, "num_envs_per_worker": 2, "rollout_length": 64, "minibatch_size": 64,
    "policy": {"hidden_sizes": [8]},
}  # fmt: skip


class Far(gym.Env):
    """A number around 1000."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), float(self.level), False, self.t == 4, {}

    def harder(self, by: int = 1) -> int:
        self.level += by
        return self.level

    def _obs(self) -> Array:
        return np.array([1000.0 + self.np_random.normal()], np.float32)


class Own(gym.Wrapper):
    """A user's own, which divides by a running mean, also in evaluations."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.running = {"obs": gym.wrappers.utils.RunningMeanStd(shape=(1,))}

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.running["obs"].update(obs[None])
        return (obs / self.running["obs"].mean).astype(np.float32), *rest


def normalized() -> Any:
    return gym.wrappers.NormalizeObservation(Far())


def test_they_are_found_wherever_they_are_and_named_with_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    in_kwargs = check_env(Far, {"wrappers": ["gymnasium.wrappers:NormalizeReward"]}, steps=5)
    assert "warning: " in str(in_kwargs) and "NormalizeReward.return_rms" in str(in_kwargs)
    assert "normalize_rewards=true" in str(in_kwargs) and "scaled rewards" in str(in_kwargs)
    of_own = check_env(lambda: Own(Far()), steps=5)
    assert "(Own.running[obs])" in str(of_own)
    vector = check_env(lambda: gym.wrappers.vector.NormalizeObservation(gym.make_vec("CartPole-v1", 2)), steps=5)
    assert "NormalizeObservation.obs_rms" in str(vector)
    with caplog.at_level(logging.WARNING, "rlplat.start"):
        PPO(PPOConfig(env=normalized, **SMALL)).close()
    assert any(
        "NormalizeObservation.obs_rms" in each and "normalize_observations=true" in each for each in caplog.messages
    )


def test_statistics_of_copies_are_merged_by_what_each_has_seen() -> None:
    envs = [normalized(), normalized()]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        for _ in range(3 * (seed + 1)):
            env.step(0)
    [both] = merged([kept_statistics(env) for env in envs]).values()
    one, other = (next(iter(kept_statistics(env).values())) for env in envs)
    assert both["count"] == pytest.approx(one["count"] + other["count"])
    np.testing.assert_allclose(
        both["mean"] * both["count"], one["mean"] * one["count"] + other["mean"] * other["count"]
    )


@pytest.mark.parametrize("env", [normalized, lambda: Own(Far())])
def test_evaluation_load_and_resume_are_given_them(env: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    rlplat.train("ppo", env=env, out=run, stop={"env_steps": 256}, evaluation={"episodes": 2}, **SMALL)
    agent = rlplat.load(run, env=env)
    for which in (agent, rlplat.load(run, "best", env=env)):
        mean = next(value for name, value in which.weights().items() if name.startswith(ENV_STATISTICS))
        assert 990 < float(np.squeeze(mean)) < 1010
    prepared = agent.prepare_env(env())
    place, values = next(iter(kept_statistics(prepared).items()))
    assert 990 < float(values["mean"][0]) < 1010
    assert agent.evaluate(2)[0].length == 4
    resumed = rlplat.train(resume=run, env=env, stop={"env_steps": 384})
    after = rlplat.load(resumed.directory, env=env).checkpoint.state["algorithm"]["rollout_workers"]["env_statistics"]
    assert after[place]["count"] > 300, "it went on from the 256 steps before"


def test_statistics_that_are_frozen_stay_as_they_are() -> None:
    statistics = {"NormalizeObservation.obs_rms": {"mean": np.array([10.0]), "var": np.array([4.0]), "count": 50.0}}
    with make_vector_env(normalized, 2) as env:
        env.take_statistics(statistics, is_frozen=True)
        first = env.reset()
        np.testing.assert_allclose(first, 495.0, atol=4)
        for _ in range(6):
            np.testing.assert_allclose(env.step(np.zeros(2, np.int64)).obs, 495.0, atol=4)


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_callbacks_reach_every_environment(vectorization: Any) -> None:
    settings = SMALL | {
        "vectorization": vectorization,
        "env": Far,
        "evaluation": {"episodes": 1, "num_envs": 1},
    }
    with PPO(PPOConfig(**settings)) as ppo:
        ppo.set_env_attr("level", 3, evaluation=True)
        assert ppo.get_env_attr("level") == [3, 3]
        assert ppo.evaluate(1)[0].episode_return == 12.0
        assert ppo.call_env("harder", by=2) == [5, 5]
        ppo.step()
        ppo.step()
        assert ppo.step().episode_return_mean == 20.0
        assert ppo.evaluate(1)[0].episode_return == 12.0, "the evaluation was not asked"
        with pytest.raises(EnvError, match="has an attribute 'levl'; did you mean 'level'"):
            ppo.set_env_attr("levl", 1)


def test_a_vector_implementation_without_access_is_named() -> None:
    with (
        make_vector_env("CartPole-v1", 2) as env,
        pytest.raises(UsageError, match="vectorization to 'sync' or 'async'"),
    ):
        env.ask("set", "gravity", 1.0)


class Curriculum(Callback):
    def on_result(self, algorithm: Any, result: Any) -> None:
        algorithm.set_env_attr("level", 7)


@pytest.mark.process
def test_a_worker_that_is_replaced_is_told_again() -> None:
    config = PPOConfig(**SMALL | {"env": Far, "num_rollout_workers": 1})
    with PPO(config) as ppo:
        ppo.step()
        Curriculum().on_result(ppo, None)
        ppo.workers.replace(0, rlplat.errors.ActorDied("lost"))
        assert ppo.get_env_attr("level") == [7, 7]
