"""What is asked of every framework alike, without importing one.

In the driver: is it installed, and can it do what the config asks? Where it computes: do weights fit a network, does a
Q-network keep its promises, where are gradients not finite?

    require_framework(config.framework, config.learner.num_learners)      # in an algorithm's preflight
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError, ConfigError, MissingExtra, UsageError
from rlplat.rl.interfaces import Array, Weights

PACKAGES = {"torch": ("torch", "torch"), "tf": ("tensorflow", "tf")}
"""Framework -> (package, extra)."""
GROUPING = ("torch",)
"""Frameworks whose learners form data-parallel groups."""


def require_torch(framework: str, algo: str) -> None:
    """ConfigError for another framework than the one that an algorithm computes with, MissingExtra without it."""
    if framework != "torch":
        raise ConfigError(f"{algo} computes with torch: omit framework={framework}")
    require_framework(framework)


def require_framework(framework: str, num_learners: int = 1) -> None:
    """Raises MissingExtra, or ConfigError for a group of learners where there are none."""
    package, extra = PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra, f"framework={framework}")
    if num_learners > 1 and framework not in GROUPING:
        raise ConfigError(
            f"learner.num_learners={num_learners} needs framework=torch (gradients are averaged by torch.distributed); "
            f"with framework={framework} set it to 1"
        )


def weight_for(weights: Weights, name: str, shape: Sequence[int]) -> Array:
    """That of this name, for a parameter of this shape; CheckpointError where there is none."""
    if name not in weights:
        raise CheckpointError(f"weights lack {name!r}: they belong to another network than the config describes")
    if weights[name].shape != tuple(shape):
        raise CheckpointError(
            f"weights {name!r} have shape {weights[name].shape}, the network of the config {tuple(shape)}"
        )
    return weights[name]


def require_known_state(own: str, network: Any) -> None:
    """UsageError for a Q-network with a state where transitions are replayed one by one; own: its class."""
    if network.state_size and network.spec.core == "none":
        raise UsageError(
            f"{own} has a state of {network.state_size} numbers, but policy.core is none: without a core "
            "transitions are replayed one by one; set policy.core"
        )


def require_q_shapes(own: str, network: Any, num_rows: int, outputs: Any, state: Any) -> None:
    """UsageError where a Q-network gave something else for so many observations."""
    spec, q = network.spec, network.q
    for what, tensor, expected in (
        ("outputs", outputs, (num_rows, spec.action.n, q.num_outputs)),
        ("state", state, (num_rows, network.state_size)),
    ):
        if tuple(tensor.shape) != expected:
            raise UsageError(
                f"{own}: {what} has shape {tuple(tensor.shape)}, expected {expected} for {num_rows} "
                f"observations and actions {spec.action}"
            )


class GradientNorms:
    """Of a trainee: which gradients were not finite."""

    names: Sequence[str]
    """Of its parameters, in the order of the norms."""
    _non_finite: Sequence[str] = ()

    def norms_of(self, norms: Array) -> Array:
        """The norms of all gradients before clipping, float32[K], of K steps. A step whose norm is not finite changed
        nothing. norms: float32[K, P + 1], of every parameter's gradient and of all together."""
        for parts in norms[~np.isfinite(norms[:, -1])][:1]:
            named = zip(self.names, parts, strict=False)  # the last norm is that of all together
            self._non_finite = [name for name, norm in named if not math.isfinite(norm)]
        total: Array = norms[:, -1]
        return total

    def non_finite_gradients(self) -> Sequence[str]:
        """Names of the parameters whose gradients held NaN or infinity in the first step with such that `norms_of` was
        last told of."""
        return self._non_finite
