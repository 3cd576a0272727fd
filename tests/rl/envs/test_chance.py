"""Environments that draw from the generators of their process: every copy other numbers, the same in every run."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array
from rlplat.rl.sampling.rollout_worker import RolloutWorker

DRAWS = f"{__name__}:Draws"


class Draws(gym.Env):
    """Observation: a number from `random`, numpy's and torch's global generators each, and one from its own space."""

    observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.at_the_start = np.random.rand()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> Array:
        import torch

        drawn = random.random(), np.random.rand(), float(torch.rand(1)), self.observation_space.sample()[0]
        return np.array(drawn, np.float64)


def config(**settings: Any) -> PPOConfig:
    small = {"env": DRAWS, "num_envs_per_worker": 2, "rollout_length": 4, "minibatch_size": 4}
    return PPOConfig(**{**small, **settings})


def test_spaces_are_seeded_with_the_environment() -> None:
    with make_vector_env(Draws, 3, seed=1) as one, make_vector_env(Draws, 3, seed=1) as other:
        first, again = one.reset()[:, 3], other.reset()[:, 3]
    assert len(set(first)) == 3 and (first == again).all()


@pytest.mark.process
def test_copies_in_processes_of_their_own_differ_and_repeat() -> None:
    def first(seed: int) -> Array:
        with make_vector_env(Draws, 3, seed=seed, vectorization="async") as env:
            reset = env.reset().copy()
            assert (env.reset(seed=seed) == reset).all(), "as at each evaluation"
            return reset

    one, again, other = first(1), first(1), first(2)
    assert (one == again).all()
    assert all(len(set(column)) == 6 for column in np.concatenate([one, other]).T)


@pytest.mark.process
def test_workers_that_were_forked_with_their_generators_loaded_differ_and_repeat() -> None:
    def first_observations() -> Array:
        settings = config().model_dump()
        actors = [rlplat.remote(Looked).remote(settings, index, 0) for index in range(2)]
        seen = np.concatenate(rlplat.get([actor.first.remote() for actor in actors]))
        for actor in actors:
            rlplat.kill(actor)
        return seen

    drawn = rlplat.remote(lambda: (random.random(), np.random.rand()))
    rlplat.init(num_cpus=4, preload=("torch",))
    try:
        one, again = first_observations(), first_observations()
        tasks = rlplat.get([drawn.remote() for _ in range(4)])
    finally:
        rlplat.shutdown()
    assert (one == again).all()
    assert all(len(set(column)) == 4 for column in one.T)
    assert len(set(tasks)) == 4


class Looked(RolloutWorker):
    def first(self) -> Array:
        return np.array(self._obs)


def test_a_run_in_this_process_repeats_and_gives_the_generators_back() -> None:
    def train() -> Array:
        with PPO(config(num_rollout_workers=0, evaluation={"episodes": 1, "max_episode_steps": 3})) as ppo:
            ppo.step()
            drawn = np.random.rand()
            ppo.evaluate(1)
            return np.array([drawn, np.random.rand()])

    np.random.seed(5)
    expected = np.random.rand(3)
    np.random.seed(5)
    seen = [np.random.rand()]
    one = train()
    seen.append(np.random.rand())
    again = train()
    seen.append(np.random.rand())
    assert (one == again).all() and (seen == expected).all()
