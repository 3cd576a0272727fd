"""`ObsReader`: whatever an environment observes, as one array or one flat dict of arrays (`interfaces.Obs`).

reader = ObsReader(env.observation_space, env.action_space, adds_mask=True)
row = reader.read(obs, info["action_mask"])             # {"obs": float32[4], "action_mask": bool[3]}
rows = reader.read_batch(vector_obs, num_envs)          # {"camera": uint8[B, 84, 84, 3], "robot/joints": float32[B, 7]}

Both raise `ObsMismatch` with the path, what the space says, what came and the fix.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rlplat.acting import brief, obs_name
from rlplat.rl.envs.gym_spaces import ObsPart, obs_parts, space_spec
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import MASK, obs_leaves


class ObsMismatch(ValueError):
    """An observation that is not what its space says."""


class ObsReader:
    def __init__(self, observation_space: Any, action_space: Any, *, adds_mask: bool = False) -> None:
        """Supported spaces only. `adds_mask`: a mask is given beside the observations."""
        self.spec = space_spec(observation_space, action_space, adds_mask=adds_mask)
        self._space = observation_space
        self._adds_mask = adds_mask
        self._mask_size = self.spec.action.mask_size
        self._parts = obs_parts(observation_space)
        self._is_dict = isinstance(self.spec.obs, dict)
        self._alone = "obs" if adds_mask else ""
        """Path of an observation that is no tree."""

    @property
    def is_plain(self) -> bool:
        """Whether observations are arrays already, with nothing to convert."""
        [*others, part] = self._parts
        is_box = part.spec.kind in ("vector", "image") and part.spec.shape == part.space.shape
        is_box = is_box and part.spec.dtype == part.space.dtype
        return not self._is_dict and not others and is_box

    def read(self, obs: Any, mask: Any = None) -> Any:
        """One environment's observation (and the mask beside it) without batch axes; Discrete leaves are ints."""
        leaves: dict[str, Any] = {}
        try:
            for part in self._parts:
                leaf = obs
                for key in part.keys:
                    leaf = leaf[key]
                is_mask = part.spec.kind == "mask"
                leaves[part.path or self._alone] = self._mask_row(leaf) if is_mask else read_leaf(leaf, part)
        except (KeyError, IndexError, TypeError, ValueError):
            raise ObsMismatch(self._explain(obs)) from None
        if self._adds_mask:
            leaves[MASK] = self._mask_row(mask)
        return leaves if self._is_dict else leaves[""]

    def read_batch(self, obs: Any, num_envs: int) -> Obs:
        """A vector environment's observations, in its structure of arrays [B, ...]."""
        leaves = {part.path: self._leaf_batch(obs, part, num_envs) for part in self._parts}
        return leaves if self._is_dict else leaves[""]

    def empty(self, num_envs: int) -> Obs:
        """Zeros [B, ...], to be filled with `put_row`."""
        leaves = {
            path: np.zeros((num_envs, *leaf.shape), leaf.dtype) for path, leaf in obs_leaves(self.spec.obs).items()
        }
        return leaves if self._is_dict else leaves[""]

    def _mask_row(self, mask: Any) -> Array:
        """bool[L] of an array, or of a sequence of them, one per choice."""
        try:
            row = mask.ravel() if mask.__class__ is np.ndarray else np.concatenate([np.ravel(m) for m in mask])
        except (TypeError, ValueError):
            row = None
        if row is None or row.dtype.kind not in "biuf":
            raise ObsMismatch(
                f"the action mask is {brief(mask)} ({type(mask).__name__}), but expected is an array of "
                f"{self._mask_size} booleans, True for legal actions"
            )
        if row.shape != (self._mask_size,):
            raise ObsMismatch(
                f"the action mask has {row.size} entries ({brief(row)}), but actions {self.spec.action} have "
                f"{self._mask_size} choices; give it one entry for each, True for legal actions"
            )
        return row.astype(np.bool_)

    def _leaf_batch(self, obs: Any, part: ObsPart, num_envs: int) -> Array:
        name = obs_name(part.keys)
        for i, key in enumerate(part.keys):
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError):
                raise ObsMismatch(
                    f"{obs_name(part.keys[:i])} is a {type(obs).__name__} without {key!r}, which its space has; "
                    "correct the vector environment or its spaces"
                ) from None
        try:
            return read_leaf(obs, part, (num_envs,))
        except ObsMismatch:
            text = f"{name} is {brief(np.asarray(obs))}, which is not in its space {part.space}; change one of them"
        except (TypeError, ValueError):
            leaf, shape = np.asarray(obs), (num_envs, *part.space.shape)
            text = (
                f"{name}: batch of shape {leaf.shape} {leaf.dtype}, but its spaces say {shape} {part.space.dtype}; "
                "correct the vector environment or its spaces"
            )
        raise ObsMismatch(text)

    def _explain(self, obs: Any) -> str:
        problems = [text for kind, text in observation_problems(obs, self._space) if kind not in ("bounds", "cast")]
        return problems[0] if problems else f"observation {brief(obs)} is not in its space {self._space}"


def read_leaf(value: Any, part: ObsPart, rows: tuple[int, ...] = ()) -> Any:
    """One array of an observation as policies see it, [*rows, ...]; an int where it is a single choice. TypeError or
    ValueError where it is none of its space; ObsMismatch (a ValueError) where only a choice is none."""
    spec, space = part.spec, part.space
    is_box = spec.kind in ("vector", "image")
    if not rows and value.__class__ is not np.ndarray:
        if spec.kind == "discrete" and isinstance(value, int | np.integer):  # by far the commonest: no array is made
            if 0 <= (index := int(value) - part.start) < spec.nvec[0]:
                return index
            raise ObsMismatch
        value = as_frames(value, space) if is_box else value
        if is_box and space.shape == () and isinstance(value, int | float):
            value = np.asarray(value, space.dtype)
        elif is_box and not isinstance(value, np.ndarray | np.generic):
            raise TypeError
    array = value if value.__class__ is np.ndarray else np.asarray(value)
    if array.shape != (*rows, *space.shape):
        raise ValueError
    if is_box:
        if array.dtype != space.dtype and not casts(array, space.dtype):
            raise ValueError
    elif array.dtype.kind not in "biu" and spec.kind != "mask":
        raise ValueError
    if array.shape[len(rows) :] != spec.shape:
        array = array.reshape((*rows, *spec.shape))
    if spec.nvec:
        array = array.astype(np.int64) - part.start
        if ((array < 0) | (array >= (spec.nvec if spec.shape else spec.nvec[0]))).any():
            raise ObsMismatch
        return array if rows or spec.shape else int(array)
    return array if array.dtype == spec.dtype else array.astype(spec.dtype)


def as_frames(value: Any, space: Any) -> Any:
    """A stack that came as a list of arrays (or a lazy one, which only becomes an array) as the array that `space`
    says; anything else as it is."""
    if value.__class__ is np.ndarray or len(space.shape) < 3:
        return value
    is_list = isinstance(value, list | tuple | deque) and len(value) == space.shape[0]
    if is_list and all(isinstance(frame, np.ndarray) and frame.shape == space.shape[1:] for frame in value):
        return np.stack(list(value))
    is_lazy = hasattr(value, "__array__") and not isinstance(value, np.generic)
    return np.asarray(value) if is_lazy else value


def put_row(rows: Obs, index: int, row: Any) -> None:
    """Writes one environment's observation, as `ObsReader.read` gives it, into rows [B, ...]."""
    if isinstance(rows, dict):
        for path, leaf in row.items():
            rows[path][index] = leaf
    else:
        rows[index] = row


def observation_problems(obs: Any, space: Any, path: tuple[Any, ...] = ()) -> list[tuple[str, str]]:
    """(kind, text) for each way in which `obs` is not in `space`; the text says which part of a nested one. Of kind
    `bounds` and `cast` (a wider float) are those with which a run goes on."""
    name = obs_name(path)
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        if not isinstance(obs, dict):
            return [("type", f"{name} is a {type(obs).__name__}, but its space is a Dict; return a dict")]
        missing, extra = sorted(set(parts) - set(obs), key=str), sorted(set(obs) - set(parts), key=str)
        found = [("type", f"{name} lacks the key {key!r} that its space has; add it") for key in missing]
        found += [
            ("type", f"{name} has the key {key!r}, which its space lacks; add it there, or leave it out")
            for key in extra
        ]
        return found + [
            one for key in parts if key in obs for one in observation_problems(obs[key], parts[key], (*path, key))
        ]
    if parts is not None:
        if not isinstance(obs, tuple | list) or len(obs) != len(parts):
            size = f" of {len(obs)}" if isinstance(obs, tuple | list) else ""
            return [
                (
                    "type",
                    f"{name} is a {type(obs).__name__}{size}, but its space is a Tuple of {len(parts)}; return a tuple "
                    "with an entry for each",
                )
            ]
        return [one for i, part in enumerate(parts) for one in observation_problems(obs[i], part, (*path, i))]
    if hasattr(space, "low"):
        return _box_problems(obs, space, name)
    if hasattr(space, "contains") and not space.contains(obs):
        return [
            (
                "type",
                f"{name} is {brief(obs)} ({type(obs).__name__}), which is not in its space {space}; {_fix(space)}",
            )
        ]
    return []


def _box_problems(obs: Any, space: Any, name: str) -> list[tuple[str, str]]:
    shape, dtype = space.shape, space.dtype
    obs = as_frames(obs, space)
    if not isinstance(obs, np.ndarray | np.generic) and not (shape == () and isinstance(obs, int | float)):
        expected = f"but expected is an array of shape {shape} {dtype}; return np.asarray(obs, np.{dtype})"
        return [("type", f"{name} is {brief(obs)} ({type(obs).__name__}), {expected}")]
    values = np.asarray(obs)
    if values.shape != shape:
        return [("shape", f"{name} has shape {values.shape}, but its space says {shape}; change one of them")]
    if isinstance(obs, np.ndarray | np.generic) and not casts(obs, dtype):
        fix = f"return obs.astype(np.{dtype}), or change the space's dtype"
        if values.dtype.kind == "f" and np.any(values % 1):
            fix = f"it has fractions, so give the space dtype=np.{values.dtype} and the bounds of these values"
        return [("dtype", f"{name} has dtype {values.dtype}, but its space says {dtype}; {fix}")]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        is_finite = np.isfinite(values.astype(np.float32) if values.dtype.kind == "f" else values)
    if values.dtype.kind == "f" and not is_finite.all():
        index = tuple(map(int, np.argwhere(~is_finite)[0]))
        fix = "find where it divides by zero or overflows (networks compute in float32)"
        return [("finite", f"{name}{_index(index)} is {values[index]}; {fix}")]
    found: list[tuple[str, str]] = []
    if isinstance(obs, np.ndarray | np.generic) and not np.can_cast(values.dtype, dtype, "safe"):
        text = f"{name} has dtype {values.dtype}, and its space says {dtype}: every step casts it"
        found.append(("cast", f"{text}; return obs.astype(np.{dtype})"))
    outside = (values < space.low) | (values > space.high)
    if outside.any():
        index = tuple(map(int, np.argwhere(outside)[0]))
        bounds = f"[{space.low[index]:g}, {space.high[index]:g}]"
        fix = "widen the bounds (they may be infinite) or clip the observation"
        found.append(("bounds", f"{name}{_index(index)} is {values[index]:g}, outside its space's {bounds}; {fix}"))
    return found


def _fix(space: Any) -> str:
    if hasattr(space, "nvec"):
        return f"return integers of shape {space.shape}, each at least its start and below start + nvec"
    if hasattr(space, "n") and not space.shape:
        return f"return an int from {space.start} to {space.start + space.n - 1}, or change the space"
    if hasattr(space, "n"):
        return f"return np.int8 zeros and ones of shape {space.shape}"
    return "change one of them"


def _index(index: tuple[int, ...]) -> str:
    return str(list(index)) if index else ""


def casts(value: Any, dtype: Any) -> bool:
    """Floats of any width are: home-made environments often compute in float64."""
    return np.can_cast(value.dtype, dtype, "safe") or value.dtype.kind == np.dtype(dtype).kind == "f"
