"""`PolicySpec`: everything that decides a policy's parameters, framework-free: the numpy and the torch policy are built
from the same one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Policy
from rlplat.rl.spaces import SpaceSpec

MIN_IMAGE_SIZE = 36
"""Smallest height and width that the Nature CNN's three convolutions (8/4, 4/2, 3/1) leave anything of."""


@dataclass(frozen=True)
class PolicySpec:
    """Encoder, heads and initialisation of an actor-critic policy."""

    obs_shape: tuple[int, ...]
    """One observation, without batch axes."""
    obs_layout: Literal["", "CHW", "HWC"]
    """Order of an image's axes as the environment gives it; empty for vectors."""
    action_kind: Literal["categorical", "gaussian"]
    action_size: int
    """Number of actions (categorical) or of action dimensions (gaussian)."""
    encoder: Literal["mlp", "nature_cnn"]
    hidden_sizes: tuple[int, ...]
    activation: Literal["tanh", "relu"]
    share_encoder: bool
    orthogonal_init: bool
    initial_log_std: float

    @property
    def obs_size(self) -> int:
        """Features of one flattened observation."""
        return int(np.prod(self.obs_shape, dtype=np.int64))


def policy_spec(policy: dict[str, Any], spaces: SpaceSpec) -> PolicySpec:
    """The spec for a config's `policy` section (as a dict) and an environment's spaces (`VectorEnv.spec`)."""
    obs, action = spaces.obs, spaces.action
    encoder, shared = policy["encoder"], policy["share_encoder"]
    large_enough = obs.kind == "image" and sorted(obs.shape)[1] >= MIN_IMAGE_SIZE
    if encoder == "auto":
        encoder = "nature_cnn" if large_enough else "mlp"
    if encoder == "nature_cnn" and not large_enough:
        raise ConfigError(
            f"policy.encoder=nature_cnn needs uint8 images of at least {MIN_IMAGE_SIZE} x {MIN_IMAGE_SIZE} with "
            f"channels, but observations are {obs}; use policy.encoder=mlp"
        )
    return PolicySpec(
        obs_shape=obs.shape,
        obs_layout=obs.layout,
        action_kind="categorical" if action.kind == "discrete" else "gaussian",
        action_size=action.n if action.kind == "discrete" else action.flat_size,
        encoder=encoder,
        hidden_sizes=tuple(policy["hidden_sizes"]),
        activation=policy["activation"],
        share_encoder=(encoder == "nature_cnn") if shared == "auto" else bool(shared),
        orthogonal_init=policy["orthogonal_init"],
        initial_log_std=policy["initial_log_std"],
    )


def make_policy(
    spec: PolicySpec, seed: np.random.SeedSequence, *, precision: str = "auto", num_threads: int = 0
) -> Policy:
    """A policy that acts: MLPs in pure numpy (no torch import, several times faster for few rows), others in torch.

    `num_threads`: of torch, 0 leaves its setting alone.
    """
    if spec.encoder == "mlp":
        from rlplat.rl.numpy_policy import NumpyActorCritic

        return NumpyActorCritic(spec, seed)
    from rlplat.rl.torch.policy import TorchActorCritic

    return TorchActorCritic(spec, seed, precision=precision, num_threads=num_threads)


def cpu_share(num_processes: int) -> int:
    """CPU threads for one of several processes that are busy at the same time."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, num_processes))
