"""`ClassicVectorEnv`: gymnasium's Acrobot, MountainCar, MountainCarContinuous and Pendulum, all copies in one step.

    raw = ClassicVectorEnv(gymnasium.make("Pendulum-v1").unwrapped, 8, max_episode_steps=200)

Bit for bit what so many single ones do (`vectorization: sync`), seeds included, for a fraction of the time: constants,
resets and the equations of Acrobot and Pendulum are those of the environment that it is given, which get arrays for
numbers; those of the mountain cars, which have functions of single numbers in them, are written anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array

Moved = tuple[Array, Any, Array]
"""[B, ...] observations; rewards; terminated."""
_PACKAGE = "gymnasium.envs.classic_control"


class ClassicVectorEnv:
    """Gymnasium's vector API in the mode SAME_STEP; every copy has a generator of its own."""

    metadata = {"autoreset_mode": "SAME_STEP"}
    seed_form = "list"
    tells_episode_metrics = True  # there are none

    def __init__(self, model: Any, num_envs: int, max_episode_steps: int | None) -> None:
        """model: one of these environments, without wrappers."""
        kind = type(model)
        self.model, self.num_envs = model, num_envs
        self.single_observation_space, self.single_action_space = model.observation_space, model.action_space
        self.next_seeds: list[int | None] = [None] * num_envs
        """With which each is reset when its episode ends; None: its generator draws on."""
        self._move, _ = MOVES[f"{kind.__module__}:{kind.__qualname__}"]
        self._limit = math.inf if max_episode_steps is None else max_episode_steps
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._state = np.zeros((0, num_envs))
        """float64[k, B], a column for each copy."""
        self._obs = np.zeros((num_envs, *model.observation_space.shape), model.observation_space.dtype)

    def reset(self, *, seed: list[int] | None = None) -> tuple[Array, dict[str, Any]]:
        self._obs = np.empty_like(self._obs)
        for index in range(self.num_envs):
            self._begin(index, None if seed is None else seed[index])
        return self._obs, {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        self._obs, rewards, terminated = self._move(self, actions)
        self._steps += 1
        truncated = self._steps >= self._limit
        info: dict[str, Any] = {}
        if (ended := np.flatnonzero(terminated | truncated)).size:
            info["final_obs"] = self._obs.copy()
            for index in ended.tolist():
                self._begin(index, self.next_seeds[index])
        return self._obs, np.asarray(rewards, np.float64), terminated, truncated, info

    def get_attr(self, name: str) -> list[Any]:
        return self._of_each(lambda: getattr(self.model, name))

    def set_attr(self, name: str, value: Any) -> None:
        """In all of them: `state`, or a constant such as Pendulum's `g`."""
        getattr(self.model, name)
        self._of_each(lambda: setattr(self.model, name, value))

    def call(self, name: str, *arguments: Any, **keywords: Any) -> list[Any]:
        return self._of_each(lambda: getattr(self.model, name)(*arguments, **keywords))

    def close(self) -> None:
        self.model.close()

    def _of_each(self, ask: Callable[[], Any]) -> list[Any]:
        answers = []
        for index in range(self.num_envs):
            self.model.state = self._state[:, index].copy()
            answers.append(ask())
            self._state[:, index] = self.model.state
        return answers

    def _begin(self, index: int, seed: int | None) -> None:
        self.next_seeds[index] = None
        if seed is None and (own := self._generators[index]) is not None:
            self.model.np_random = own
        self._obs[index] = self.model.reset(seed=seed)[0]
        self._generators[index] = self.model.np_random
        if not self._state.size:
            self._state = np.zeros((len(self.model.state), self.num_envs))
        self._state[:, index] = self.model.state
        self._steps[index] = 0

    # -- the environments

    def _pendulum(self, actions: Array) -> Moved:
        self.model.state = self._state.view(_Numbers)
        obs, rewards, *_ = self.model.step(actions.T.view(_Numbers))
        self._state = np.asarray(self.model.state)
        return np.ascontiguousarray(obs.T), rewards, np.zeros(self.num_envs, np.bool_)

    def _acrobot(self, actions: Array) -> Moved:
        model = self.model
        torques = [float(model.AVAIL_TORQUE[action]) for action in actions]
        if (noise := model.torque_noise_max) > 0:
            torques = [
                torque + generator.uniform(-noise, noise)
                for torque, generator in zip(torques, self._generators, strict=True)
                if generator is not None
            ]

        def derivatives(at: Array) -> Array:
            found = np.zeros_like(at)
            found[:4] = model._dsdt(at)[:4]
            return found

        # Runge-Kutta, as gymnasium's rk4().
        y0 = np.vstack([self._state, torques]).view(_Numbers)
        dt2 = model.dt / 2.0
        k1 = derivatives(y0)
        k2 = derivatives(y0 + dt2 * k1)
        k3 = derivatives(y0 + dt2 * k2)
        k4 = derivatives(y0 + model.dt * k3)
        state = np.array((y0 + model.dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4))[:4])
        angles = state[:2]
        while (over := angles > np.pi).any():
            angles[over] -= 2 * np.pi
        while (under := angles < -np.pi).any():
            angles[under] += 2 * np.pi
        for row, most in ((2, model.MAX_VEL_1), (3, model.MAX_VEL_2)):
            state[row] = np.minimum(np.maximum(state[row], -most), most)
        self._state = state
        one, both = np.cos(state[0]), np.cos(state[1] + state[0])
        terminated = -one - both > 1.0
        columns = [one, np.sin(state[0]), np.cos(state[1]), np.sin(state[1]), state[2], state[3]]
        return np.stack(columns, axis=1).astype(np.float32), np.where(terminated, 0.0, -1.0), terminated

    def _mountain_car(self, actions: Array) -> Moved:
        model, (position, velocity) = self.model, self._state
        pull = _cos(3 * position) * (-model.gravity)
        velocity = np.clip(velocity + ((actions - 1) * model.force + pull), -model.max_speed, model.max_speed)
        position = np.clip(position + velocity, model.min_position, model.max_position)
        velocity[(position == model.min_position) & (velocity < 0)] = 0.0
        self._state = np.stack([position, velocity])
        terminated = (position >= model.goal_position) & (velocity >= model.goal_velocity)
        return self._state.T.astype(np.float32), np.full(self.num_envs, -1.0), terminated

    def _continuous_mountain_car(self, actions: Array) -> Moved:
        """From its second step on an episode is computed in float32, as gymnasium does."""
        model, action = self.model, actions[:, 0]
        terminated = np.zeros(self.num_envs, np.bool_)
        after = np.empty((2, self.num_envs), np.float32)
        for dtype, which in ((np.float64, self._steps == 0), (np.float32, self._steps > 0)):
            if not which.any():
                continue
            position, velocity = self._state[:, which].astype(dtype)
            force = np.clip(action[which], model.min_action, model.max_action)
            pull = (0.0025 * _cos(3 * position)).astype(np.float32)
            velocity = np.clip(velocity + (force * model.power - pull), -model.max_speed, model.max_speed)
            position = np.clip(position + velocity, model.min_position, model.max_position)
            velocity[(position == dtype(model.min_position)) & (velocity < 0)] = 0.0
            terminated[which] = (position >= model.goal_position) & (velocity >= model.goal_velocity)
            after[:, which] = position, velocity
        self._state = after.astype(np.float64)
        costs = np.array([math.pow(each, 2) * 0.1 for each in action])
        return np.ascontiguousarray(after.T), np.where(terminated, 100.0, 0.0) - costs, terminated


MOVES: dict[str, tuple[Callable[[ClassicVectorEnv, Array], Moved], int]] = {
    f"{_PACKAGE}.acrobot:AcrobotEnv": (ClassicVectorEnv._acrobot, 12),
    f"{_PACKAGE}.continuous_mountain_car:Continuous_MountainCarEnv": (
        ClassicVectorEnv._continuous_mountain_car,
        12,
    ),
    f"{_PACKAGE}.mountain_car:MountainCarEnv": (ClassicVectorEnv._mountain_car, 4),
    f"{_PACKAGE}.pendulum:PendulumEnv": (ClassicVectorEnv._pendulum, 4),
}
"""By entry point: how a step is made, and the fewest copies for which that is faster than one after the other."""


class _Numbers(np.ndarray):
    """An array whose powers are those of its numbers: numpy's of an array, x * x for x ** 2, differ in the last bit."""

    def __pow__(self, exponent: Any) -> Any:  # type: ignore[override]
        numbers = np.asarray(self)
        if numbers.dtype == np.float64:
            return np.float_power(numbers, exponent).view(_Numbers)
        return np.array([number**exponent for number in numbers], self.dtype).view(_Numbers)


def _cos(angles: Array) -> Array:
    """float64, by the C library, as `math.cos`."""
    return np.array([math.cos(angle) for angle in angles.tolist()])
