"""Exploration: epsilon-greedy actions, and how greedy each environment's are."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Policy
from rlplat.rl.spaces import MASK

EPSILON = "exploration.epsilon"
"""Under this name the share of random actions travels inside the weights: float32[1]."""


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
    if epsilon and hasattr(policy, "greedy_epsilon"):
        policy.greedy_epsilon = epsilon
