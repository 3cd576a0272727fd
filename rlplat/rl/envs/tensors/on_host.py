"""`OnHost`: a tensor environment with numpy arrays, for all that is not on its device: the other algorithms,
evaluations, `rlplat check-env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlplat.rl.envs.tensors.contract import attribute, require_tensor_env
from rlplat.rl.envs.tensors.env import as_tensor
from rlplat.rl.interfaces import Array


class OnHost:
    """Gymnasium's vector API in the mode SAME_STEP."""

    metadata = {"autoreset_mode": "SAME_STEP"}
    tells_episode_metrics = True  # there are none

    def __init__(self, raw: Any, name: str) -> None:
        require_tensor_env(raw, name)
        self.raw = raw
        self.num_envs, self.device = int(attribute(raw, "num_envs")), str(torch.device(attribute(raw, "device")))
        self.single_observation_space = attribute(raw, "single_observation_space")
        self.single_action_space = attribute(raw, "single_action_space")
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._obs = _arrays(self.raw.reset(seed=seed)[0])
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self.raw.step(torch.as_tensor(actions, device=self.device))
        # Where it is not told, that of a step before stands for an episode's last one.
        final = info.get("final_obs", info.get("final_observation"))
        before, self._obs = self._obs, _arrays(obs)
        ends = {"final_obs": before if final is None else _arrays(final)}
        ended = [_arrays(each).astype(np.bool_) for each in (terminated, truncated)]
        return self._obs, _arrays(rewards).astype(np.float32), ended[0], ended[1], ends

    def close(self) -> None:
        if callable(close := attribute(self.raw, "close")):
            close()


def _arrays(tensors: Any) -> Any:
    """numpy arrays in the same structure."""
    if isinstance(tensors, Mapping):
        return {key: _arrays(each) for key, each in tensors.items()}
    if isinstance(tensors, tuple | list):
        return tuple(_arrays(each) for each in tensors)
    return as_tensor(tensors, "what it gives").numpy(force=True)
