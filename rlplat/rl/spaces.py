"""What policies, manifests and messages need to know of an environment's spaces, without gymnasium.

spec = space_spec(env.observation_space, env.action_space)       # raises UsageError: names what is supported
manifest["spaces"] = spec.describe()
SpaceSpec.from_description(manifest["spaces"]).require_same(spec, "the checkpoint", "Pong")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Array

MAX_IMAGE_CHANNELS = 16
"""A uint8 array of rank 3 is an image whose channel axis is the one this short; frame stacks go up to about 12."""

SUPPORTED = "observations: Box; actions: Discrete, Box"


@dataclass(frozen=True)
class ObsSpec:
    """A Box of observations."""

    kind: Literal["vector", "image"]
    """`image`: uint8 of rank 3; everything else is flattened into a vector."""
    shape: tuple[int, ...]
    dtype: str
    layout: Literal["", "CHW", "HWC"]
    """Of images; empty for vectors."""

    @property
    def flat_size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        layout = f" {self.layout}" if self.layout else ""
        return f"Box({', '.join(map(str, self.shape))}) {self.dtype}{layout}"


@dataclass(frozen=True)
class ActionSpec:
    """Discrete(n) counted from `start`, or a Box."""

    kind: Literal["discrete", "box"]
    n: int = 0
    """Discrete: number of actions. Policies say 0..n-1, the environment adapter adds `start`."""
    start: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    low: tuple[float, ...] = ()
    """Box: flattened bounds; may be infinite."""
    high: tuple[float, ...] = ()

    @property
    def flat_size(self) -> int:
        """Discrete: one number; Box: the number of dimensions."""
        return 1 if self.kind == "discrete" else int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"
        return (
            f"Box({', '.join(map(str, self.shape))}) {self.dtype} in [{_span(self.low)}, {_span(self.high)}]"
        )


@dataclass(frozen=True)
class SpaceSpec:
    obs: ObsSpec
    action: ActionSpec

    def __str__(self) -> str:
        """`Box(4) float32 -> Discrete(2)`."""
        return f"{self.obs} -> {self.action}"

    def describe(self) -> dict[str, Any]:
        """JSON values only; infinite bounds become the strings "inf" and "-inf"."""
        obs, action = self.obs, self.action
        return {
            "obs": {"kind": obs.kind, "shape": list(obs.shape), "dtype": obs.dtype, "layout": obs.layout},
            "action": {
                "kind": action.kind,
                "n": action.n,
                "start": action.start,
                "shape": list(action.shape),
                "dtype": action.dtype,
                "low": [_to_json(bound) for bound in action.low],
                "high": [_to_json(bound) for bound in action.high],
            },
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> SpaceSpec:
        obs, action = dict(description["obs"]), dict(description["action"])
        obs["shape"], action["shape"] = tuple(obs["shape"]), tuple(action["shape"])
        action["low"] = tuple(float(bound) for bound in action["low"])
        action["high"] = tuple(float(bound) for bound in action["high"])
        return cls(ObsSpec(**obs), ActionSpec(**action))

    def require_same(self, other: SpaceSpec, name: str, other_name: str) -> None:
        """Raises UsageError with both sides of the first difference, observations before actions."""
        if self.obs != other.obs:
            raise UsageError(
                f"{name} has observations {self.obs}, but {other_name} has {other.obs}; use the environment and "
                "env_kwargs that the policy was made for"
            )
        if self.action != other.action:
            raise UsageError(
                f"{name} has actions {self.action}, but {other_name} has {other.action}; use the environment and "
                "env_kwargs that the policy was made for"
            )


def space_spec(observation_space: Any, action_space: Any) -> SpaceSpec:
    """The spec of one environment's gymnasium spaces (not the batched ones)."""
    problem = unsupported_observation(observation_space) or unsupported_action(action_space)
    if problem:
        raise UsageError(problem)
    return SpaceSpec(_obs_spec(observation_space), _action_spec(action_space))


def unsupported_observation(space: Any) -> str:
    """Why observations of this space cannot be used and what to do, or the empty string."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Space):
        return f"observation_space is {space!r}, not a gymnasium space; set it to a gymnasium.spaces.Box in __init__"
    if not isinstance(space, spaces.Box):
        return (
            f"observation space {space} is not supported ({SUPPORTED}); wrap the environment in "
            "gymnasium.wrappers.FlattenObservation, which turns discrete and nested observations into one vector"
        )
    if not space.shape:
        return f"observation space {space} is a bare number; give it shape (1,)"
    return ""


def unsupported_action(space: Any) -> str:
    """Why actions of this space cannot be used and what to do, or the empty string."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Space):
        return f"action_space is {space!r}, not a gymnasium space; set it to a Discrete or a Box in __init__"
    if isinstance(space, spaces.Discrete):
        return ""
    if not isinstance(space, spaces.Box):
        return (
            f"action space {space} is not supported ({SUPPORTED}); wrap the environment so that its actions are one of "
            "them"
        )
    if not space.shape or not np.issubdtype(space.dtype, np.floating):
        return f"action space {space} is not supported; a Box of actions needs a float dtype and a shape such as (1,)"
    if (space.low >= space.high).any():
        return f"action space {space} has a bound low >= high; nothing can be chosen there, so leave that axis out"
    return ""


def action_converter(space: Any) -> Any:
    """A function from a policy's actions [B, ...] to what the environments want.

    Discrete: 0..n-1 plus `start`, int64[B]. Box: clipped to the bounds, in the space's shape and dtype.
    """
    spec = _action_spec(space)
    if spec.kind == "discrete":
        start = spec.start
        if start == 0:
            return lambda actions: np.asarray(actions, np.int64)
        return lambda actions: np.asarray(actions, np.int64) + start
    low, high, dtype, shape = space.low, space.high, space.dtype, tuple(space.shape)
    is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def convert(actions: Array) -> Array:
        actions = np.array(actions, dtype)  # a copy: environments may write into what they get
        if actions.shape[1:] != shape:
            actions = actions.reshape((len(actions), *shape))
        return np.minimum(np.maximum(actions, low), high) if is_bounded else actions

    return convert


def _obs_spec(space: Any) -> ObsSpec:
    shape, dtype = tuple(map(int, space.shape)), np.dtype(space.dtype)
    if len(shape) == 3 and dtype == np.uint8:
        if shape[2] <= MAX_IMAGE_CHANNELS and shape[2] < shape[0]:
            return ObsSpec("image", shape, dtype.name, "HWC")
        if shape[0] <= MAX_IMAGE_CHANNELS:
            return ObsSpec("image", shape, dtype.name, "CHW")
    return ObsSpec("vector", shape, dtype.name, "")


def _action_spec(space: Any) -> ActionSpec:
    if hasattr(space, "n"):
        return ActionSpec(
            "discrete", n=int(space.n), start=int(space.start), dtype=np.dtype(space.dtype).name
        )
    return ActionSpec(
        "box",
        shape=tuple(map(int, space.shape)),
        dtype=np.dtype(space.dtype).name,
        low=tuple(map(float, space.low.ravel())),
        high=tuple(map(float, space.high.ravel())),
    )


def _to_json(bound: float) -> float | str:
    return bound if np.isfinite(bound) else str(bound)


def _span(bounds: tuple[float, ...]) -> str:
    """The one bound of all axes, or a list of them."""
    return (
        f"{bounds[0]:g}" if len(set(bounds)) == 1 else "(" + ", ".join(f"{bound:g}" for bound in bounds) + ")"
    )
