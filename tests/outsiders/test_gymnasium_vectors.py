"""Gymnasium's semantics, restated for our vector environments: its own environments, one by one and without any of our
code, are the reference for native, sync and async vectorization at 1 and N copies; its SyncVectorEnv and
AsyncVectorEnv, in all autoreset modes, come through `VectorEnv` as the same transitions; its checkers pass over ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlplat.errors import EnvError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.interfaces import Obs

OWN = [
    *((f"rlplat.rl.envs.diagnostic:{name}", {}) for name in ("RememberCue", "MaskedChoice", "NestedTask", "FlipBits")),
    ("rlplat.rl.envs.diagnostic:ReachPoint", {}),
    ("rlplat.rl.envs.board_games.env:TicTacToe", {}),
    ("rlplat.rl.envs.board_games.env:ConnectFour", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kwargs"), OWN, ids=[name.rpartition(":")[2] for name, _ in OWN])
def test_gymnasiums_checker_passes_over_our_environments(name: str, kwargs: dict[str, Any]) -> None:
    module, _, attribute = name.partition(":")
    env = getattr(__import__(module, fromlist=[attribute]), attribute)(**kwargs)
    check_env(env, skip_render_check=True)


# -- one of ours beside the plain environment


def child_seed(seed: int, index: int) -> int:
    """What environment `index` is seeded with (`VectorEnv.reset`)."""
    return int(np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(1, np.uint32)[0] >> 1)


class Plain(gymnasium.Wrapper):
    """Seeded as the first of our copies; its rewards are float32."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else child_seed(seed, 0))

    def step(self, action: Any) -> Any:
        obs, reward, *flags, _ = super().step(action)
        return obs, float(np.float32(reward)), *flags, {}


class FirstOfOurs(gymnasium.Env):
    """A vector environment of ours as one environment: its first copy; the others do the same."""

    def __init__(self, name: str, num_envs: int, vectorization: Any) -> None:
        self._env = make_vector_env(name, num_envs, vectorization=vectorization)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._env.reset(seed)[0], {}  # type: ignore[index]

    def step(self, action: Any) -> Any:
        step = self._env.step(np.repeat(np.asarray(action)[None], self._env.num_envs, axis=0))
        done = bool(step.terminated[0] or step.truncated[0])
        obs: Any = step.final_obs if done else step.obs
        return obs[0], float(step.rewards[0]), bool(step.terminated[0]), bool(step.truncated[0]), {}

    def close(self) -> None:
        self._env.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "num_envs", "vectorization"),
    [
        ("CartPole-v1", 1, "native"),
        ("CartPole-v1", 3, "sync"),
        ("CartPole-v1", 2, "async"),
        ("Pendulum-v1", 1, "async"),
        ("Acrobot-v1", 2, "sync"),
        ("MountainCarContinuous-v0", 2, "sync"),
    ],
)
def test_environments_match(name: str, num_envs: int, vectorization: str) -> None:
    plain = Plain(gymnasium.make(name, disable_env_checker=True))
    ours = FirstOfOurs(name, num_envs, vectorization)
    check_environments_match(plain, ours, num_steps=60, seed=3, info_comparison="skip")
    plain.close()
    ours.close()


# -- every kind of space, every mode


SPACES = {
    "box64": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "image": spaces.Box(0, 255, (40, 40, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([[3, 4], [5, 2]]),
    "bits": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)])}),
}  # fmt: skip


class Drawn(gymnasium.Env):
    """Draws observations, rewards and the end of an episode; whatever it returns may lie in the same memory again."""

    def __init__(self, space: str, reward: str = "float") -> None:
        self.observation_space, self.action_space = SPACES[space], spaces.Discrete(3)
        self._reward = reward
        self._memory: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {"since": 0}

    def step(self, action: Any) -> Any:
        reward, chance = float(self.np_random.normal()) + float(action), self.np_random.random()
        shaped: Any = {
            "float": reward,
            "float32": np.float32(reward),
            "rank 0": np.array(reward),
            "rank 1": np.array([reward]),
        }[self._reward]
        flags: Any = (bool(chance < 0.2), bool(0.1 < chance < 0.3))
        if self._reward == "rank 1":
            flags = [np.array([flag]) for flag in flags]
        return self._obs(), shaped, *flags, {"score": reward} if chance < 0.5 else {}

    def _obs(self) -> Any:
        space = self.observation_space
        space.seed(int(self.np_random.integers(1 << 30)))
        drawn = space.sample()
        if not isinstance(drawn, np.ndarray) or not drawn.shape:
            return drawn
        if self._memory is None:
            self._memory = drawn
        self._memory[...] = drawn
        return self._memory


def flat(space: Any, obs: Any, path: str = "") -> dict[str, np.ndarray]:
    """A plain environment's observation as `interfaces.Obs` says it: leaves by path, whole numbers from 0."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        leaves = [flat(part, obs[key], f"{path}/{key}".strip("/")) for key, part in parts]
        return {name: leaf for some in leaves for name, leaf in some.items()}
    start = getattr(space, "start", 0)
    leaf = np.asarray(obs) - start if np.any(start) else np.array(obs)
    is_box = isinstance(space, spaces.Box)
    return {path: leaf if leaf.ndim == 0 and not is_box else leaf.reshape(space.shape if is_box and leaf.ndim else -1)}


def rows(obs: Obs, index: int) -> dict[str, np.ndarray]:
    leaves = obs if isinstance(obs, dict) else {"": obs}
    return {path: np.array(leaf[index]) for path, leaf in leaves.items()}


Transition = tuple[dict[str, np.ndarray], int, float, bool, bool, dict[str, np.ndarray]]


def plain_transitions(make: Any, seed: int) -> Iterator[Transition]:
    """(obs, action, reward, terminated, truncated, next obs), for ever; actions depend on how many there were."""
    env = make()
    obs, _ = env.reset(seed=seed)
    t = 0
    while True:
        before, action = flat(env.observation_space, obs), t % 3
        obs, reward, terminated, truncated, _ = env.step(action)
        after = flat(env.observation_space, obs)
        value = float(np.float32(np.ravel(reward)[0]))
        yield before, action, value, terminated, truncated and not terminated, after
        t += 1
        if terminated or truncated:
            obs, _ = env.reset()


def our_transitions(env: VectorEnv, count: int, seed: int) -> list[list[Transition]]:
    """The first `count` of every copy."""
    found: list[list[Transition]] = [[] for _ in range(env.num_envs)]
    obs = env.reset(seed)
    before = [rows(obs, b) for b in range(env.num_envs)]
    while min(map(len, found)) < count:
        actions = np.array([len(each) % 3 for each in found])
        step = env.step(actions)
        for b, of_copy in enumerate(found):
            done = bool(step.terminated[b] or step.truncated[b])
            if step.valid[b]:
                after = rows(step.final_obs if done else step.obs, b)  # type: ignore[arg-type]
                flags = bool(step.terminated[b]), bool(step.truncated[b])
                of_copy.append((before[b], int(actions[b]), float(step.rewards[b]), *flags, after))
            before[b] = rows(step.obs, b)
    env.close()
    return [of_copy[:count] for of_copy in found]


def assert_same(ours: list[list[Transition]], make: Any, seeds: list[int]) -> None:
    for of_copy, seed in zip(ours, seeds, strict=True):
        assert any(terminated or truncated for *_, terminated, truncated, _ in of_copy)
        for one, other in zip(of_copy, plain_transitions(make, seed), strict=False):
            assert one[1:5] == other[1:5]
            for obs, expected in ((one[0], other[0]), (one[5], other[5])):
                assert obs.keys() == expected.keys()
                for path in obs:
                    np.testing.assert_array_equal(obs[path].reshape(expected[path].shape), expected[path])


HERE = "tests.outsiders.test_gymnasium_vectors:Drawn"


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("space", SPACES)
def test_copies_give_the_transitions_of_the_plain_environment(space: str, vectorization: Any) -> None:
    kwargs = {"space": space}
    for num_envs in (1, 3):
        env = make_vector_env(HERE, num_envs, env_kwargs=kwargs, vectorization=vectorization)
        seeds = [child_seed(5, b) for b in range(num_envs)]
        assert_same(our_transitions(env, 15, seed=5), partial(Drawn, **kwargs), seeds)


GYMNASIUMS = {
    "sync": SyncVectorEnv,
    "sync, one memory": partial(SyncVectorEnv, copy=False),
    "async": partial(AsyncVectorEnv, context="fork"),
    "async, no shared memory": partial(AsyncVectorEnv, context="fork", shared_memory=False),
}


@pytest.mark.process
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", GYMNASIUMS)
def test_gymnasiums_vector_environments_come_through_in_every_mode(kind: str, mode: AutoresetMode) -> None:
    """It seeds copy i with the first's seed + i. In its own SAME_STEP mode an environment that writes into one array
    overwrites its last observation (gymnasium#1132): there, spaces whose samples are new objects."""
    for space in ("discrete", "dict") if mode is AutoresetMode.SAME_STEP else ("box64", "image", "dict"):
        make = partial(Drawn, space)
        raw = GYMNASIUMS[kind]([make] * 2, autoreset_mode=mode)
        seeds = [child_seed(9, 0), child_seed(9, 0) + 1]
        assert_same(our_transitions(VectorEnv(raw, "Drawn", limits=NO_LIMITS), 15, seed=9), make, seeds)


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("reward", ["float", "float32", "rank 0", "rank 1"])
def test_rewards_of_one_number_are_that_number(reward: str, vectorization: Any) -> None:
    kwargs = {"space": "number", "reward": reward}
    env = make_vector_env(HERE, 2, env_kwargs=kwargs, vectorization=vectorization)
    assert_same(our_transitions(env, 15, seed=5), partial(Drawn, **kwargs), [child_seed(5, b) for b in range(2)])


@pytest.mark.parametrize("rewards", [np.zeros((2, 1)), np.zeros(3), np.zeros((1, 2)), np.array(["1", "2"])])
def test_rewards_of_another_shape_are_refused(rewards: np.ndarray) -> None:
    raw = SyncVectorEnv([partial(Drawn, "box64")] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    step = raw.step
    raw.step = lambda actions: (step(actions)[0], rewards, *step(actions)[2:])  # type: ignore[method-assign]
    env = VectorEnv(raw, "Drawn", limits=NO_LIMITS)
    env.reset()
    with pytest.raises(EnvError, match=r"rewards of shape .* expected \(2,\) float32"):
        env.step(np.zeros(2, np.int64))
    env.close()
