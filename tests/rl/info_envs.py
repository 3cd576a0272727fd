"""Environments that tell numbers in their infos."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class TellingEnv(gymnasium.Env[Any, Any]):
    """Episodes of three steps that end in turn by termination and by truncation. Per step fuel 1, 2, 3; `success` only
    with the last one, `odd` only in every other episode."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, success: Any = None) -> None:
        self.success = success
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1 if seed is None else 0, 0
        return np.zeros(2, np.float32), {"fuel": 100.0, "success": True, "metrics": {"height": 100}}

    def step(self, action: Any) -> Any:
        self.t += 1
        is_odd, ends = bool(self.episode % 2), self.t == 3
        info: dict[str, Any] = {
            "fuel": np.float32(self.t),
            "unknown": float("nan") if self.t != 2 else 5.0,
            "metrics": {"height": np.array(self.t), "note": "text", "deep": {"x": self.t * 2}},
            "inner": {"r": self.t},
        }
        if ends:
            info["success"] = self.success if self.success is not None else np.bool_(is_odd)
            if is_odd:
                info["odd"] = 7
        return np.full(2, 0.1, np.float32), 1.0, ends and is_odd, ends and not is_odd, info


ASKED = ["success", "fuel:sum", "odd", "unknown:sum", "inner/r", "never"]
OF_EVEN = {"height": 3.0, "deep/x": 6.0, "success": 0.0, "fuel": 6.0, "unknown": 5.0, "inner/r": 3.0}
OF_ODD = {**OF_EVEN, "success": 1.0, "odd": 7.0}


class TellingGame(ParallelEnv):
    """Agents a and b, three steps; per step each gets `fuel`, a 1 and b 3, and only b, at the end, `success`."""

    possible_agents = ["a", "b"]
    metadata = {"name": "telling"}
    render_mode = None

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, ["a", "b"]
        return self._all(np.zeros(2, np.float32)), self._all({"fuel": 100, "metrics": {"height": 100}})

    def step(self, actions: Any) -> Any:
        self.t += 1
        ends = self.t == 3
        infos = {
            "a": {"fuel": 1, "metrics": {"height": self.t}},
            "b": {"fuel": 3, "metrics": {"height": self.t}},
        }
        if ends:
            infos["b"]["success"] = True
        told = self._all(np.zeros(2, np.float32)), self._all(1.0), self._all(ends), self._all(False), infos
        self.agents = [] if ends else self.agents
        return told

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(("a", "b"), value)
