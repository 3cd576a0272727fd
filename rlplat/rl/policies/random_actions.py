"""Actions without a policy, for recordings and checks."""

from __future__ import annotations

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.spaces import MASK, ActionSpec, action_leaves, empty_actions

WIDEST = 10.0


class RandomActions:
    """Uniform ones among those that are legal."""

    def __init__(self, action: ActionSpec, seed: np.random.SeedSequence, env: str = "") -> None:
        """env: whose name a ConfigError has where actions are without bounds; without it, they get WIDEST."""
        self._action, self._rng = action, np.random.Generator(np.random.PCG64(seed))
        bounds = [bound for part in action_leaves(action) for bound in (*part.low, *part.high)]
        if env and not np.isfinite(bounds).all():
            raise ConfigError(
                f"--random draws actions uniformly between their bounds, but {env} has actions {action}: use --sampled"
            )

    def instead_of(self, actions: Array, obs: Obs, share: float) -> Array:
        """The same array of actions [B, ...], in which each row is replaced with probability `share`."""
        num_rows = len(actions)
        is_random = self._rng.random(num_rows) < share
        drawn = self.drawn(num_rows, obs)
        return np.where(is_random.reshape(-1, *[1] * (actions.ndim - 1)), drawn, actions)

    def drawn(self, num_rows: int, obs: Obs) -> Array:
        """One for every row of observations, as `PolicyOutput.actions`."""
        mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else None
        like = empty_actions(self._action, num_rows)
        return self._draw(num_rows, mask).reshape(like.shape).astype(like.dtype)

    def _draw(self, num_rows: int, mask: Array | None) -> Array:
        """float64[B, columns]; mask: bool[B, L] over the choices of all Discrete and MultiDiscrete parts, or None."""
        columns, place = [], 0
        for part in action_leaves(self._action):
            if part.kind == "box":
                low, high = np.array(part.low), np.array(part.high)
                low = np.where(np.isfinite(low), low, np.minimum(high - 1.0, -WIDEST))
                high = np.where(np.isfinite(high), high, np.maximum(low + 1.0, WIDEST))
                columns.append(self._rng.uniform(low, high, (num_rows, part.flat_size)))
            elif part.kind == "multi_binary":
                columns.append(self._rng.integers(2, size=(num_rows, part.flat_size)).astype(np.float64))
            for size in part.mask_groups if part.mask_size else ():
                draws = self._rng.random((num_rows, size))
                legal = True if mask is None else mask[:, place : place + size]
                columns.append(np.where(legal, draws, -1.0).argmax(axis=1)[:, None].astype(np.float64))
                place += size
        return np.concatenate(columns, axis=1)
