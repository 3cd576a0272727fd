"""`PolicySpec`: everything that decides a policy's parameters, framework-free: the numpy, torch and TensorFlow networks
are built from the same one."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec

MIN_IMAGE_SIZES = {"nature_cnn": 36, "small_cnn": 20, "impala_cnn": 8}
"""The encoders for images, with the smallest height and width that they leave anything of: convolutions 8/4, 4/2, 3/1
(kernel / stride); 8/4, 4/2; three times halved."""


@dataclass(frozen=True)
class Head:
    """One part of an action: which distribution, and how many numbers the network gives for it."""

    kind: Literal["categorical", "bernoulli", "gaussian", "squashed_gaussian"]
    size: int
    """Choices (categorical: logits), bits (Bernoulli: logits) or dimensions (Gaussian: means)."""
    low: tuple[float, ...] = ()
    """The bounds of every dimension, where the Gaussian is squashed, or rescaled so that they are -1 and 1 to it."""
    high: tuple[float, ...] = ()

    @property
    def num_columns(self) -> int:
        """Columns in the array of actions."""
        return 1 if self.kind == "categorical" else self.size

    @property
    def is_gaussian(self) -> bool:
        return self.kind in ("gaussian", "squashed_gaussian")


@dataclass(frozen=True)
class PolicySpec:
    """Encoder, core, heads and initialisation of an actor-critic policy."""

    obs: ObsSpec | dict[str, ObsSpec]
    """One observation, without batch axes."""
    action: ActionSpec
    heads: tuple[Head, ...]
    """The parts of an action in the order of its columns."""
    encoder: str
    """mlp, nature_cnn, small_cnn, impala_cnn or "pkg.mod:Class"."""
    hidden_sizes: tuple[int, ...]
    activation: Literal["tanh", "relu"]
    share_encoder: bool
    orthogonal_init: bool
    initial_log_std: float
    core: Literal["none", "lstm", "gru", "attention"] = "none"
    core_size: int = 128
    attention_window: int = 32
    attention_heads: int = 4
    custom: str = ""
    """ "pkg.mod:Class" of a network of the user's own, or empty."""

    @property
    def has_mask(self) -> bool:
        """Whether observations bring an `action_mask`."""
        return isinstance(self.obs, dict) and "action_mask" in self.obs

    @property
    def num_params(self) -> int:
        """Numbers that the policy head gives: logits and means."""
        return sum(head.size for head in self.heads)

    @property
    def num_gaussian(self) -> int:
        """Dimensions that have a standard deviation."""
        return sum(head.size for head in self.heads if head.is_gaussian)

    @property
    def has_images(self) -> bool:
        """Whether convolutions are computed: they decide about devices, threads and precision."""
        leaves = self.obs.values() if isinstance(self.obs, dict) else [self.obs]
        return self.encoder != "mlp" and any(self.encodes_as_image(leaf) for leaf in leaves)

    @property
    def is_plain_mlp(self) -> bool:
        """Whether `NumpyActorCritic` can act for it: one vector in, one categorical or Gaussian head, no core."""
        return (
            isinstance(self.obs, ObsSpec)
            and self.obs.kind == "vector"
            and self.encoder == "mlp"
            and self.core == "none"
            and not self.custom
            and len(self.heads) == 1
            and self.heads[0].kind in ("categorical", "gaussian")
        )

    def encodes_as_image(self, leaf: ObsSpec) -> bool:
        """Whether this leaf of the observation goes through a CNN."""
        return self.encoder != "mlp" and is_large_image(leaf, _least_size(self.encoder))


def policy_spec(policy: dict[str, Any], spaces: SpaceSpec) -> PolicySpec:
    """The spec for a config's `policy` section (as a dict) and an environment's spaces (`VectorEnv.spec`)."""
    obs = spaces.obs
    encoder, shared, core = policy["encoder"], policy["share_encoder"], policy["core"]
    leaves = obs if isinstance(obs, dict) else {"": obs}
    if encoder == "auto":
        encoder = "nature_cnn" if any(is_large_image(leaf) for leaf in leaves.values()) else "mlp"
    least = _least_size(encoder)
    if encoder in MIN_IMAGE_SIZES and not any(is_large_image(leaf, least) for leaf in leaves.values()):
        raise ConfigError(
            f"policy.encoder={encoder} needs uint8 images of at least {least} x {least} with channels, but "
            f"observations are {_shown(obs)}; use policy.encoder=mlp"
        )
    if core != "none" and shared is False:
        raise ConfigError(
            f"policy.core={core} carries one state for policy and value, so policy.share_encoder=false cannot be had "
            "with it: leave share_encoder at auto (--policy.share-encoder auto)"
        )
    if core == "attention" and policy["core_size"] % policy["attention_heads"]:
        raise ConfigError(
            f"policy.core_size={policy['core_size']} does not divide into policy.attention_heads="
            f"{policy['attention_heads']} equal heads"
        )
    return PolicySpec(
        obs=obs,
        action=spaces.action,
        heads=tuple(
            action_heads(spaces.action, squash=policy["squash_actions"], rescale=policy["rescale_actions"])
        ),
        encoder=encoder,
        hidden_sizes=tuple(policy["hidden_sizes"]),
        activation=policy["activation"],
        share_encoder=(encoder in MIN_IMAGE_SIZES or core != "none") if shared == "auto" else bool(shared),
        orthogonal_init=policy["orthogonal_init"],
        initial_log_std=policy["initial_log_std"],
        core=core,
        core_size=policy["core_size"],
        attention_window=policy["attention_window"],
        attention_heads=policy["attention_heads"],
        custom=policy["custom"],
    )


def action_heads(action: ActionSpec, *, squash: bool = False, rescale: bool = False) -> list[Head]:
    """The distributions of an action's parts, in the order of its columns."""
    if action.kind == "discrete":
        return [Head("categorical", action.n)]
    if action.kind == "multi_discrete":
        return [Head("categorical", n) for n in action.nvec]
    if action.kind == "multi_binary":
        return [Head("bernoulli", action.flat_size)]
    if action.kind == "composite":
        parts = [action_heads(part, squash=squash, rescale=rescale) for _, part in action.parts]
        return [head for heads in parts for head in heads]
    if not squash and not rescale:
        return [Head("gaussian", action.flat_size)]
    key = "policy.squash_actions" if squash else "policy.rescale_actions"
    if not np.isfinite([*action.low, *action.high]).all():
        raise ConfigError(f"{key} needs bounded actions, but they are {action}; set it to false")
    if squash and rescale:
        raise ConfigError(
            "policy.squash_actions puts actions within their bounds as it is: set policy.rescale_actions to false"
        )
    kind: Literal["gaussian", "squashed_gaussian"] = "squashed_gaussian" if squash else "gaussian"
    return [Head(kind, action.flat_size, action.low, action.high)]


FEW, MANY = 0.5, 5.0
"""Half the width of a Box action's bounds, in units of a policy's first deviation (1), that policies learn well in."""


def unsuited_bounds(spec: ActionSpec) -> str:
    """Which bounds of Box actions a Gaussian of mean 0 and deviation 1 hardly reaches, or is nearly always beyond; the
    empty string where there are none. Infinite ones are not judged."""
    for _, part in spec.parts:
        if found := unsuited_bounds(part):
            return found
    for low, high in zip(spec.low, spec.high, strict=True):
        half, middle = (high - low) / 2.0, (high + low) / 2.0
        if math.isfinite(half) and (not FEW <= half <= MANY or abs(middle) > max(half, 1.0)):
            return f"[{low:g}, {high:g}]"
    return ""


def bounds_advice(spec: ActionSpec, can_rescale: bool = True) -> str:
    """What to do about `unsuited_bounds`, or the empty string. can_rescale: by policy.rescale_actions."""
    found = unsuited_bounds(spec)
    cure = (
        "--policy.rescale-actions makes them -1 and 1 to it"
        if can_rescale
        else "scale them in the environment"
    )
    what = f"actions have bounds {found}, and a policy begins with mean 0 and deviation 1 in the same units"
    return f"{what}: {cure}" if found else ""


def is_large_image(leaf: ObsSpec, least: int = MIN_IMAGE_SIZES["nature_cnn"]) -> bool:
    """Whether both sides of an image have `least` pixels."""
    return leaf.kind == "image" and sorted(leaf.shape)[1] >= least


def _least_size(encoder: str) -> int:
    """For classes of the user's own, and for `auto`, the Nature CNN's."""
    return MIN_IMAGE_SIZES.get(encoder, MIN_IMAGE_SIZES["nature_cnn"])


def cpu_share(num_processes: int) -> int:
    """CPU threads for one of several processes that are busy at the same time."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, num_processes))


def _shown(obs: ObsSpec | dict[str, ObsSpec]) -> str:
    return ", ".join(f"{path}: {leaf}" for path, leaf in obs.items()) if isinstance(obs, dict) else str(obs)
