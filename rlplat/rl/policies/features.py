"""Observations as one row of numbers each, in plain numpy; `leaf_features` of rl/torch/encoders.py."""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import ObsSpec


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
