"""What a user's loop has in hand, read for whatever acts: an agent of a run, or a file that was exported.

    inputs = ActingInputs(leaves, mask_groups, mask_is_observed, "agent")
    arrays, mask, is_batch = inputs.read(obs)           # of one observation N is 1

As environments observe, not as policies do: nested, counted from `start`, in the space's shapes and dtypes. One
observation and many are told apart by their shapes. Whatever does not fit is a BadObservation that says what does.
Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlplat.errors import BadObservation

MASK = "action_mask"
Array = np.ndarray
Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Leaf:
    """One array of the environment's observation or action, without its rows."""

    path: str
    """Of the keys; empty where there is one array."""
    keys: Keys
    """From the outside in: observation[keys[0]][keys[1]]..."""
    kind: str
    """vector, image, discrete, multi_discrete or multi_binary; of actions also box."""
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    """Discrete kinds, flattened: the number of choices of each entry."""
    start: tuple[int, ...] = ()
    """Discrete kinds, flattened: what the environment counts from."""

    def name(self, prefix: str) -> str:
        return f"{prefix}/{self.path}" if self.path else prefix


class ActingInputs:
    def __init__(self, leaves: Sequence[Leaf], mask_groups: tuple[int, ...], mask_is_observed: bool, who: str) -> None:
        """leaves: those of an observation, without its mask; mask_groups: runs of mask entries in each of which
        something must be legal, empty without a mask; who: what messages call it that acts."""
        self._leaves, self._who = leaves, who
        self._dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        self._mask_groups, self._mask_is_observed = mask_groups, mask_is_observed

    def read(self, obs: Any, mask: Any = None) -> tuple[list[Array], Array | None, bool]:
        """(the leaves' arrays [N, *shape], bool[N, L] where there is a mask, whether `obs` was a batch)."""
        arrays: list[Array] = []
        is_batch, num_rows, shape = False, 1, ()
        for leaf, dtype in zip(self._leaves, self._dtypes, strict=True):
            array = self._array(leaf, dtype, obs)
            has_rows = array.ndim > len(leaf.shape)
            rows = len(array) if has_rows else 1
            if not arrays:
                is_batch, num_rows, shape = has_rows, rows, array.shape
            elif (has_rows, rows) != (is_batch, num_rows):
                first = obs_name(self._leaves[0].keys)
                raise BadObservation(
                    f"{obs_name(leaf.keys)} has shape {array.shape}, but {first} has shape {shape}; all parts are of "
                    "one observation, or of equally many"
                )
            arrays.append(array.reshape(num_rows, *leaf.shape))
        if mask is None and self._mask_is_observed and isinstance(obs, dict):
            mask = obs.get(MASK)
        has_mask = bool(self._mask_groups) or mask is not None
        return arrays, self._mask(mask, num_rows, is_batch) if has_mask else None, is_batch

    def state(self, state: Any, size: int, num_rows: int, is_batch: bool) -> Array:
        """float32[N, size] of what the user gives as the state of a core."""
        array = np.asarray(state, np.float32)
        expected = (num_rows, size) if is_batch else (size,)
        if array.shape != expected:
            raise BadObservation(
                f"state has shape {array.shape}; expected {expected}: begin with {self._who}.initial_state("
                f"{num_rows if is_batch else ''})"
            )
        return array.reshape(num_rows, size)

    def require_remembered(self, num_rows: int, remembered: int) -> None:
        """remembered: the rows of which there is a state; 0: of none."""
        if remembered not in (0, num_rows):
            raise BadObservation(
                f"{num_rows} observations, but this recurrent {self._who} remembers {remembered}: call "
                f"{self._who}.reset() where new episodes begin, or pass state="
            )

    def ended(self, ended: Any, remembered: int) -> Array:
        """bool[N]: where the episodes have ended of which there is a state."""
        array = np.atleast_1d(np.asarray(ended, np.bool_))
        if remembered and array.shape != (remembered,):
            raise BadObservation(
                f"ended has shape {array.shape}, but the {self._who} acts for {remembered}: expected bool[{remembered}]"
            )
        return array

    def _array(self, leaf: Leaf, dtype: np.dtype[Any], obs: Any) -> Array:
        """In the leaf's dtype, with or without an axis of rows."""
        shape = leaf.shape
        for depth, key in enumerate(leaf.keys):
            try:
                obs = obs[key]
            except (KeyError, IndexError, TypeError):
                expected = ", ".join(f"{obs_name(each.keys)} {each.dtype}{list(each.shape)}" for each in self._leaves)
                raise BadObservation(
                    f"{obs_name(leaf.keys[:depth])} is {brief(obs)} ({type(obs).__name__}) and has no {key!r}; "
                    f"expected: {expected}, or the same with a leading axis in every array for many"
                ) from None
        try:
            array = np.asarray(obs)
        except ValueError:
            raise _mismatch(leaf, f"is {brief(obs)}, which is no array") from None
        if array.shape != shape and array.shape[1:] != shape:
            raise _mismatch(leaf, f"has shape {array.shape}")
        if array.ndim > len(shape) and not len(array):
            raise _mismatch(leaf, f"holds no observation at all: its shape is {array.shape}")
        if leaf.kind in ("vector", "image"):
            try:
                values = box_values(array, dtype)
            except ValueError as error:
                raise _mismatch(leaf, str(error)) from None
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
                raise BadObservation(f"NaN or infinity in {obs_name(leaf.keys)}{f' at index {index}' if index else ''}")
            return values
        if array.dtype.kind not in "biu":
            raise _mismatch(leaf, f"has dtype {array.dtype}")
        start = np.array(leaf.start or 0).reshape(shape if leaf.nvec else ())
        top = start + (np.array(leaf.nvec).reshape(shape) if leaf.nvec else 2)
        if ((array < start) | (array >= top)).any():  # before a cast could wrap them
            raise BadObservation(
                f"{obs_name(leaf.keys)} is {brief(array)}, which is not in its space: from {start.tolist()} to "
                f"{(top - 1).tolist()}; give what the environment observes"
            )
        return array.astype(dtype, copy=False)

    def _mask(self, mask: Any, num_rows: int, is_batch: bool) -> Array:
        size = sum(self._mask_groups)
        expected = f"bool[{size}] for one observation, or bool[N, {size}] for N, True where an action is legal"
        if not size:
            raise BadObservation(f"mask= is given, but this {self._who} was trained without action masks; omit it")
        if mask is None:
            raise BadObservation(
                f"the action mask is missing, with which this {self._who} was trained: pass mask=, {expected} (what "
                "the environment gives as info['action_mask'] or by action_masks())"
            )
        try:
            array = np.asarray(mask)
        except ValueError:  # one array for each choice
            array = np.concatenate([np.asarray(each) for each in mask], axis=-1)
        if array.dtype.kind not in "biuf" or array.shape != ((num_rows, size) if is_batch else (size,)):
            raise BadObservation(
                f"the action mask has shape {array.shape} and dtype {array.dtype}; expected {expected}"
                + (f" (here N = {num_rows})" if is_batch else "")
            )
        rows = array.reshape(num_rows, size).astype(np.bool_)
        found = find_no_choice(rows, self._mask_groups, np.ones(num_rows, np.bool_))
        if found is not None:
            which = f" of row {found[0]}" if is_batch else ""
            raise BadObservation(f"the action mask{which} has no legal action{found[1]}; the episode should have ended")
        return rows


def box_values(array: np.ndarray, dtype: Any) -> np.ndarray:
    """array in `dtype`: whole numbers of any dtype where they fit, floats of any width for floats. ValueError, whose
    text follows the array's name, for all else; NaN and infinity are not looked for."""
    dtype = np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in ("biuf" if dtype.kind == "f" else "biu"):
        raise ValueError(f"has dtype {array.dtype}")
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = array.astype(dtype)
        wrong = np.isinf(values) & np.isfinite(array)
        low, high = np.finfo(dtype).min, np.finfo(dtype).max
    else:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        # An array of one sign has no room for the other's limit: its dtype's own is nearer.
        own = (0, 1) if array.dtype.kind == "b" else (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        wrong = (array < max(low, own[0])) | (array > min(high, own[1]))
        values = array.astype(dtype)
    if wrong.any():
        raise ValueError(f"holds {array[wrong][0]}, which is not between {low} and {high}")
    return values


def _mismatch(leaf: Leaf, what: str) -> BadObservation:
    rest = "".join(f", {size}" for size in leaf.shape)
    return BadObservation(
        f"{obs_name(leaf.keys)} {what}; expected {leaf.dtype}{list(leaf.shape)} for one observation, or "
        f"{leaf.dtype}[N{rest}] for N"
    )


def find_no_choice(mask: Array, groups: tuple[int, ...], rows: Array) -> tuple[int, str] | None:
    """The first row in which a group has no True, and which group that is.

    mask: bool[B, L]; groups: `ActionSpec.mask_groups`; rows: bool[B], where to look.
    """
    starts = np.cumsum((0, *groups[:-1]))
    is_open = np.logical_or.reduceat(mask, starts, axis=1)
    stuck = rows & ~is_open.all(axis=1)
    if not stuck.any():
        return None
    row = int(np.flatnonzero(stuck)[0])
    choice = int(np.flatnonzero(~is_open[row])[0])
    last = starts[choice] + groups[choice] - 1
    return row, f" for choice {choice} (entries {starts[choice]} to {last})" if len(groups) > 1 else ""


def brief(value: Any) -> str:
    """A value for a message: short, on one line."""
    if isinstance(value, np.generic):
        value = value.item()
    text = np.array2string(value, threshold=8, precision=6) if isinstance(value, np.ndarray) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 120 else text[:117] + "..."


def obs_name(keys: Sequence[Any]) -> str:
    """`observation['robot'][0]`"""
    return "observation" + "".join(f"[{key!r}]" for key in keys)
