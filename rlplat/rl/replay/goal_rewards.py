"""`GoalRewards`: what an environment with goals would have rewarded, had another goal been pursued.

Such environments (gymnasium-robotics' GoalEnv) observe a Dict with `achieved_goal` and `desired_goal`, and promise, for
every step

    reward == env.compute_reward(obs["achieved_goal"], obs["desired_goal"], info)
    terminated == env.compute_terminated(obs["achieved_goal"], obs["desired_goal"], info)

the second of which many leave out. `obs` is what came of the step. A replay keeps no `info`: an empty one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.envs.copies import Copies
from rlplat.rl.envs.make import make_single_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.interfaces import Array

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
PROBES = 16
"""Steps with random actions on which the promises above are tried."""


class GoalRewards:
    """Makes one environment, which is only asked; ConfigError where it does not keep its promises.

    rewards, terminated = GoalRewards("FetchReach-v4", {})(achieved, desired)       # [N, ...] -> float32[N], bool[N]
    """

    def __init__(self, env: str, env_kwargs: dict[str, Any], copies: Copies = Copies()) -> None:  # noqa: B008
        self._name = str(env)
        self._env = make_single_env(resolve_env(env), env_kwargs, copies)
        compute_reward = self._method("compute_reward")
        if compute_reward is None:
            raise self._refused("it has no compute_reward(achieved_goal, desired_goal, info)")
        self._compute_reward, self._compute_terminated = compute_reward, self._method("compute_terminated")
        self._in_batches: dict[Callable[..., Any], bool] = {}
        self._try_out()

    @property
    def tells_terminated(self) -> bool:
        """Whether the environment says which steps would have terminated the episode."""
        return self._compute_terminated is not None

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """achieved, desired: [N, ...] -> float32[N]"""
        return self._ask(self._compute_reward, achieved, desired).astype(np.float32)

    def terminated(self, achieved: Array, desired: Array) -> Array:
        """-> bool[N]; only where `tells_terminated`."""
        assert self._compute_terminated is not None
        return self._ask(self._compute_terminated, achieved, desired).astype(np.bool_)

    def _ask(self, method: Callable[..., Any], achieved: Array, desired: Array) -> Array:
        if self._in_batches[method]:
            return np.asarray(method(achieved, desired, [{}] * len(achieved)))
        return self._by_rows(method, achieved, desired)

    @staticmethod
    def _by_rows(method: Callable[..., Any], achieved: Array, desired: Array) -> Array:
        return np.array([float(method(a, d, {})) for a, d in zip(achieved, desired, strict=True)], np.float64)

    def _try_out(self) -> None:
        """Random steps: whether recorded rewards are what `compute_reward` says, and whether it takes many at once."""
        env, achieved, desired, rewards, terminated = self._env, [], [], [], []
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(PROBES):
            obs, reward, ends, cut, _ = env.step(env.action_space.sample())
            achieved.append(np.array(obs[ACHIEVED]))
            desired.append(np.array(obs[DESIRED]))
            rewards.append(float(reward))
            terminated.append(bool(ends))
            if ends or cut:
                env.reset()
        goals = np.stack(achieved), np.stack(desired)
        self._require_same("compute_reward", self._compute_reward, goals, rewards)
        if self._compute_terminated is not None:
            self._require_same("compute_terminated", self._compute_terminated, goals, terminated)

    def _require_same(
        self, name: str, method: Callable[..., Any], goals: tuple[Array, Array], recorded: list[Any]
    ) -> None:
        try:
            alone = self._by_rows(method, *goals)
        except KeyError as error:
            raise self._refused(f"its {name} reads info[{error}], and a replay keeps no info") from error
        except Exception as error:
            raise self._refused(f"its {name} raised {type(error).__name__}: {error}") from error
        different = np.flatnonzero(~np.isclose(alone, np.array(recorded, np.float64), rtol=1e-4, atol=1e-5))
        if len(different):
            at = int(different[0])
            raise self._refused(
                f"its {name} says {alone[at]:g} of a step for which step() gave {float(recorded[at]):g}; they are to "
                "agree, from the goals alone"
            )
        try:
            together = np.asarray(method(*goals, [{}] * len(recorded)), np.float64)
        except Exception:  # it takes one at a time
            together = np.zeros(())
        self._in_batches[method] = together.shape == alone.shape and np.allclose(together, alone)

    def _method(self, name: str) -> Callable[..., Any] | None:
        """The environment's, or that of the outermost wrapper that has one."""
        env = self._env
        while env is not None:
            found = getattr(env, name, None)
            if found is not None:
                method: Callable[..., Any] = found
                return method
            env = getattr(env, "env", None)
        return None

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"hindsight cannot relabel {self._name}: {why}; mend the environment, or leave "
            "hindsight.goal_selection_strategy at none"
        )
