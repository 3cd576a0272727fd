"""Stand-ins with the forms of Isaac Lab's and ManiSkill's environments, and one made by JAX."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlplat.rl.envs.tensors.tasks import TensorCartPole


class IsaacLike(gym.Env[Any, Any]):
    """As ManagerBasedRLEnv: groups of observations, no bounds, ends within the step, no last observation, a log that
    stays until the next reset. One wants to be pushed to the right."""

    LIMIT = 6
    is_vector_env: ClassVar[bool] = True

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs, self.device = num_envs, "cpu"
        self.single_observation_space = spaces.Dict()
        for name, size in (("policy", 4), ("critic", 5)):
            self.single_observation_space[name] = spaces.Box(-np.inf, np.inf, (size,))
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,))
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.extras: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.episode_length_buf[:] = 0
        return self._observed(), self.extras

    def step(self, action: Tensor) -> tuple[Any, ...]:
        self.taken = action
        self.episode_length_buf += 1
        cut = self.episode_length_buf >= self.LIMIT
        if cut.any():
            self.episode_length_buf[cut] = 0
            self.extras["log"] = {"Episode_Reward/alive": torch.tensor(0.5), "Curriculum/level": 2.0}
        return self._observed(), -(action[:, 0] - 1.0).square(), torch.zeros_like(cut), cut, self.extras

    def _observed(self) -> dict[str, Tensor]:
        time = self.episode_length_buf[:, None].float()
        return {"policy": time.expand(-1, 4).contiguous(), "critic": time.expand(-1, 5).contiguous()}


class ManiSkillLike(gym.vector.VectorEnv[Any, Any, Any]):
    """As ManiSkillVectorEnv with record_metrics: the last observation, and the episodes' numbers, are in the infos of
    steps in which one ended."""

    LIMIT = 5

    def __init__(self, num_envs: int = 2, auto_reset: bool = True) -> None:
        self.num_envs, self.auto_reset = num_envs, auto_reset
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,))
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,))
        self.steps = torch.zeros(num_envs)

    @property
    def device(self) -> torch.device:
        return self.steps.device

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        self.steps = torch.zeros_like(self.steps)
        return self._observed(), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        self.taken = actions
        self.steps = self.steps + 1
        cut, info, obs = self.steps >= self.LIMIT, {}, self._observed()
        if cut.any():
            final, self.steps = obs.clone(), self.steps.masked_fill(cut, 0.0)
            success = torch.arange(self.num_envs) % 2 == 0
            info = {"final_observation": final, "_final_observation": cut, "_final_info": cut}
            info["final_info"] = {"episode": {"success_once": success, "return": torch.ones(self.num_envs)}}
            obs = self._observed()
        return obs, torch.ones(self.num_envs), torch.zeros_like(cut), cut, info

    def _observed(self) -> Tensor:
        return torch.stack([self.steps, self.steps, torch.ones_like(self.steps)], dim=1)


class JaxCartPole:
    """Its arrays are JAX's; it takes the actions by DLPack as well."""

    single_observation_space, single_action_space = (
        TensorCartPole.single_observation_space,
        TensorCartPole.single_action_space,
    )

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs, self.device = num_envs, "cpu"
        self._own = TensorCartPole(num_envs, device="cpu")

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.obs = _jax(self._own.reset(seed=seed)[0])
        return self.obs, {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        import jax

        taken = torch.from_dlpack(jax.dlpack.from_dlpack(actions.int()))
        obs, *rows, _ = self._own.step(taken)
        self.obs = _jax(obs)
        return self.obs, *map(_jax, rows), {}

    def close(self) -> None: ...


def _jax(tensor: Tensor) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(tensor.numpy())
