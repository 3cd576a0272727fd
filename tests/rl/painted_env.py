"""An environment that draws a picture of which every frame is known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class PaintedEnv(gym.Env):
    """A grey picture that gets lighter with every step; episodes of `length` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    observation_space = spaces.Box(0, 255, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5, size: tuple[int, ...] = (31, 45), render_mode: str | None = None) -> None:
        self.length, self.size, self.render_mode = length, size, render_mode
        self.age = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.age = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.array([self.age], np.float32), 1.0, self.age == self.length, False, {}

    def render(self) -> Any:
        return np.full((*self.size, 3), 20 * self.age, np.uint8) if self.render_mode else None
