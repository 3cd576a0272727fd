"""`vectorization: envpool`, against a stand-in with EnvPool's interface over gymnasium's environments; where EnvPool is
installed, against it."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplat.errors import UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv

ARGUMENTS = {"g"}


class Pool:
    """As EnvPool's: seeded when it is made, NEXT_STEP."""

    def __init__(
        self, name: str, env_type: str, num_envs: int, num_threads: int, seed: list[int], **kwargs: Any
    ) -> None:
        assert env_type == "gymnasium" and len(seed) == num_envs >= num_threads
        makers = [lambda: gymnasium.make(name, **kwargs)] * num_envs
        self._envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._seed: list[int] | None = seed

    def reset(self) -> Any:
        seed, self._seed = self._seed, None
        return self._envs.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        assert actions.dtype == np.float64
        return self._envs.step(actions.astype(np.float32))

    def close(self) -> None:
        self._envs.close()


def make_spec(name: str, **kwargs: Any) -> Any:
    if unknown := set(kwargs) - ARGUMENTS:
        raise TypeError(f"Config.__new__() got an unexpected keyword argument {unknown.pop()!r}")
    env = gymnasium.make(name, **kwargs)
    wide = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float64)  # as EnvPool's MuJoCo
    space = env.observation_space if name != "Acrobot-v1" else gymnasium.spaces.Box(-1, 1, (5,), np.float32)
    return types.SimpleNamespace(
        gymnasium_observation_space=space,
        gymnasium_action_space=wide if name == "Pendulum-v1" else env.action_space,
        config=types.SimpleNamespace(max_episode_steps=env.spec.max_episode_steps),  # type: ignore[union-attr]
    )


@pytest.fixture
def envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("envpool")
    module.make, module.make_spec = Pool, make_spec  # type: ignore[attr-defined]
    module.list_all_envs = lambda: ["Pendulum-v1", "MountainCar-v0", "Acrobot-v1"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "envpool", module)


def episodes(env: VectorEnv, num_steps: int, action: np.ndarray) -> list[list[tuple[float, int]]]:
    """(return, length) of each environment's episodes."""
    found: list[list[tuple[float, int]]] = [[] for _ in range(env.num_envs)]
    env.reset()
    for _ in range(num_steps):
        step = env.step(action)
        done = np.flatnonzero(step.terminated | step.truncated)
        for b, episode in zip(done, env.pop_episodes(), strict=True):
            found[b].append((episode.episode_return, episode.length))
    return found


def test_its_episodes_are_those_of_the_same_seeds_one_after_the_other(envpool: None) -> None:
    action = np.full((3, 1), 0.5, np.float32)
    with (
        make_vector_env("Pendulum-v1", 3, seed=4, num_threads=8, vectorization="envpool") as pool,
        make_vector_env("Pendulum-v1", 3, seed=4, vectorization="sync") as sync,
    ):
        expected = episodes(sync, 600, action)
        assert episodes(pool, 603, action) == expected  # a step for each reset
        assert [len(each) for each in expected] == [3, 3, 3]
        assert pool.facts()["vectorization"] == "envpool"
        assert pool.facts()["max_episode_steps"] == 200
        first = pool.reset(seed=4).copy()
        assert not np.array_equal(first, pool.reset())
        np.testing.assert_array_equal(first, pool.reset(seed=4))
    pool.close()


def test_what_it_cannot_be_asked_for(envpool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def message(name: str, **kwargs: Any) -> str:
        with pytest.raises(UsageError) as refused:
            make_vector_env(name, 2, vectorization="envpool", env_kwargs=kwargs)
        return str(refused.value)

    assert "EnvPool has no CartPole-v1: leave vectorization at 'auto'" in message("CartPole-v1")
    assert "EnvPool's Pendulum-v1 does not take env_kwargs={'h': 1}" in message("Pendulum-v1", h=1)
    assert "wrappers is for one environment each" in message("Pendulum-v1", wrappers=["gymnasium.wrappers:ClipReward"])
    assert "has observations Box(6) float32, but EnvPool's has Box(5) float32" in message("Acrobot-v1")
    assert "is none of EnvPool's environments" in message("tests.rl.fixture_envs:FaultyEnv")
    assert "steps in C++ only" in message("Pong")
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "pip install envpool" in message("Pendulum-v1")


def test_envpool_itself() -> None:
    pytest.importorskip("envpool")
    with make_vector_env("CartPole-v1", 4, seed=1, num_threads=2, vectorization="envpool") as env:
        found = episodes(env, 200, np.ones(4, np.int64))
    lengths = [length for each in found for _, length in each]
    assert len(lengths) > 40 and set(lengths) <= set(range(8, 12))
