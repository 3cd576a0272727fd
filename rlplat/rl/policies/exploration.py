"""Exploration: epsilon-greedy actions, and how greedy those of each environment are."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Policy, PolicyOutput, Weights
from rlplat.rl.spaces import MASK

EPSILON = "exploration.epsilon"
"""Under this name the share of random actions travels inside the weights: float32[1]."""


class EpsilonGreedy:
    """How a policy that acts by Q-values explores.

    output = exploration.choose(q_values, obs, deterministic=False)
    """

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
    mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else None
    legal = q_values if mask is None else np.where(mask, q_values, -np.inf)
    greedy = legal.argmax(axis=1)
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


def lane_epsilons(num_lanes: int, base: float = 0.4, exponent: float = 7.0) -> Any:
    """float64[lanes]: base^(1 + exponent i / (N - 1)), one for every environment of the run (Horgan et al. 2018)."""
    shares = np.arange(num_lanes) / max(1, num_lanes - 1)
    return base ** (1.0 + exponent * shares)


def use_greedy_epsilon(policy: Policy, settings: dict[str, Any]) -> None:
    """`evaluation.epsilon`, where the algorithm has it (DQN), for a policy that acts by Q-values."""
    epsilon = settings["evaluation"].get("epsilon", 0.0)
    exploration = getattr(policy, "exploration", None)
    if epsilon and isinstance(exploration, EpsilonGreedy):
        exploration.greedy_epsilon = epsilon
