"""What policies, manifests and messages need to know of an environment's spaces, without gymnasium.

spec = vector_env.spec                                           # envs/gym_spaces.py makes it
manifest["spaces"] = spec.describe()
SpaceSpec.from_description(manifest["spaces"]).require_same(spec, "the checkpoint", "Pong")

A Dict or Tuple of observations, however deep, is one flat dict by path: "camera", "robot/joints", "1/x".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from rlplat.errors import UsageError

MASK = "action_mask"
"""The key of an action mask, in the environment's Dict of observations, in its info, and in ours."""


@dataclass(frozen=True)
class ObsSpec:
    """One array of observations, without its batch axes."""

    kind: Literal["vector", "image", "discrete", "multi_discrete", "multi_binary", "mask"]
    """`image`: a Box that envs/images.py says is one; any other Box is a vector. `mask`: which actions are legal."""
    shape: tuple[int, ...]
    """() for `discrete`; (K,) for `multi_discrete`, `multi_binary`, `mask`."""
    dtype: str
    """Discrete kinds: int64, counted from 0; `multi_binary`: int8; `mask`: bool; images: uint8 or float32."""
    layout: Literal["", "CHW", "HWC", "TCHW", "THWC"] = ""
    """Of images, T: a stack of images, which networks see as T * C channels; empty for everything else."""
    nvec: tuple[int, ...] = ()
    """Discrete kinds: the number of choices of each entry."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Images: bounds of all pixels, or of each channel that networks see, which become 0 and 1. Empty: 0 and 255 of
    uint8; of float32 none, and the values are taken as they are."""
    renewed: int = field(default=0, compare=False)
    """Images: how many entries of the first axis are new in every observation, as random steps showed; 0: not known."""

    @property
    def flat_size(self) -> int:
        """Numbers in one observation."""
        return math.prod(self.shape)

    @property
    def num_features(self) -> int:
        """Numbers that a network sees: choices are one-hot, a mask is no feature."""
        if self.kind == "mask":
            return 0
        return sum(self.nvec) if self.nvec else self.flat_size

    @property
    def channels_height_width(self) -> tuple[int, int, int]:
        """Of an image as networks see it."""
        sizes = dict(zip(self.layout, self.shape, strict=True))
        return sizes.get("T", 1) * sizes["C"], sizes["H"], sizes["W"]

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(low, high) of an image, one number each or one per channel; empty where values are taken as they are."""
        return (self.low, self.high) if self.low or self.dtype != "uint8" else ((0.0,), (255.0,))

    @property
    def pixel_scale(self) -> tuple[Any, Any]:
        """(low, high - low) by which (pixels - low) / (high - low) is between 0 and 1: numbers, or float32 arrays that
        broadcast over [*shape]. Without bounds (0, 1)."""
        low, high = self.bounds
        if len(low) < 2:
            return (low[0], high[0] - low[0]) if low else (0.0, 1.0)
        places = [size if axis in "TC" else 1 for axis, size in zip(self.layout, self.shape, strict=True)]
        lows = np.array(low, np.float32).reshape(places)
        return lows, np.array(high, np.float32).reshape(places) - lows

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"Discrete({self.nvec[0]})"
        if self.kind == "multi_discrete":
            return f"MultiDiscrete([{_listed(self.nvec)}])"
        if self.kind in ("multi_binary", "mask"):
            return f"{'mask' if self.kind == 'mask' else 'MultiBinary'}({self.shape[0]})"
        layout = f" {self.layout}" if self.layout else ""
        bounds = f" in [{_span(self.low)}, {_span(self.high)}]" if self.low else ""
        return f"Box({_listed(self.shape)}) {self.dtype}{layout}{bounds}"


@dataclass(frozen=True)
class ActionSpec:
    """Actions as one array: int64[B] (discrete), int64[B, K] (multi_*), float32[B, A] (box), and for a Dict or Tuple of
    them (composite) float32[B, columns], each part in its own columns."""

    kind: Literal["discrete", "box", "multi_discrete", "multi_binary", "composite"]
    n: int = 0
    """Discrete: number of actions. Policies say 0..n-1, the environment adapter adds `start`."""
    start: int = 0
    shape: tuple[int, ...] = ()
    """Of the environment's space; arrays of actions have it flattened. Empty for discrete and composite."""
    dtype: str = "int64"
    low: tuple[float, ...] = ()
    """Box: flattened bounds; may be infinite."""
    high: tuple[float, ...] = ()
    nvec: tuple[int, ...] = ()
    """MultiDiscrete: flattened numbers of choices."""
    parts: tuple[tuple[str, ActionSpec], ...] = ()
    """Composite: (path, spec) of every part, none of them composite, in the order of their columns."""

    @property
    def flat_size(self) -> int:
        """Columns in the array of actions; 1 for discrete, whose array has no such axis."""
        if self.kind == "composite":
            return sum(part.flat_size for _, part in self.parts)
        return math.prod(self.shape)

    @property
    def mask_size(self) -> int:
        """Entries of an action mask: one per choice of every Discrete and MultiDiscrete part, in order; 0: nothing can
        be masked."""
        if self.kind == "composite":
            return sum(part.mask_size for _, part in self.parts)
        return self.n if self.kind == "discrete" else sum(self.nvec)

    @property
    def mask_groups(self) -> tuple[int, ...]:
        """Sizes of the runs of mask entries in each of which something must be legal: one per choice to be made."""
        if self.kind == "composite":
            return tuple(size for _, part in self.parts for size in part.mask_groups)
        return (self.n,) if self.kind == "discrete" else self.nvec

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"
        if self.kind == "multi_discrete":
            return f"MultiDiscrete([{_listed(self.nvec)}])"
        if self.kind == "multi_binary":
            return f"MultiBinary({self.flat_size})"
        if self.kind == "composite":
            return f"Dict({', '.join(f'{path}: {part}' for path, part in self.parts)})"
        return f"Box({_listed(self.shape)}) {self.dtype} in [{_span(self.low)}, {_span(self.high)}]"


@dataclass(frozen=True)
class SpaceSpec:
    obs: ObsSpec | dict[str, ObsSpec]
    """One array, or several by path; a mask is always called "action_mask" and the last of them."""
    action: ActionSpec
    device: str = field(default="", compare=False)
    """Where the tensors of a tensor environment are; empty for one that gives numpy arrays."""

    def __str__(self) -> str:
        """`Box(4) float32 -> Discrete(2)`."""
        return f"{shown_obs(self.obs)} -> {self.action}"

    def describe(self) -> dict[str, Any]:
        """JSON values only; infinite bounds become the strings "inf" and "-inf"."""
        return {"obs": _describe_obs(self.obs), "action": _described(self.action)}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> SpaceSpec:
        return cls(_obs_of(description["obs"]), _made_of(ActionSpec, description["action"]))

    def require_same(
        self,
        other: SpaceSpec,
        name: str,
        other_name: str,
        fix: str = "use the environment and env_kwargs that the policy was made for",
    ) -> None:
        """Raises UsageError with both sides of the first difference, observations before actions."""
        is_dict, other_is_dict = isinstance(self.obs, dict), isinstance(other.obs, dict)
        ours, theirs = obs_leaves(self.obs), obs_leaves(other.obs)
        if is_dict != other_is_dict:
            raise UsageError(
                f"{name} has observations {_shown(self.obs)}, but {other_name} has {_shown(other.obs)}; {fix}"
            )
        for path in [*ours, *theirs]:
            if path not in theirs:
                raise UsageError(f"{name} has an observation '{path}', which {other_name} lacks; {fix}")
            if path not in ours:
                raise UsageError(f"{name} lacks the observation '{path}' that {other_name} has; {fix}")
        for path, leaf in ours.items():
            if leaf != theirs[path]:
                which = f"the observation '{path}':" if is_dict else "observations"
                raise UsageError(f"{name} has {which} {leaf}, but {other_name} has {theirs[path]}; {fix}")
        if list(ours) != list(theirs):
            raise UsageError(
                f"{name} has the observations {_listed(ours)}, but {other_name} has them in the order "
                f"{_listed(theirs)}; {fix}"
            )
        if self.action != other.action:
            raise UsageError(f"{name} has actions {self.action}, but {other_name} has {other.action}; {fix}")


def shown_obs(obs: ObsSpec | dict[str, ObsSpec]) -> str:
    """`Box(4) float32`, `Dict(camera: ..., robot/joints: ...)`."""
    return (
        str(obs) if isinstance(obs, ObsSpec) else f"Dict({', '.join(f'{path}: {leaf}' for path, leaf in obs.items())})"
    )


def obs_leaves(obs: ObsSpec | dict[str, ObsSpec]) -> dict[str, ObsSpec]:
    """Every array by path; a plain one by the path ""."""
    return obs if isinstance(obs, dict) else {"": obs}


def action_leaves(action: ActionSpec) -> list[ActionSpec]:
    """The parts of a composite action in the order of their columns; any other is its own."""
    return [part for _, part in action.parts] if action.kind == "composite" else [action]


def _describe_obs(obs: ObsSpec | dict[str, ObsSpec]) -> dict[str, Any]:
    if isinstance(obs, dict):  # a list: the order matters to networks, and JSON writers may sort keys
        return {"kind": "dict", "leaves": [[path, _described(leaf)] for path, leaf in obs.items()]}
    return _described(obs)


def _obs_of(description: dict[str, Any]) -> ObsSpec | dict[str, ObsSpec]:
    if description["kind"] == "dict":
        return {path: _made_of(ObsSpec, leaf) for path, leaf in description["leaves"]}
    made: ObsSpec = _made_of(ObsSpec, description)
    return made


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_described(each) for each in value]
    if isinstance(value, ObsSpec | ActionSpec):
        return {each.name: _described(getattr(value, each.name)) for each in fields(value) if each.compare}
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _made_of(kind: Any, description: dict[str, Any]) -> Any:
    """description: may lack fields that have a default."""
    given = {each.name: description[each.name] for each in fields(kind) if each.name in description}
    for name in given.keys() & {"shape", "nvec"}:
        given[name] = tuple(given[name])
    for name in given.keys() & {"low", "high"}:
        given[name] = tuple(map(float, given[name]))
    if "parts" in given:
        given["parts"] = tuple((path, _made_of(ActionSpec, part)) for path, part in given["parts"])
    return kind(**given)


def _shown(obs: ObsSpec | dict[str, ObsSpec]) -> str:
    return str(obs) if isinstance(obs, ObsSpec) else f"Dict({', '.join(obs)})"


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _span(bounds: tuple[float, ...]) -> str:
    """The one bound of all axes, or a list of them."""
    return f"{bounds[0]:g}" if len(set(bounds)) == 1 else "(" + ", ".join(f"{bound:g}" for bound in bounds) + ")"


def empty_actions(action: ActionSpec, num_rows: int) -> np.ndarray:
    """Zeros, shaped as `PolicyOutput.actions`."""
    if action.kind == "discrete":
        return np.zeros(num_rows, np.int64)
    is_whole = action.kind in ("multi_discrete", "multi_binary")
    return np.zeros((num_rows, action.flat_size), np.int64 if is_whole else np.float32)
