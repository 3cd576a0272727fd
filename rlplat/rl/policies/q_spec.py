"""`QSpec`: what a Q-network has beside encoder and core, framework-free."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import SpaceSpec

if TYPE_CHECKING:
    pass


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
        is_bounded_box = (
            spaces.action.kind == "box" and np.isfinite([*spaces.action.low, *spaces.action.high]).all()
        )
        use = "sac" if is_bounded_box else "ppo"
        raise UsageError(
            f"DQN chooses among a fixed number of actions (Discrete), but {env} has actions {spaces.action}; use "
            f"{use.upper()}: rlplat train --algo {use} --env {shlex.quote(env)}"
        )
