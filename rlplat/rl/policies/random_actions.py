"""Actions without a policy, for recordings and checks."""

from __future__ import annotations

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import MASK, ActionSpec, action_leaves


class RandomActions:
    """Uniform ones among those that are legal."""

    def __init__(self, action: ActionSpec, seed: np.random.SeedSequence, env: str) -> None:
        self._action, self._rng = action, np.random.Generator(np.random.PCG64(seed))
        bounds = [bound for part in action_leaves(action) for bound in (*part.low, *part.high)]
        if not np.isfinite(bounds).all():
            raise ConfigError(
                f"--random draws actions uniformly between their bounds, but {env} has actions {action}: use --sampled"
            )

    def instead_of(self, actions: Array, obs: Obs, share: float) -> Array:
        """The same array of actions [B, ...], in which each row is replaced with probability `share`."""
        num_rows = len(actions)
        is_random = self._rng.random(num_rows) < share
        mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else None
        drawn = self._draw(num_rows, mask).reshape(actions.shape).astype(actions.dtype)
        return np.where(is_random.reshape(-1, *[1] * (actions.ndim - 1)), drawn, actions)

    def _draw(self, num_rows: int, mask: Array | None) -> Array:
        """float64[B, columns]; mask: bool[B, L] over the choices of all Discrete and MultiDiscrete parts, or None."""
        columns, place = [], 0
        for part in action_leaves(self._action):
            if part.kind == "box":
                columns.append(self._rng.uniform(part.low, part.high, (num_rows, part.flat_size)))
            elif part.kind == "multi_binary":
                columns.append(self._rng.integers(2, size=(num_rows, part.flat_size)).astype(np.float64))
            for size in part.mask_groups if part.mask_size else ():
                draws = self._rng.random((num_rows, size))
                legal = True if mask is None else mask[:, place : place + size]
                columns.append(np.where(legal, draws, -1.0).argmax(axis=1)[:, None].astype(np.float64))
                place += size
        return np.concatenate(columns, axis=1)
