"""From gymnasium's spaces to ours: the spec, what is not supported and why, and the conversion of actions.

spec = space_spec(env.observation_space, env.action_space)       # raises UsageError: names what is supported
convert = action_converter(env.action_space)
vector_env.step(convert(actions))
actions = policy_actions(env.action_space, what_the_environment_took)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.envs.images import image_spec
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import MASK, ActionSpec, ObsSpec, SpaceSpec, empty_actions

OBS_SPEC = "rlplat_obs_spec"
"""The attribute by which a Box that we made says what it is."""
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"


def space_spec(observation_space: Any, action_space: Any, *, adds_mask: bool = False) -> SpaceSpec:
    """The spec of one environment's gymnasium spaces (not the batched ones).

    `adds_mask`: the environment gives a mask beside its observations, in its info or by a method.
    """
    problem = (
        unsupported_observation(observation_space)
        or unsupported_action(action_space)
        or mask_problem(observation_space, action_space)
    )
    if problem:
        raise UsageError(problem)
    action = _action_spec(action_space)
    obs: ObsSpec | dict[str, ObsSpec]
    obs = {part.path: part.spec for part in obs_parts(observation_space)}
    if adds_mask and not action.mask_size:
        raise UsageError(
            f"the environment gives an {MASK}, but its actions are {action}, of which none can be masked; leave it out"
        )
    if adds_mask and MASK not in obs:
        obs = {path or "obs": leaf for path, leaf in obs.items()}
        obs[MASK] = ObsSpec("mask", (action.mask_size,), "bool")
    return SpaceSpec(obs if set(obs) != {""} else obs[""], action)


@dataclass(frozen=True)
class ObsPart:
    """Where in an environment's observation a leaf is, and what becomes of it."""

    path: str
    keys: tuple[Any, ...]
    """From the outside in: observation[keys[0]][keys[1]]..."""
    space: Any
    spec: ObsSpec
    start: Any = 0
    """Of discrete kinds: what the environment counts from (a number or int64[K])."""


def obs_parts(space: Any) -> list[ObsPart]:
    """The leaves of a supported space in their order, an action mask last; one with the path "" where it is no tree."""
    parts = [_obs_part(keys, leaf) for keys, leaf in walk(space)]
    return sorted(parts, key=lambda part: part.spec.kind == "mask")


def nested(space: Any, leaves: Mapping[str, Any], keys: tuple[Any, ...] = ()) -> Any:
    """Arrays by path in the structure of a space."""
    parts = getattr(space, "spaces", None)
    if parts is None:
        return leaves[_path(keys)]
    if isinstance(parts, dict):
        return {key: nested(part, leaves, (*keys, key)) for key, part in parts.items()}
    return tuple(nested(part, leaves, (*keys, i)) for i, part in enumerate(parts))


def by_path(space: Any, value: Any) -> dict[str, Array]:
    """The other way round."""
    return {_path(keys): np.asarray(reduce(getitem, keys, value)) for keys, _ in walk(space)}


def flat_space(obs: ObsSpec | dict[str, ObsSpec], observation_space: Any) -> Any:
    """A gymnasium space of the observations that we make: what is nested has become one Dict by path."""
    from gymnasium import spaces

    bounds = {part.path: part.space for part in obs_parts(observation_space)}

    def leaf_space(leaf: ObsSpec, path: str) -> Any:
        if leaf.kind == "discrete":
            return spaces.Discrete(leaf.nvec[0])
        if leaf.kind == "multi_discrete":
            return spaces.MultiDiscrete(list(leaf.nvec))
        if leaf.kind in ("multi_binary", "mask"):
            return spaces.MultiBinary(leaf.shape[0])
        box = bounds[path if path in bounds else ""]
        dtype = leaf.dtype if leaf.kind == "image" else box.dtype
        low, high = (bound.astype(dtype).reshape(leaf.shape) for bound in (box.low, box.high))
        made = spaces.Box(low, high, dtype=np.dtype(dtype).type)
        made.__dict__[OBS_SPEC] = leaf  # of another shape and dtype, it might be taken for something else
        return made

    if isinstance(obs, dict):
        # gymnasium sorts plain dicts by key; pairs keep their order.
        return spaces.Dict([(path, leaf_space(leaf, path)) for path, leaf in obs.items()])
    return leaf_space(obs, "")


def with_leaf(space: Any, value: Any, name: str, leaf: Any) -> Any:
    """What is in a space, or the space itself, as a Dict with a leaf more; what stands alone becomes its "obs"."""
    from gymnasium import spaces

    leaves = dict(value.items()) if isinstance(space, spaces.Dict) else {"obs": value}
    both = leaves | {name: leaf}
    return spaces.Dict(both) if value is space else both


def side_by_side_space(parts: Mapping[str, Any]) -> Any:
    """Of what `side_by_side` makes of these spaces."""
    from gymnasium import spaces

    return spaces.Box(-np.inf, np.inf, (sum(map(spaces.flatdim, parts.values())),), np.float32)


def side_by_side(parts: Mapping[str, Any], values: Mapping[str, Any]) -> Array:
    """float32[N]: the values, flattened, in the order of their spaces; zeros for those that are not there."""
    from gymnasium import spaces

    flat: list[Any] = [
        spaces.flatten(space, values[name]) if name in values else np.zeros(spaces.flatdim(space))
        for name, space in parts.items()
    ]
    return np.concatenate(flat, dtype=np.float32)


def unsupported_observation(space: Any) -> str:
    """Why observations of this space cannot be used and what to do, or the empty string."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Space):
        return f"observation_space is {space!r}, not a gymnasium space; set it to a gymnasium.spaces.Box in __init__"
    for keys, leaf in walk(space):
        if isinstance(leaf, spaces.Dict | spaces.Tuple):
            return f"observation space{_at(keys)} {leaf} is empty; leave it out, or give it something to observe"
        if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            cure = "wrap the environment in a gymnasium.ObservationWrapper that turns it into one of them"
            others = [key for key in getattr(space, "spaces", {}) if key != keys[0]] if len(keys) == 1 else []
            if others and isinstance(space, spaces.Dict):
                listed = ", ".join(map(str, others))
                cure += (
                    ", or leave it out: --env-kwargs.wrappers '[{gymnasium.wrappers:FilterObservation: {filter_keys: "
                    f"[{listed}]}}}}]'"
                )
            return f"observation space{_at(keys)} {leaf} is not supported (supported: {SUPPORTED}); {cure}"
        if isinstance(leaf, spaces.Box) and leaf.dtype.kind not in "fiub":
            return f"observation space{_at(keys)} {leaf} has dtype {leaf.dtype}; give it a numeric one such as float32"
    return _ambiguous(space, "observation")


def unsupported_action(space: Any) -> str:
    """Why actions of this space cannot be used and what to do, or the empty string."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Space):
        return f"action_space is {space!r}, not a gymnasium space; set it to a Discrete or a Box in __init__"
    for keys, leaf in walk(space):
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            continue
        if isinstance(leaf, spaces.Dict | spaces.Tuple):
            return f"action space{_at(keys)} {leaf} is empty; leave it out, or give it something to decide"
        if not isinstance(leaf, spaces.Box):
            return (
                f"action space{_at(keys)} {leaf} is not supported (supported: {SUPPORTED}); wrap the environment so "
                "that its actions are one of them"
            )
        if not leaf.shape or not np.issubdtype(leaf.dtype, np.floating):
            return (
                f"action space{_at(keys)} {leaf} is not supported; a Box of actions needs a float dtype and a shape "
                "such as (1,); for whole numbers use MultiDiscrete"
            )
        if (leaf.low >= leaf.high).any():
            return (
                f"action space{_at(keys)} {leaf} has a bound low >= high; nothing can be chosen there, so leave that "
                "axis out"
            )
    return _ambiguous(space, "action")


def mask_problem(observation_space: Any, action_space: Any) -> str:
    """What is wrong with the key "action_mask" of supported Dict observations, or the empty string."""
    parts = obs_parts(observation_space)
    masks = [part for part in parts if part.spec.kind == "mask"]
    nested = [part for part in parts if part.keys[:1] == (MASK,) and part not in masks]
    if nested:
        return (
            f"the observation '{MASK}' is itself a Dict or Tuple ('{nested[0].path}' is in it); make it one array, "
            "concatenated in the order of the actions"
        )
    if not masks:
        return ""
    action = _action_spec(action_space)
    [size] = masks[0].spec.shape
    if not action.mask_size:
        return (
            f"the observations have the key '{MASK}', but actions are {action}, of which none can be masked; rename "
            "the key"
        )
    if size != action.mask_size:
        return (
            f"the observation '{MASK}' has {size} entries, but actions {action} need {action.mask_size}, one per "
            f"choice; make its space MultiBinary({action.mask_size})"
        )
    return ""


def action_converter(space: Any) -> Any:
    """A function from a policy's actions [B, ...] to what the environments want.

    Discrete: 0..n-1 plus `start`, [B] in the space's dtype. Box: clipped to the bounds, in the space's shape and dtype.
    Dict and Tuple: the same structure, with arrays [B, ...] for leaves (`action_row` takes out one environment's).
    """
    if hasattr(space, "spaces"):
        return _composite_converter(space)
    spec, dtype = _action_spec(space), space.dtype
    if spec.kind == "discrete":
        start = spec.start
        if start == 0:
            return lambda actions: np.asarray(actions, dtype)
        return lambda actions: np.asarray(np.asarray(actions, np.int64) + start, dtype)
    shape = tuple(space.shape)
    if spec.kind == "multi_binary":
        return lambda actions: np.array(actions, dtype).reshape((len(actions), *shape))
    if spec.kind == "multi_discrete":
        starts = space.start
        return lambda actions: np.array(actions, dtype).reshape((len(actions), *shape)) + starts
    low, high = space.low, space.high
    is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def convert(actions: Array) -> Array:
        actions = np.array(actions, dtype)  # a copy: environments may write into what they get
        if actions.shape[1:] != shape:
            actions = actions.reshape((len(actions), *shape))
        return np.minimum(np.maximum(actions, low), high) if is_bounded else actions

    return convert


def policy_actions(space: Any, taken: Any) -> Array:
    """The inverse of `action_converter`: actions of the environment, in its space's structure of arrays [N, ...], as a
    policy says them. Raises ValueError where whole numbers are to be chosen and `taken` has others."""
    columns = []
    for (keys, leaf), rows in zip(walk(space), by_path(space, taken).values(), strict=True):
        if not hasattr(leaf, "low") and (rows != np.floor(rows)).any():
            raise ValueError(f"actions{_at(keys)} are not whole numbers, as {leaf} has them")
        columns.append(rows.reshape(len(rows), -1) - np.ravel(getattr(leaf, "start", 0)))
    actions = np.concatenate(columns, axis=1)
    like = empty_actions(_action_spec(space), 0)
    return (actions if like.ndim > 1 or actions.shape[1] > 1 else actions[:, 0]).astype(like.dtype)


def action_row(actions: Any, index: int) -> Any:
    """One environment's action out of what `action_converter` made."""
    if isinstance(actions, dict):
        return {key: action_row(part, index) for key, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(action_row(part, index) for part in actions)
    return actions[index]


def _composite_converter(space: Any) -> Any:
    is_dict = isinstance(space.spaces, dict)
    keys = list(space.spaces) if is_dict else list(range(len(space.spaces)))
    converters = [(action_converter(space[key]), _action_spec(space[key])) for key in keys]

    def convert(actions: Array) -> Any:
        parts, start = [], 0
        for converter, spec in converters:
            end = start + spec.flat_size
            columns = actions[:, start] if spec.kind == "discrete" else actions[:, start:end]
            parts.append(converter(columns))
            start = end
        return dict(zip(keys, parts, strict=True)) if is_dict else tuple(parts)

    return convert


def walk(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(keys, space) of every leaf; an empty Dict or Tuple is one."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple) or not len(space.spaces):
        yield keys, space
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from walk(part, (*keys, key))
    else:
        for i, part in enumerate(space.spaces):
            yield from walk(part, (*keys, i))


def _path(keys: tuple[Any, ...]) -> str:
    return "/".join(map(str, keys))


def _at(keys: tuple[Any, ...]) -> str:
    return f" at '{_path(keys)}'" if keys else ""


def _ambiguous(space: Any, what: str) -> str:
    paths = [_path(keys) for keys, _ in walk(space)]
    twice = [path for path in paths if paths.count(path) > 1]
    return f"two parts of the {what} space have the path '{twice[0]}'; rename one of the keys" if twice else ""


def _obs_part(keys: tuple[Any, ...], space: Any) -> ObsPart:
    if keys == (MASK,):
        size = 1 if hasattr(space, "n") and not space.shape else int(np.prod(space.shape, dtype=np.int64))
        return ObsPart(MASK, keys, space, ObsSpec("mask", (size,), "bool"))
    path = _path(keys)
    if hasattr(space, "nvec"):
        nvec = tuple(map(int, space.nvec.ravel()))
        spec = ObsSpec("multi_discrete", (len(nvec),), "int64", nvec=nvec)
        return ObsPart(path, keys, space, spec, np.asarray(space.start, np.int64).ravel())
    if hasattr(space, "n") and not space.shape:
        n = int(space.n)
        return ObsPart(path, keys, space, ObsSpec("discrete", (), "int64", nvec=(n,)), int(space.start))
    if hasattr(space, "n"):
        size = int(np.prod(space.shape, dtype=np.int64))
        return ObsPart(path, keys, space, ObsSpec("multi_binary", (size,), "int8"))
    return ObsPart(path, keys, space, _box_obs_spec(space))


def _box_obs_spec(space: Any) -> ObsSpec:
    """A bare number becomes a vector of one."""
    if (known := space.__dict__.get(OBS_SPEC)) is not None:
        return known
    image = image_spec(space.low, space.high, space.dtype)
    return image or ObsSpec("vector", tuple(map(int, space.shape)) or (1,), np.dtype(space.dtype).name)


def _action_spec(space: Any) -> ActionSpec:
    if hasattr(space, "spaces"):
        parts = tuple((_path(keys), _action_spec(leaf)) for keys, leaf in walk(space))
        return ActionSpec("composite", dtype="float32", parts=parts)
    shape, dtype = tuple(map(int, space.shape)), np.dtype(space.dtype).name
    if hasattr(space, "nvec"):
        return ActionSpec("multi_discrete", shape=shape, dtype=dtype, nvec=tuple(map(int, space.nvec.ravel())))
    if hasattr(space, "n"):
        if shape:
            return ActionSpec("multi_binary", shape=shape, dtype=dtype)
        return ActionSpec("discrete", n=int(space.n), start=int(space.start), dtype=dtype)
    return ActionSpec(
        "box",
        shape=shape,
        dtype=dtype,
        low=tuple(map(float, space.low.ravel())),
        high=tuple(map(float, space.high.ravel())),
    )


def batched(space: Any, num_rows: int) -> Any:
    """The space of so many values side by side."""
    from gymnasium.vector.utils import batch_space

    return batch_space(space, num_rows)
