"""Environments whose returns can be worked out by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class TargetEnv(gym.Env):
    """Three steps; the observation is always (1, 2), the reward -(action - 2)^2."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = spaces.Box(-100.0, 100.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs(), -float((action[0] - 2.0) ** 2), self._steps == 3, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([1.0, 2.0], np.float32)


class RandomLengthEnv(gym.Env):
    """Episodes of 1 to 20 steps, drawn at the reset; the reward is a number drawn then; actions do nothing."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._length = 0, int(self.np_random.integers(1, 21))
        self._reward = float(self.np_random.integers(100))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs(), self._reward, False, self._steps == self._length, {}

    def _obs(self) -> np.ndarray:
        return np.array([self._reward, self._steps], np.float32)


class EndlessEnv(gym.Env):
    """Never ends; reward 1 in every step."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


class NanRewardEnv(EndlessEnv):
    """The reward of the 40th step is not a number: later than the pre-flight looks."""

    _steps = 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if self._steps == 40 else reward, *rest  # type: ignore[return-value]
