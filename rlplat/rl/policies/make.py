"""Who acts with a spec: plain MLPs in numpy, others in the framework, which is imported then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlplat.rl.class_path import load_class
from rlplat.rl.interfaces import Policy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec

if TYPE_CHECKING:
    from rlplat.rl.policies.numpy_q import NumpyQPolicy


def make_policy(
    spec: PolicySpec,
    seed: np.random.SeedSequence,
    *,
    framework: str = "torch",
    precision: str = "auto",
    num_threads: int = 0,
) -> Policy:
    """A policy that acts: plain MLPs in numpy (no framework import, several times faster for few rows), others in the
    framework.

    `num_threads`: of the framework, 0 leaves its setting alone.
    """
    if spec.is_plain_mlp:
        from rlplat.rl.policies.numpy_actor_critic import NumpyActorCritic

        return NumpyActorCritic(spec, seed)
    from rlplat.rl.class_path import load_class

    policy: Policy = load_class(POLICIES[framework])(spec, seed, precision=precision, num_threads=num_threads)
    return policy


POLICIES = {
    "torch": "rlplat.rl.torch.policy:TorchActorCritic",
    "tf": "rlplat.rl.tf.policy:TfActorCritic",
}
"""Who acts where numpy cannot, by framework."""


Q_POLICIES = {
    "torch": "rlplat.rl.torch.q_policy:TorchQPolicy",
    "tf": "rlplat.rl.tf.q_policy:TfQPolicy",
}
"""Who acts where numpy cannot, by framework."""


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
    policy: NumpyQPolicy = load_class(Q_POLICIES[framework])(
        spec, q, seed, precision=precision, num_threads=num_threads
    )
    return policy
