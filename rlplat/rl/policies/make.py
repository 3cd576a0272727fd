"""Who acts: plain MLPs in numpy (no framework import, several times faster for few rows), others in the framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.class_path import load_class
from rlplat.rl.interfaces import Array, Policy
from rlplat.rl.policies.spec import PolicySpec, QSpec, policy_spec
from rlplat.rl.spaces import SpaceSpec

ACTOR_CRITICS = {
    "numpy": "rlplat.rl.policies.numpy_policies:NumpyActorCritic",
    "torch": "rlplat.rl.torch.policy:TorchActorCritic",
    "tf": "rlplat.rl.tf.policy:TfActorCritic",
}
Q_POLICIES = {
    "numpy": "rlplat.rl.policies.numpy_policies:NumpyQPolicy",
    "torch": "rlplat.rl.torch.policy:TorchQPolicy",
    "tf": "rlplat.rl.tf.policy:TfQPolicy",
}


def policy_for(
    settings: dict[str, Any],
    spaces: SpaceSpec,
    seed: np.random.SeedSequence,
    **more: Any,
) -> Policy:
    """The policy of an algorithm's config (as a dict) in these spaces; more: q, epsilons, num_threads of
    `make_policy`."""
    framework, precision = settings["framework"], settings["learner"]["precision"]
    spec = policy_spec(settings["policy"], spaces)
    made: Policy = make_policy(spec, seed, framework=framework, precision=precision, **more)
    return made


def q_policy_for(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence, **more: Any) -> Policy:
    """The same for one that acts by Q-values; more: epsilons, num_threads."""
    return policy_for(settings, spaces, seed, q=QSpec.of(settings), **more)


def make_policy(
    spec: PolicySpec,
    seed: np.random.SeedSequence,
    *,
    q: QSpec | None = None,
    epsilons: Array | None = None,
    framework: str = "torch",
    precision: str = "auto",
    num_threads: int = 0,
) -> Any:
    """A `Policy` without weights: an actor-critic's, or by Q-values where `q` says so (epsilons: see `EpsilonGreedy`).

    num_threads: of the framework where there are convolutions, 0: all CPUs; without them a step is over before a second
    thread wakes, and it gets one.
    """
    by_framework, heads = (ACTOR_CRITICS, ()) if q is None else (Q_POLICIES, (q,))
    exploration = {} if q is None else {"epsilons": epsilons}
    if spec.is_plain_mlp:
        return load_class(by_framework["numpy"])(spec, *heads, seed, **exploration)
    return load_class(by_framework[framework])(
        spec,
        *heads,
        seed,
        precision=precision,
        num_threads=num_threads if spec.has_images else 1,
        **exploration,
    )
