"""Our own vector implementations do, bit for bit, what gymnasium's single environments do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.errors import EnvError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.interfaces import Array, Step

NAMES = ["Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]


def bits(step: Step) -> list[bytes]:
    ended = step.terminated | step.truncated
    final = [] if step.final_obs is None else [np.asarray(step.final_obs)[ended]]
    return [np.asarray(each).tobytes() for each in (*step[:5], *final)]


def skilled(name: str, obs: Array, random: Array) -> Array:
    """Actions that come to the goal, now and then; `random` ones of the same form elsewhere."""
    if name == "Acrobot-v1":
        return np.where(np.arange(len(obs)) % 2, random, np.where(obs[:, 4] > 0, 0, 2))
    if name == "MountainCar-v0":
        return np.where(np.arange(len(obs)) % 2, random, np.where(obs[:, 1] >= 0, 2, 0))
    if name == "MountainCarContinuous-v0":
        return np.where(np.arange(len(obs))[:, None] % 2, random, np.sign(obs[:, 1:] + 1e-9)).astype(np.float32)
    return random


def play(env: VectorEnv, name: str, num_steps: int, seed: int) -> tuple[list[Any], int, int]:
    """(what each step brought, episodes that terminated, that were cut off)"""
    rng, obs = np.random.default_rng(seed), env.reset(seed)
    steps, num_terminated, num_truncated = [np.asarray(obs).tobytes()], 0, 0
    for t in range(num_steps):
        random: Array = (
            rng.integers(env.spec.action.n, size=env.num_envs)
            if env.spec.action.kind == "discrete"
            else rng.uniform(-3.0, 3.0, (env.num_envs, 1)).astype(np.float32)
        )
        if t == num_steps // 2:
            env.seed_next(1, np.random.SeedSequence(seed, spawn_key=(1,)))
        step = env.step(skilled(name, np.asarray(obs), random))
        obs = step.obs
        steps.append(bits(step))
        num_terminated += int(step.terminated.sum())
        num_truncated += int(step.truncated.sum())
    assert env.pop_episodes()
    return steps, num_terminated, num_truncated


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_steps_are_those_of_single_environments(name: str) -> None:
    with (
        make_vector_env(name, 4, vectorization="native") as ours,
        make_vector_env(name, 4, vectorization="sync") as single,
    ):
        assert (ours.facts()["vectorization"], single.facts()["vectorization"]) == ("native", "sync")
        assert ours.spec == single.spec and ours.seeds_each
        found, num_terminated, num_truncated = play(ours, name, 2500, seed=3)
        assert found == play(single, name, 2500, seed=3)[0]
        assert num_truncated and (num_terminated or name == "Pendulum-v1")


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Acrobot-v1", {"max_episode_steps": 30}),
        ("MountainCar-v0", {"goal_velocity": 0.01, "max_episode_steps": 20}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.01, "max_episode_steps": 7}),
        ("Pendulum-v1", {"g": 3.0, "max_episode_steps": 9}),
    ],
)
@pytest.mark.parametrize("num_envs", [2, 3])
def test_arguments_and_time_limits_are_the_same(name: str, kwargs: dict[str, Any], num_envs: int) -> None:
    with (
        make_vector_env(name, num_envs, env_kwargs=kwargs, vectorization="native") as ours,
        make_vector_env(name, num_envs, env_kwargs=kwargs, vectorization="sync") as single,
    ):
        assert play(ours, name, 60, seed=5) == play(single, name, 60, seed=5)


@pytest.mark.parametrize(
    "options",
    [
        {"env_kwargs": {"wrappers": ["gymnasium.wrappers:TimeAwareObservation"]}},
        {"env_kwargs": {"render_mode": "rgb_array"}},
        {"keep_state": True},
        {"seeds_each": True},
    ],
)
def test_what_they_cannot_do_is_done_by_single_ones(options: dict[str, Any]) -> None:
    with make_vector_env("Pendulum-v1", 4, **options) as env:
        assert env.facts()["vectorization"] == "sync"


def test_callbacks_reach_them() -> None:
    with (
        make_vector_env("Pendulum-v1", 3, vectorization="native") as ours,
        make_vector_env("Pendulum-v1", 3, vectorization="sync") as single,
    ):
        for env in (ours, single):
            env.reset(1)
            assert env.ask("get", "g") == [10.0] * 3
            env.ask("set", "g", 2.5)
            env.ask("set", "state", np.array([0.5, -0.25]))
            assert [each.tolist() for each in env.ask("get", "state")] == [[0.5, -0.25]] * 3
            first = env.ask("call", "_get_obs")
            assert len(first) == 3 and first[0].tolist() == first[2].tolist()
            with pytest.raises(EnvError, match="no_such"):
                env.ask("get", "no_such")
        assert play(ours, "Pendulum-v1", 250, seed=5) == play(single, "Pendulum-v1", 250, seed=5)


@pytest.mark.parametrize(("name", "fewest"), list(zip(NAMES, [12, 4, 12, 4], strict=True)))
def test_they_are_taken_where_there_are_enough_copies(name: str, fewest: int) -> None:
    for num_envs, way in ((fewest - 1, "sync"), (fewest, "native")):
        with make_vector_env(name, num_envs) as env:
            assert env.facts()["vectorization"] == way
