"""`QSpec`: what a Q-network has beside encoder and core, framework-free; and who acts with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.run.registry import load_class
from rlplat.rl.spaces import MASK, SpaceSpec

if TYPE_CHECKING:
    from rlplat.rl.policies.numpy_q import NumpyQPolicy

EPSILON = "exploration.epsilon"
"""Under this name the share of random actions travels inside the weights: float32[1]."""

POLICIES = {
    "torch": "rlplat.rl.torch.q_policy:TorchQPolicy",
    "tf": "rlplat.rl.tf.q_policy:TfQPolicy",
}
"""Who acts where numpy cannot, by framework."""


@dataclass(frozen=True)
class QSpec:
    """The heads: `num_outputs` numbers for every action."""

    dueling: bool
    """Q = V + A - mean(A) (Wang et al. 2016)."""
    noisy: bool
    """Heads with factorised noise in their weights (Fortunato et al. 2018)."""
    distributional: Literal["none", "c51", "qr"]
    num_atoms: int
    """Atoms (C51) or quantiles (QR) of the distribution of returns."""
    value_range: tuple[float, float]
    """C51: the first and the last atom."""
    head_hidden_size: int
    """Width of a hidden layer in each head; 0: none."""
    noisy_sigma: float = 0.5
    """sigma_0: how large the noise is at first."""

    @property
    def num_outputs(self) -> int:
        return 1 if self.distributional == "none" else self.num_atoms

    def support(self) -> Array:
        """float32[num_atoms]: the returns that C51's atoms stand for."""
        return np.linspace(*self.value_range, self.num_atoms, dtype=np.float32)


def require_discrete(spaces: SpaceSpec, env: str) -> None:
    """Raises UsageError where actions are not Discrete."""
    if spaces.action.kind != "discrete":
        raise UsageError(
            f"DQN chooses among a fixed number of actions (Discrete), but {env} has actions {spaces.action}; use PPO: "
            f"rlplat train --algo ppo --env {env}"
        )


def make_q_policy(
    spec: PolicySpec,
    q: QSpec,
    seed: np.random.SeedSequence,
    *,
    framework: str = "torch",
    precision: str = "auto",
    num_threads: int = 0,
) -> NumpyQPolicy:
    """Plain MLPs act in numpy (no framework import, several times faster for few rows), others in the framework."""
    if spec.is_plain_mlp:
        from rlplat.rl.policies.numpy_q import NumpyQPolicy

        return NumpyQPolicy(spec, q, seed)
    policy: NumpyQPolicy = load_class(POLICIES[framework])(
        spec, q, seed, precision=precision, num_threads=num_threads
    )
    return policy


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
