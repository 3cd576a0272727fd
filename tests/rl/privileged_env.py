"""A task whose critic may know what its actor cannot: for tests of groups of observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

STEPS = 8


class HiddenBonus(gymnasium.Env):
    """The action that the cue shows is worth 1. Each episode adds a bonus to all its rewards, which is drawn at its
    start, N(0, 3^2), and which the actor is not to see."""

    observation_space = gymnasium.spaces.Dict(
        {
            "cue": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
            "sim": gymnasium.spaces.Dict({"bonus": gymnasium.spaces.Box(-50.0, 50.0, (1,), np.float32)}),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._bonus, self._time, self._hits = float(self.np_random.normal(0.0, 3.0)), 0, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        hit = int(action) == self._right
        self._hits += hit
        self._time += 1
        ended = self._time == STEPS
        info = {"metrics": {"hits": self._hits / STEPS}} if ended else {}
        return self._obs(), float(hit) + self._bonus, ended, False, info

    def _obs(self) -> Any:
        self._right = int(self.np_random.integers(2))
        cue = np.float32([1.0, -1.0]) if self._right else np.float32([-1.0, 1.0])
        return {"cue": cue, "sim": {"bonus": np.float32([self._bonus])}}


class HiddenBonusBox(HiddenBonus):
    """The sign of a continuous action is what it chooses."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(action[0] > 0.0)
