"""`OnHost`: a tensor environment with numpy arrays, for all that is not on its device: the other algorithms,
evaluations, `rlplat check-env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlplat.errors import EnvError, UsageError
from rlplat.rl.envs.tensors.contract import attribute, of_reset, of_step, require_tensor_env
from rlplat.rl.envs.tensors.env import host_copy
from rlplat.rl.interfaces import Array


class OnHost:
    """Gymnasium's vector API in the mode SAME_STEP."""

    metadata = {"autoreset_mode": "SAME_STEP"}
    tells_episode_metrics = True  # there are none

    def __init__(self, raw: Any, name: str) -> None:
        require_tensor_env(raw, name)
        self.raw, self._name = raw, name
        self.num_envs, self.device = int(attribute(raw, "num_envs")), str(torch.device(attribute(raw, "device")))
        self.single_observation_space = attribute(raw, "single_observation_space")
        self.single_action_space = attribute(raw, "single_action_space")
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._obs = self._arrays(of_reset(self.raw.reset(seed=seed), self._name))
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        result = self.raw.step(torch.as_tensor(actions, device=self.device))
        obs, rewards, terminated, truncated, info = of_step(result, self._name)
        # Where it is not told, that of a step before stands for an episode's last one.
        final = info.get("final_obs", info.get("final_observation"))
        before, self._obs = self._obs, self._arrays(obs)
        ends = {"final_obs": before if final is None else self._arrays(final)}
        ended = [self._arrays(each).astype(np.bool_) for each in (terminated, truncated)]
        return self._obs, self._arrays(rewards).astype(np.float32), ended[0], ended[1], ends

    def close(self) -> None:
        if callable(close := attribute(self.raw, "close")):
            close()

    def _arrays(self, tensors: Any) -> Any:
        """numpy arrays in the same structure."""
        if isinstance(tensors, Mapping):
            return {key: self._arrays(each) for key, each in tensors.items()}
        if isinstance(tensors, tuple):
            return tuple(self._arrays(each) for each in tensors)
        try:
            return host_copy(tensors, "what it gives")
        except UsageError as error:
            raise EnvError(f"{self._name}: {error}") from None
