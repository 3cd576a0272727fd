"""Tasks that step on a device, all copies at once: `TensorCartPole`, `TensorPointMass`.

env = TensorCartPole(4096, device="cuda")
obs, info = env.reset(seed=1)                                   # float32[4096, 4], on the device
obs, rewards, terminated, truncated, info = env.step(actions)   # int64[4096]; info["final_obs"] before the resets

They are also the shortest environments of this kind: what they have is what one of your own needs
(docs/tensor-environments.md).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor


class TensorTask:
    """A subclass writes the spaces, `_begin` and `_move`. An episode that ends begins anew in the same step."""

    single_observation_space: spaces.Box
    single_action_space: Any

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int, device: str = "auto") -> None:
        """device: auto is the GPU that torch sees, else the CPU."""
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._generator = torch.Generator(self.device)
        self._state = torch.zeros(self.single_observation_space.shape[0], num_envs, device=self.device)
        """float32[k, B]: a row of memory for each number, which is what its arithmetic runs over."""
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        """New episodes everywhere; without a seed the generator draws on."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state = self._begin()
        self._steps = torch.zeros_like(self._steps)
        return self._obs(self._state), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        state, rewards, terminated = self._move(self._state, actions)
        steps = self._steps + 1
        truncated = steps >= self.max_episode_steps
        ended = terminated | truncated
        # Drawn for all, used by few: to ask how many would make the device wait.
        self._state = torch.where(ended, self._begin(), state)
        self._steps = steps.masked_fill(ended, 0)
        return self._obs(self._state), rewards, terminated, truncated, {"final_obs": self._obs(state)}

    def get_state(self) -> dict[str, Tensor]:
        """Tensors by name, from which `set_state` goes on."""
        return {"state": self._state, "steps": self._steps, "generator": self._generator.get_state()}

    def set_state(self, state: dict[str, Tensor]) -> Tensor:
        """-> the observations there"""
        self._state, self._steps = (state[name].to(self.device) for name in ("state", "steps"))
        self._generator.set_state(state["generator"].cpu())
        return self._obs(self._state)

    def close(self) -> None: ...

    def _obs(self, state: Tensor) -> Tensor:
        return state.t().contiguous()

    def _uniform(self, low: float, high: float) -> Tensor:
        """float32[k, B]"""
        return torch.empty_like(self._state).uniform_(low, high, generator=self._generator)

    def _begin(self) -> Tensor:
        """float32[k, B]: states in which episodes begin."""
        raise NotImplementedError

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(the next states, rewards, terminated)"""
        raise NotImplementedError


class TensorCartPole(TensorTask):
    """Gymnasium's CartPole-v1 in float32: the same equations, limits and rewards (Barto, Sutton & Anderson 1983).
    Observations are cart position and velocity, pole angle and angular velocity."""

    GRAVITY, MASS_CART, MASS_POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360

    _high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)
    single_observation_space = spaces.Box(-_high, _high)
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int = 500, device: str = "auto") -> None:
        super().__init__(num_envs, max_episode_steps=max_episode_steps, device=device)

    def _begin(self) -> Tensor:
        return self._uniform(-0.05, 0.05)

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mass, pole = self.MASS_CART + self.MASS_POLE, self.MASS_POLE * self.HALF_LENGTH
        position, velocity, angle, spin = state.unbind()
        cos, sin = angle.cos(), angle.sin()
        force = actions * (2.0 * self.FORCE) - self.FORCE
        push = (force + pole * spin.square() * sin) / mass
        turn = (self.GRAVITY * sin - cos * push) / (
            self.HALF_LENGTH * (4.0 / 3.0 - self.MASS_POLE / mass * cos.square())
        )
        pull = push - pole / mass * turn * cos
        moved = state + self.SECONDS * torch.stack([velocity, pull, spin, turn])
        terminated = (moved[0].abs() > self.MAX_POSITION) | (moved[2].abs() > self.MAX_ANGLE)
        return moved, torch.ones_like(position), terminated


class TensorPointMass(TensorTask):
    """A mass of 1 in the plane, pushed to the origin: observations are position and velocity, actions a force within
    -1 and 1 for each axis. The reward is 1 at the origin, exp(-distance^2) elsewhere, less a hundredth of the force's
    square. Episodes have no end but the time limit."""

    SECONDS = 0.1

    single_observation_space = spaces.Box(-np.inf, np.inf, (4,))
    single_action_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, num_envs: int = 1, *, max_episode_steps: int = 100, device: str = "auto") -> None:
        super().__init__(num_envs, max_episode_steps=max_episode_steps, device=device)

    def _begin(self) -> Tensor:
        state = self._uniform(-1.0, 1.0)
        state[2:] = 0.0
        return state

    def _move(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        velocity = state[2:] + self.SECONDS * actions.t()
        position = state[:2] + self.SECONDS * velocity
        rewards = (-position.square().sum(0)).exp() - 0.01 * actions.square().sum(1)
        return torch.cat([position, velocity]), rewards, torch.zeros_like(rewards, dtype=torch.bool)
