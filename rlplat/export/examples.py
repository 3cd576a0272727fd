"""Inputs for an exported policy that are made, not recorded: to trace it, to check it, and its golden rows.

make = ExampleRows(contract, agent.spaces.observation_space, seed=0)
feeds = make.rows(8)                                    # {"obs": float32[8, 4], "noise": float32[8, 2]}
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.acting import MASK, Leaf
from rlplat.export.contract import NOISE, STARTS, STATE_IN, Contract
from rlplat.rl.envs.gym_spaces import obs_parts

WIDEST = 10.0
"""Vectors without narrower bounds are drawn within ±WIDEST."""
Feeds = dict[str, np.ndarray]


class ExampleRows:
    def __init__(self, contract: Contract, observation_space: Any, seed: int) -> None:
        self._contract = contract
        self._spaces = {part.path: part.space for part in obs_parts(observation_space)}
        self._rng = np.random.default_rng(seed)

    def rows(self, num_rows: int, *, smooth_images: bool = False) -> Feeds:
        """Within the observation space; the first row lies at its lower bounds and the last at its upper ones.

        smooth_images: such as a file keeps well.
        """
        contract, rng = self._contract, self._rng
        feeds = {leaf.name("obs"): self._leaf(leaf, num_rows, smooth_images) for leaf in contract.obs}
        if contract.mask_groups:
            feeds[MASK] = np.concatenate([_mask(size, num_rows, rng) for size in contract.mask_groups], axis=1)
        if contract.state_size:
            feeds[STATE_IN] = np.zeros((num_rows, contract.state_size), np.float32)
            feeds[STARTS] = np.arange(num_rows) % 4 == 0
        if contract.noise_size:
            feeds[NOISE] = rng.standard_normal((num_rows, contract.noise_size), dtype=np.float32)
        return feeds

    def _leaf(self, leaf: Leaf, num_rows: int, smooth_images: bool) -> np.ndarray:
        rng, shape = self._rng, (num_rows, *leaf.shape)
        if leaf.kind == "multi_binary":
            return rng.integers(0, 2, shape).astype(leaf.dtype)
        if leaf.nvec:
            values = rng.integers(0, np.array(leaf.nvec), (num_rows, len(leaf.nvec))) + np.array(leaf.start)
            return values.reshape(shape).astype(leaf.dtype)
        space = self._spaces[leaf.path]
        dtype = np.dtype(leaf.dtype)
        if leaf.kind == "image" and smooth_images and dtype == np.uint8:
            places = sum(np.ogrid[tuple(slice(size) for size in shape)][1:])
            rows = 29 * np.arange(num_rows).reshape(-1, *(1 for _ in leaf.shape))
            return ((places + rows) % (int(space.high.max()) + 1)).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if leaf.kind == "image" and dtype == np.uint8:
            return rng.integers(space.low.astype(np.int64), space.high.astype(np.int64) + 1, shape).astype(dtype)
        low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
        if leaf.kind == "vector" or not np.isfinite([low.min(), high.max()]).all():
            low, high = low.clip(-WIDEST, WIDEST), high.clip(-WIDEST, WIDEST)
        shares = rng.random(shape)
        shares[0], shares[-1] = 0.0, 1.0
        return (low + (high - low) * shares).astype(dtype)


def _mask(size: int, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    mask: np.ndarray = rng.random((num_rows, size)) < 0.6
    mask[np.arange(num_rows), rng.integers(0, size, num_rows)] = True
    return mask
