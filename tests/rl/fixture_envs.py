"""Small environments with known answers, and one for each way of breaking the contract."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

Ending = tuple[int, bool, bool]
"""(length, terminated, truncated) of an episode."""


class ScriptedEnv(gym.Env):
    """Its episodes are written down beforehand: observation [episode, step, last action], reward 10*episode + step."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(
        self, endings: tuple[Ending, ...] = ((3, True, False), (2, False, True), (1, True, True))
    ) -> None:
        self._endings = endings
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._obs(-1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        length, terminated, truncated = self._endings[self._episode % len(self._endings)]
        ends = self._step >= length
        reward = 10.0 * self._episode + self._step
        return self._obs(action), reward, ends and terminated, ends and truncated, {"extra": self._step}

    def _obs(self, action: Any) -> np.ndarray:
        return np.array([self._episode, self._step, action], np.float32)


class SeededEnv(gym.Env):
    """Observation: one number from np_random; ends after 5 steps, cut off."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, np.inf], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._obs(), float(action[0] + 100 * action[1]), False, self._step == 5, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.random(1).astype(np.float32)


class UnseededEnv(SeededEnv):
    """Draws from a generator that no seed reaches."""

    _GENERATOR = np.random.default_rng(1)

    def _obs(self) -> np.ndarray:
        return self._GENERATOR.random(1).astype(np.float32)


class FaultyEnv(gym.Env):
    """Sound until the `at`-th step (0: reset), then `fault`; only where `who` is None or its own number."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3, start=-1)
    made = 0
    release = threading.Event()

    def __init__(self, fault: str = "", at: int = 3, who: int | None = None) -> None:
        self._fault, self._at, self._steps = fault, at, 0
        self._is_sound = who is not None and FaultyEnv.made % 3 != who
        FaultyEnv.made += 1
        if fault == "init":
            raise RuntimeError("no display")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self._at == 0 and not self._is_sound:
            return self._break_reset()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps < self._at or self._is_sound:
            return np.zeros(2, np.float32), 1.0, False, False, {}
        return self._break_step()

    def close(self) -> None:
        self.release.set()

    def _break_reset(self) -> Any:
        match self._fault:
            case "raise":
                raise ValueError("reset went wrong")
            case "obs only":
                return np.zeros(2, np.float32)
            case "bounds":
                return np.array([0.0, 7.5], np.float32), {}
            case "nan obs":
                return np.array([np.nan, 0.0], np.float32), {}
            case "info":
                return np.zeros(2, np.float32), None
        raise AssertionError(self._fault)

    def _break_step(self) -> Any:
        obs: Any = np.zeros(2, np.float32)
        reward: Any = 1.0
        done: Any = False
        match self._fault:
            case "raise":
                raise ValueError("the pole fell off")
            case "exit":
                raise SystemExit(3)
            case "nan obs":
                obs[1] = np.nan
            case "inf obs":
                obs[0] = np.inf
            case "nan final obs":
                return np.array([np.nan, 0.0], np.float32), 1.0, True, False, {}
            case "nan reward":
                reward = float("nan")
            case "inf reward":
                reward = float("inf")
            case "shape":
                obs = np.zeros(3, np.float32)
            case "dtype":
                obs = np.zeros(2, np.float64)
            case "list":
                obs = [0.0, 0.0]
            case "old api":
                return obs, reward, False, {}
            case "None":
                return None
            case "reward None":
                reward = None
            case "reward array":
                reward = np.ones(1)
            case "done int":
                done = 1
            case "info":
                return obs, reward, False, False, None
            case "bounds":
                obs[1] = -3.25
            case "hang":
                time.sleep(1000)
            case "hang stubbornly":
                self._swallow()
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                raise AssertionError(self._fault)
        return obs, reward, done, False, {}

    def _swallow(self) -> None:
        """Waits for `release`, whatever is raised meanwhile: as a C extension would."""
        while not self.release.is_set():
            try:
                self.release.wait()
            except BaseException:
                continue


class UnsupportedEnv(FaultyEnv):
    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (4, 4), np.uint8), "speed": spaces.Discrete(3)}
    )
    action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"camera": np.zeros((4, 5), np.uint8), "velocity": 1}, {}


class EndlessEnv(FaultyEnv):
    def __init__(self) -> None:
        super().__init__(at=10**9)


class NotAnEnv:
    pass


NUMBER = 5


class NativeVectorEnv:
    """A vector environment of its own, in NEXT_STEP mode, that returns what it was given."""

    single_observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, metadata: dict[str, Any] | None = None, **returned: Any) -> None:
        self.num_envs = 2
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP} if metadata is None else metadata
        self.returned = {
            "obs": np.zeros((2, 1), np.float32),
            "rewards": np.ones(2, np.float32),
            "terminated": np.zeros(2, np.bool_),
            "truncated": np.zeros(2, np.bool_),
        } | returned

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        return *(self.returned[key] for key in ("obs", "rewards", "terminated", "truncated")), {}

    def close(self) -> None:
        pass
