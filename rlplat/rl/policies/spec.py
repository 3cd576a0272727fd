"""`PolicySpec`: everything that decides a policy's parameters, framework-free: the numpy, torch and TensorFlow networks
are built from the same one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np

from rlplat.errors import ConfigError, UsageError
from rlplat.machine_limits import cpu_count
from rlplat.rl.interfaces import Activation, Array
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec, obs_leaves, shown_obs

MIN_IMAGE_SIZES = {"nature_cnn": 36, "small_cnn": 20, "impala_cnn": 8, "grid_cnn": 5}
"""The encoders for images, with the smallest height and width that they leave anything of: convolutions 8/4, 4/2, 3/1
(kernel / stride); 8/4, 4/2; three times halved; twice halved (and below 5 pixels a convolution is mostly border)."""
MANY_NUMBERS = 2_000
"""Beside each other into an MLP: worth a warning."""
MANY_PIXELS = 160 * 160
"""In one image: worth a warning; the published networks have 84 x 84 and 96 x 96."""


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
    """mlp, nature_cnn, small_cnn, grid_cnn, impala_cnn (of several, the largest image's) or "pkg.mod:Class"."""
    hidden_sizes: tuple[int, ...]
    activation: Activation
    share_encoder: bool
    orthogonal_init: bool
    initial_log_std: float
    core: Literal["none", "lstm", "gru", "attention"] = "none"
    core_size: int = 128
    attention_window: int = 32
    attention_heads: int = 4
    custom: str = ""
    """ "pkg.mod:Class" of a network of the user's own, or empty."""
    encoders: dict[str, str] = field(default_factory=dict)
    """The encoder of every observation that goes through convolutions, by path."""
    layer_norm: bool = False
    use_sde: bool = False
    sde_sample_freq: int = -1
    critic_hidden_sizes: tuple[int, ...] = ()
    """Empty: as the actor's."""
    actor_obs: tuple[str, ...] = ()
    critic_obs: tuple[str, ...] = ()
    """The observations that each of them sees, by path; empty: all."""

    @property
    def actor(self) -> PolicySpec:
        """What the actor's encoder is made from."""
        return self._seeing(self.actor_obs)

    @property
    def critic(self) -> PolicySpec:
        """What the critic's own encoder is made from."""
        seeing = self._seeing(self.critic_obs)
        return replace(seeing, hidden_sizes=self.critic_hidden_sizes or self.hidden_sizes)

    def _seeing(self, paths: tuple[str, ...]) -> PolicySpec:
        if not paths or not isinstance(self.obs, dict):
            return self
        encoders = {path: name for path, name in self.encoders.items() if path in paths}
        return replace(self, obs={path: self.obs[path] for path in paths}, encoders=encoders)

    @property
    def is_privileged(self) -> bool:
        """Whether the critic sees what the actor does not: who has only the actor's observations has no values."""
        return bool(self.actor_obs) and not set(self.critic_obs) <= set(self.actor_obs)

    def require_used(self) -> None:
        """ConfigError for settings that the encoder of an image does not have."""
        if "" in self.encoders and self.activation not in ("tanh", "relu"):
            raise ConfigError(
                f"policy.activation={self.activation} is for MLPs, but observations {self.obs} go into {self.encoder}: "
                "omit it"
            )
        if self.layer_norm and "impala_cnn" in self.encoders.values():
            raise ConfigError("policy.layer_norm=true is for MLPs and other CNNs, not for impala_cnn: set it to false")

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
        """Whether convolutions are computed: they decide about devices and threads."""
        return bool(self.encoders)

    @property
    def has_large_images(self) -> bool:
        """Whether convolutions take most of the time, so that their precision matters to it."""
        return any(name != "grid_cnn" for name in self.encoders.values())

    @property
    def is_plain_mlp(self) -> bool:
        """Whether `NumpyActorCritic` can act for it: one vector in, one categorical or Gaussian head, no core."""
        return (
            isinstance(self.obs, ObsSpec)
            and self.obs.kind == "vector"
            and self.encoder == "mlp"
            and self.core == "none"
            and not self.custom
            and not self.use_sde
            and len(self.heads) == 1
            and self.heads[0].kind in ("categorical", "gaussian")
        )


def policy_spec(policy: dict[str, Any], spaces: SpaceSpec) -> PolicySpec:
    """The spec for a config's `policy` section (as a dict) and an environment's spaces (`VectorEnv.spec`)."""
    obs = spaces.obs
    encoder, shared, core = policy["encoder"], policy["share_encoder"], policy["core"]
    encoders = image_encoders(obs, encoder)
    if encoder == "auto":
        encoder = max(encoders.values(), key=MIN_IMAGE_SIZES.__getitem__, default="mlp")
    if encoder in MIN_IMAGE_SIZES and not encoders:
        least = MIN_IMAGE_SIZES[encoder]
        raise ConfigError(
            f"policy.encoder={encoder} needs images of at least {least} x {least} pixels, but observations "
            f"are {shown_obs(obs)}; use policy.encoder=mlp or auto"
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
    if policy.get("use_sde") and (spaces.action.kind != "box" or policy["custom"]):
        what = f"your network {policy['custom']} explores" if policy["custom"] else f"actions are {spaces.action}"
        raise ConfigError(f"policy.use_sde is for Box actions and rlplat's own network, but {what}: omit it")
    groups = policy.get("obs_groups") or {}
    actor_obs, critic_obs = (_group(obs, groups, name) for name in ("actor", "critic"))
    if groups and (shared is True or core != "none"):
        key = "share_encoder=true" if shared is True else f"core={core}"
        raise ConfigError(
            f"policy.obs_groups gives actor and critic encoders of their own, and policy.{key} one for both: omit one"
        )
    share = (encoder in MIN_IMAGE_SIZES or core != "none") if shared == "auto" else bool(shared)
    share = share and not groups
    critic_sizes = policy.get("critic_hidden_sizes") or ()  # of settings that an earlier version wrote, none
    if critic_sizes and share:
        raise ConfigError(
            f"policy.critic_hidden_sizes={list(critic_sizes)} needs a network of the critic's own, but it shares the "
            f"actor's (policy.share_encoder={shared}, {f'core {core}' if core != 'none' else f'encoder {encoder}'})"
        )
    heads = action_heads(spaces.action, squash=policy["squash_actions"], rescale=policy["rescale_actions"])
    as_they_are = {each.name: policy[each.name] for each in fields(PolicySpec) if each.name in policy}
    decided = {
        "encoder": encoder,
        "hidden_sizes": tuple(policy["hidden_sizes"]),
        "share_encoder": share,
        "critic_hidden_sizes": tuple(critic_sizes),
    }
    return PolicySpec(
        obs=obs,
        action=spaces.action,
        heads=tuple(heads),
        encoders=encoders,
        actor_obs=actor_obs,
        critic_obs=critic_obs,
        **as_they_are | decided,
    )


def _group(obs: ObsSpec | dict[str, ObsSpec], groups: Mapping[str, Sequence[str]], group: str) -> tuple[str, ...]:
    """The paths of a group of observations, which names them or dicts of them; a mask is always among them."""
    if not groups:
        return ()
    if not isinstance(obs, dict):
        raise ConfigError(f"policy.obs_groups names parts of Dict observations, but they are {obs}: omit it")
    names = groups.get(group, list(obs))
    for name in names:
        if not any(path == name or path.startswith(f"{name}/") for path in obs):
            raise ConfigError(
                f"policy.obs_groups.{group} names '{name}', which observations do not have: {', '.join(obs)}"
            )
    return tuple(
        path
        for path, leaf in obs.items()
        if leaf.kind == "mask" or any(path == name or path.startswith(f"{name}/") for name in names)
    )


def image_encoders(obs: ObsSpec | dict[str, ObsSpec], encoder: str) -> dict[str, str]:
    """Which observations a `policy.encoder` takes as images, by path, and the encoder that each gets. `auto`: by their
    size. A class of the user's own decides by itself; it is given those from 36 pixels on, which need convolutions."""
    if encoder == "mlp":
        return {}
    found = {}
    for path, leaf in obs_leaves(obs).items():
        if leaf.kind == "image":
            side = min(leaf.channels_height_width[1:])
            auto = "nature_cnn" if side >= MIN_IMAGE_SIZES["nature_cnn"] else "grid_cnn"
            name = auto if encoder == "auto" else encoder
            if side >= MIN_IMAGE_SIZES.get(name, MIN_IMAGE_SIZES["nature_cnn"]):
                found[path] = name
    return found


def said_of_observations(
    obs: ObsSpec | dict[str, ObsSpec], encoder: str = "auto", custom: str = ""
) -> tuple[list[str], list[str]]:
    """(a line for every observation: what it is taken for, and the encoder it gets; warnings about them).

    encoder, custom: as in the `policy` section."""
    lines, warnings = [], []
    encoders = image_encoders(obs, encoder)
    own = custom or (encoder if ":" in encoder else "")
    for path, leaf in obs_leaves(obs).items():
        if leaf.kind == "mask":
            continue
        name = f"obs '{path}'" if path else "obs"
        lines.append(f"{name}: {_kind_of(leaf)} -> {own or encoders.get(path, 'mlp')}")
        if leaf.kind == "image" and not leaf.bounds[0]:
            warnings.append(
                f"{name}: the space of these images has no finite bounds, so that their values go into the network as "
                "they are: give it bounds, or --env-kwargs.image.range '[LOW, HIGH]', or --normalize-observations"
            )
        if not own and path not in encoders and leaf.num_features > MANY_NUMBERS:
            warnings.append(f"{name}: {leaf.num_features:,} numbers go into an MLP; {_too_many(leaf)}")
        if not own and path in encoders and np.prod(leaf.channels_height_width[1:]) > MANY_PIXELS:
            warnings.append(
                f"{name}: images of this size make a network of many millions of weights, and few env steps a second: "
                "--env-kwargs.image.size 84 scales them down"
            )
    return lines, warnings


def _kind_of(leaf: ObsSpec) -> str:
    """`image 96x96x12 (4 stacked RGB)`, `vector 4`, `one of 16`."""
    if leaf.kind == "discrete":
        return f"one of {leaf.nvec[0]}"
    if leaf.kind == "multi_discrete":
        return f"{len(leaf.nvec)} choices as {sum(leaf.nvec)} numbers"
    if leaf.kind == "multi_binary":
        return f"{leaf.flat_size} bits"
    if leaf.kind != "image":
        shape = "" if len(leaf.shape) < 2 else f" ({'x'.join(map(str, leaf.shape))})"
        return f"vector {leaf.flat_size}{shape}"
    channels, height, width = leaf.channels_height_width
    notes = []
    if "T" in leaf.layout:
        colours = {3: "RGB", 4: "RGBA"}.get(channels // leaf.shape[0], f"of {channels // leaf.shape[0]} channels")
        notes.append(f"{leaf.shape[0]} stacked {colours}")
    elif leaf.layout == "CHW":
        notes.append("channels first")
    low, high = leaf.bounds
    if leaf.low:
        span = f"{min(low):g}..{max(high):g}"
        notes.append((span if span == "0..1" else f"{span} -> 0..1") + (" by channel" if len(low) > 1 else ""))
    elif not low:
        notes.append("values as they are")
    return f"image {height}x{width}x{channels}" + (f" ({', '.join(notes)})" if notes else "")


def _too_many(leaf: ObsSpec) -> str:
    if leaf.nvec:
        return "one for each value of a choice: if near values are alike, a Box of a few numbers learns sooner"
    if leaf.kind == "image":
        return "it is an image: --policy.encoder auto takes a CNN, where the algorithm has one"
    return (
        "if it is an image, give its space finite bounds and two or three axes (docs/custom-env.md, Images), or "
        "--env-kwargs.image.range '[LOW, HIGH]'; else leave out what the task does not need"
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
    cure = "--policy.rescale-actions makes them -1 and 1 to it" if can_rescale else "scale them in the environment"
    what = f"actions have bounds {found}, and a policy begins with mean 0 and deviation 1 in the same units"
    return f"{what}: {cure}" if found else ""


def worker_threads(config: Any, spec: PolicySpec) -> int:
    """Of the framework, in a rollout worker that computes gradients; 0 leaves it to the framework's own rule."""
    num_threads: int = config.learner.num_threads
    return cpu_share(config.num_rollout_workers) if spec.has_images and not num_threads else num_threads


def cpu_share(num_processes: int) -> int:
    """CPU threads for one of several processes that are busy at the same time."""
    return max(1, cpu_count() // max(1, num_processes))


@dataclass(frozen=True)
class QSpec:
    """The heads: `num_outputs` numbers for every action."""

    dueling: bool = False
    """Q = V + A - mean(A) (Wang et al. 2016)."""
    noisy: bool = False
    """Heads with factorised noise in their weights (Fortunato et al. 2018)."""
    distributional: Literal["none", "c51", "qr"] = "none"
    num_atoms: int = 51
    """Atoms (C51) or quantiles (QR) of the distribution of returns."""
    value_range: tuple[float, float] = (-10.0, 10.0)
    """C51: the first and the last atom."""
    head_hidden_size: int = 0
    """Width of a hidden layer in each head; 0: none."""
    noisy_sigma: float = 0.5
    """sigma_0: how large the noise is at first."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Those of its fields that a config (as a dict) has."""
        return cls(**{each.name: settings[each.name] for each in fields(cls) if each.name in settings})

    @property
    def num_outputs(self) -> int:
        return 1 if self.distributional == "none" else self.num_atoms

    def support(self) -> Array:
        """float32[num_atoms]: the returns that C51's atoms stand for."""
        return np.linspace(*self.value_range, self.num_atoms, dtype=np.float32)


def require_discrete(spaces: SpaceSpec, env: str, algo: str) -> None:
    """Raises UsageError where actions are not Discrete."""
    if spaces.action.kind != "discrete":
        is_bounded_box = spaces.action.kind == "box" and np.isfinite([*spaces.action.low, *spaces.action.high]).all()
        use = "sac" if is_bounded_box else "ppo"
        raise UsageError(
            f"{algo.upper()} chooses among a fixed number of actions (Discrete), but {env} has actions "
            f"{spaces.action}; use {use.upper()}: rlplat train --algo {use} --env {shlex.quote(env)}"
        )


SMALL = 1e-6
"""A probability, relative to that of the legal choice, that counts as 0."""


def masks_with_one_choice(spec: PolicySpec) -> tuple[Array, Array]:
    """(mask bool[N, L], choices int64[N, K]): one legal choice in each of K groups, another one in every row."""
    sizes = _group_sizes(spec)
    rows = np.arange(max(sizes))
    choices = np.stack([rows % size for size in sizes], axis=1)
    mask = np.concatenate([np.eye(size, dtype=np.bool_)[rows % size] for size in sizes], axis=1)
    return mask, choices


def forbidden_choice(spec: PolicySpec, choices: Array, actions: Array, log_prob: Callable[[Array], Array]) -> str:
    """What to say where an action that the mask forbids has a probability, or the empty string.

    choices: of `masks_with_one_choice`; actions: any, as the network draws them under these masks; log_prob: of
    actions, float[N].
    """
    heads = [head.kind for head in spec.heads]
    starts = np.cumsum([0, *(head.num_columns for head in spec.heads)])
    columns = [int(starts[i]) for i, kind in enumerate(heads) if kind == "categorical"]
    legal = actions.reshape(len(actions), -1).copy()
    legal[:, columns] = choices
    of_legal = log_prob(legal.reshape(actions.shape))
    for column, choice, size in zip(columns, choices.T, _group_sizes(spec), strict=True):
        if size == 1:
            continue
        other = legal.copy()
        other[:, column] = (choice + 1) % size
        shares = np.exp(np.minimum(log_prob(other.reshape(actions.shape)) - of_legal, 0.0))
        if shares.max() > SMALL:
            return (
                f"an action that the action mask forbids is {shares.max():.2g} times as likely as the only legal one "
                f"(column {column} of the actions), expected 0: give the mask to the distribution, "
                'ActionDistribution(spec, params, mask=obs["action_mask"].bool()) (docs/custom-policy.md)'
            )
    return ""


def _group_sizes(spec: PolicySpec) -> list[int]:
    return [head.size for head in spec.heads if head.kind == "categorical"]
