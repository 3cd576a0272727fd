"""Observations that may be one array or a dict of arrays by path (`interfaces.Obs`), handled alike.

last_obs = take_obs(step.final_obs, np.flatnonzero(step.truncated))
column = map_obs(lambda leaf: np.empty((T, *leaf.shape), leaf.dtype), obs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import MASK, ActionSpec, ObsSpec, action_leaves


def map_obs(f: Callable[..., Any], *obs: Any) -> Any:
    """f(leaf) for every leaf, or f(leaf of one, leaf of the other, ...) for several observations of equal structure."""
    first = obs[0]
    if isinstance(first, dict):
        return {path: f(*(one[path] for one in obs)) for path in first}
    return f(*obs)


def obs_rows(obs: Obs) -> int:
    """Length of the first axis."""
    return len(next(iter(obs.values())) if isinstance(obs, dict) else obs)


def take_obs(obs: Obs, rows: Any) -> Obs:
    """The rows that an index, a slice, an index array or a mask selects."""
    if isinstance(obs, dict):
        return {path: leaf[rows] for path, leaf in obs.items()}
    return obs[rows]


def concat_obs(obs: Sequence[Obs]) -> Obs:
    """Several one after another along the first axis."""
    result: Obs = map_obs(lambda *leaves: np.concatenate(leaves), *obs)
    return result


def put_obs(target: Obs, where: Any, rows: Obs) -> None:
    """target[where] = rows, leaf by leaf."""
    if isinstance(target, dict):
        assert isinstance(rows, dict)
        for path, leaf in rows.items():
            target[path][where] = leaf
    else:
        target[where] = rows


def empty_columns(num_steps: int, obs: Obs) -> Obs:
    """Zeros [T, B, ...] for steps of observations [B, ...]; in a mask everything is legal, so that rows that mean
    nothing do no harm."""
    columns: Obs = map_obs(lambda leaf: np.zeros((num_steps, *leaf.shape), leaf.dtype), obs)
    if isinstance(columns, dict) and MASK in columns:
        columns[MASK][:] = True
    return columns


def copy_obs(obs: Obs) -> Obs:
    """For environments that write their next observation into the same memory."""
    copied: Obs = map_obs(np.array, obs)
    return copied


def where_rows(condition: Array, chosen: Obs, other: Obs) -> Obs:
    """condition: bool[B] -> `chosen` in those rows, `other` elsewhere."""
    result: Obs = map_obs(lambda a, b: np.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b), chosen, other)
    return result


def find_not_finite(obs: Obs) -> tuple[int, str, Array] | None:
    """The first row with a NaN or an infinity: (row, where in it, the row's values)."""
    leaves = obs if isinstance(obs, dict) else {"": obs}
    for path, leaf in leaves.items():
        if leaf.dtype.kind != "f" or np.isfinite(leaf).all():
            continue
        row = int(np.flatnonzero(~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1))[0])
        where = f" '{path}'" if path else ""
        if leaf.ndim > 1:
            where += f" at index {tuple(map(int, np.argwhere(~np.isfinite(leaf[row]))[0]))}"
        return row, where, leaf[row]
    return None


def flat_features(obs: Obs, spec: ObsSpec | dict[str, ObsSpec]) -> Array:
    """obs: [N, ...] (or a dict of such) -> float32[N, F] in C order, leaves side by side, choices one-hot."""
    if not isinstance(spec, dict):
        assert isinstance(obs, np.ndarray)
        return np.ascontiguousarray(_leaf_features(obs, spec))
    assert isinstance(obs, dict)
    return np.concatenate([_leaf_features(obs[path], leaf) for path, leaf in spec.items()], axis=1)


def num_features(spec: ObsSpec | dict[str, ObsSpec]) -> int:
    """F of `flat_features`."""
    return sum(leaf.num_features for leaf in (spec.values() if isinstance(spec, dict) else [spec]))


def _leaf_features(obs: Array, leaf: ObsSpec) -> Array:
    if leaf.kind == "image" and (leaf.dtype != "uint8" or obs.dtype == np.uint8):  # else it is normalised
        low, span = leaf.pixel_scale
        obs = (obs.astype(np.float32) - low) / span
    rows = obs.reshape(len(obs), -1)
    if leaf.nvec:
        one_hot = [np.eye(n, dtype=np.float32)[rows[:, i]] for i, n in enumerate(leaf.nvec)]
        return np.concatenate(one_hot, axis=1)
    return rows.astype(np.float32, copy=False)


def flat_actions(actions: Array, spec: ActionSpec) -> Array:
    """actions: [N, ...] -> float32[N, K]: a Box in units of half the width of its bounds, where it has some, choices
    one-hot, bits as they are."""
    columns, start, parts = actions.reshape(len(actions), -1), 0, []
    for part in action_leaves(spec):
        own = columns[:, start : start + part.flat_size]
        start += part.flat_size
        if part.kind == "box":
            low, high = np.array(part.low, np.float64), np.array(part.high, np.float64)
            bounded = np.isfinite(low) & np.isfinite(high)
            low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
            parts.append((2.0 * own - low - high) / (high - low))
        elif part.kind == "multi_binary":
            parts.append(own)
        else:
            counts = part.nvec or (part.n,)
            parts += [np.eye(n)[own[:, i].astype(np.int64)] for i, n in enumerate(counts)]
    return np.concatenate(parts, axis=1).astype(np.float32)
