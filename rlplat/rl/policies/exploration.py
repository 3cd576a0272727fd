"""Exploration: epsilon-greedy actions, how greedy those of each environment are, state-dependent noise, and actions
without a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs, Policy, PolicyOutput, Weights
from rlplat.rl.saved import Saved
from rlplat.rl.spaces import MASK, ActionSpec, action_leaves, empty_actions

EPSILON = "exploration.epsilon"
"""Under this name the share of random actions travels inside the weights: float32[1]."""


class EpsilonGreedy(Saved):
    """How a policy that acts by Q-values explores.

    output = exploration.choose(q_values, obs, deterministic=False)
    """

    saved = {"rng": "rng"}

    def __init__(self, seed: np.random.SeedSequence, epsilons: Array | None = None) -> None:
        """epsilons: float[B], fixed; None: one for all, which comes with the weights."""
        self.epsilon: Array | float = 1.0 if epsilons is None else epsilons
        """Share of random actions."""
        self._is_fixed = epsilons is not None
        self.greedy_epsilon = 0.0
        """Share of random actions where `deterministic` is asked for."""
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def set_weights(self, weights: Weights) -> None:
        if not self._is_fixed and EPSILON in weights:
            self.epsilon = float(weights[EPSILON][0])

    def choose(self, q_values: Array, obs: Obs, *, deterministic: bool) -> PolicyOutput:
        """q_values: float32[B, A] -> actions int64[B], log_probs 0, the largest Q, that of the actions."""
        epsilon = self.greedy_epsilon if deterministic else self.epsilon
        actions, q_taken, q_max = choose_actions(q_values, obs, epsilon, self.rng)
        return PolicyOutput(actions, np.zeros(len(actions), np.float32), q_max, q_taken)


def choose_actions(
    q_values: Array, obs: Obs, epsilon: Array | float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Epsilon-greedy among the legal actions: (actions int64[B], Q of these float32[B], largest Q float32[B]).

    q_values: float32[B, A]; epsilon: one for all, or float[B]. Random numbers are drawn whatever epsilon is, so that
    how many are used does not depend on it.
    """
    num_rows, num_actions = q_values.shape
    mask = _mask_of(obs)
    greedy = _greedy(q_values, mask)
    draws = rng.random((2, num_rows))
    if mask is None:
        random = (draws[1] * num_actions).astype(np.int64)
    else:
        counts = mask.sum(axis=1)
        nth = (draws[1] * counts).astype(np.int64)  # among the legal ones
        random = (mask.cumsum(axis=1) <= nth[:, None]).sum(axis=1)
    actions = np.where(draws[0] < epsilon, random, greedy)
    rows = np.arange(num_rows)
    return actions, q_values[rows, actions], q_values[rows, greedy]


def largest_legal(q_values: Array, obs: Obs) -> Array:
    """float32[B]: max_a Q(obs, a) over the legal actions."""
    return q_values[np.arange(len(q_values)), _greedy(q_values, _mask_of(obs))]


def _greedy(q_values: Array, mask: Array | None) -> Array:
    return (q_values if mask is None else np.where(mask, q_values, -np.inf)).argmax(axis=1)


def _mask_of(obs: Obs) -> Array | None:
    return obs[MASK] if isinstance(obs, dict) and MASK in obs else None


def env_epsilons(num_envs: int) -> Array:
    """float64[N]: 0.4^(1 + 7 i / (N - 1)), one for every environment of the run (Horgan et al. 2018)."""
    epsilons: Array = 0.4 ** (1.0 + 7.0 * (np.arange(num_envs) / max(1, num_envs - 1)))
    return epsilons


class StateDependentNoise:
    """gSDE (Raffin et al. 2021, section 4), in numpy or torch: features float32[B, F] times weights W [F, A]. Row b has
    a W of its own, which is drawn anew after `forget`, and every `sde_sample_freq` steps."""

    def __init__(self, sde_sample_freq: int) -> None:
        self._period, self._weights, self._num_steps = sde_sample_freq, None, 0

    def forget(self) -> None:
        """With new weights of the policy, which come with every rollout."""
        self._weights = None

    def __call__(self, features: Any, deviations: Any, draw: Callable[[tuple[int, ...]], Any]) -> Any:
        """float32[B, A]; deviations: of W, [F, A]; draw(shape): standard normal numbers."""
        shape = (len(features), *deviations.shape)
        if self._weights is None or self._weights.shape != shape or 0 < self._period <= self._num_steps:
            self._weights, self._num_steps = draw(shape) * deviations, 0
        self._num_steps += 1
        return (features[:, None] @ self._weights)[:, 0]


def use_greedy_epsilon(policy: Policy, settings: dict[str, Any]) -> None:
    """`evaluation.epsilon`, where the algorithm has it (DQN), for a policy that acts by Q-values."""
    epsilon = settings["evaluation"].get("epsilon", 0.0)
    exploration = getattr(policy, "exploration", None)
    if epsilon and isinstance(exploration, EpsilonGreedy):
        exploration.greedy_epsilon = epsilon


WIDEST = 10.0


class RandomActions:
    """Uniform ones among those that are legal."""

    def __init__(self, action: ActionSpec, seed: np.random.SeedSequence, env: str = "") -> None:
        """env: whose name a ConfigError has where actions are without bounds; without it, they get WIDEST."""
        self._action, self._rng = action, np.random.Generator(np.random.PCG64(seed))
        bounds = [bound for part in action_leaves(action) for bound in (*part.low, *part.high)]
        if env and not np.isfinite(bounds).all():
            raise ConfigError(
                f"--random draws actions uniformly between their bounds, but {env} has actions {action}: use --sampled"
            )

    def instead_of(self, actions: Array, obs: Obs, share: float) -> Array:
        """The same array of actions [B, ...], in which each row is replaced with probability `share`."""
        num_rows = len(actions)
        is_random = self._rng.random(num_rows) < share
        drawn = self.drawn(num_rows, obs)
        return np.where(is_random.reshape(-1, *[1] * (actions.ndim - 1)), drawn, actions)

    def drawn(self, num_rows: int, obs: Obs) -> Array:
        """One for every row of observations, as `PolicyOutput.actions`."""
        mask = _mask_of(obs)
        like = empty_actions(self._action, num_rows)
        return self._draw(num_rows, mask).reshape(like.shape).astype(like.dtype)

    def _draw(self, num_rows: int, mask: Array | None) -> Array:
        """float64[B, columns]; mask: bool[B, L] over the choices of all Discrete and MultiDiscrete parts, or None."""
        columns, place = [], 0
        for part in action_leaves(self._action):
            if part.kind == "box":
                low, high = np.array(part.low), np.array(part.high)
                low = np.where(np.isfinite(low), low, np.minimum(high - 1.0, -WIDEST))
                high = np.where(np.isfinite(high), high, np.maximum(low + 1.0, WIDEST))
                columns.append(self._rng.uniform(low, high, (num_rows, part.flat_size)))
            elif part.kind == "multi_binary":
                columns.append(self._rng.integers(2, size=(num_rows, part.flat_size)).astype(np.float64))
            for size in part.mask_groups if part.mask_size else ():
                draws = self._rng.random((num_rows, size))
                legal = True if mask is None else mask[:, place : place + size]
                columns.append(np.where(legal, draws, -1.0).argmax(axis=1)[:, None].astype(np.float64))
                place += size
        return np.concatenate(columns, axis=1)
