"""SeededEnv with a picture: an episode of 5 steps whose reward is the action."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.rl.fixture_envs import SeededEnv


class SkilledEnv(SeededEnv):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((16, 24, 3), 40 * self._step, np.uint8)
