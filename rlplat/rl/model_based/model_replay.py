"""`ModelReplay`: single transitions of a model, the newest of them; and minibatches of real and imagined ones."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.model_based.rollouts import Imagined
from rlplat.rl.replay.buffer import Minibatch

_COLUMNS = ("obs", "actions", "rewards", "next_obs", "terminated")  # of `Imagined`


class ModelReplay:
    """A ring of `capacity` rows.

    replay.add(imagined)
    minibatch = replay.sample(243)
    """

    def __init__(
        self, capacity: int, num_obs: int, num_actions: int, discount: float, seed: np.random.SeedSequence
    ) -> None:
        """num_obs, num_actions: D and A."""
        self._columns = Imagined(
            obs=np.zeros((capacity, num_obs), np.float32),
            actions=np.zeros((capacity, num_actions), np.float32),
            rewards=np.zeros(capacity, np.float32),
            next_obs=np.zeros((capacity, num_obs), np.float32),
            terminated=np.zeros(capacity, np.bool_),
        )
        self._capacity, self._discount = capacity, np.float32(discount)
        self._written = 0  # rows, ever
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        return min(self._written, self._capacity)

    def add(self, imagined: Imagined) -> None:
        """The newest rows replace the oldest."""
        rows = np.arange(self._written, self._written + len(imagined.rewards))
        self._written += len(rows)
        newest = slice(-self._capacity, None)
        for column, values in zip(self._columns, imagined, strict=True):
            column[rows[newest] % self._capacity] = values[newest]

    def sample(self, size: int) -> Minibatch:
        """`size` independent draws, all rows equally likely."""
        rows = self._rng.integers(len(self), size=size)
        obs, actions, rewards, next_obs, terminated = (column[rows] for column in self._columns)
        return Minibatch(
            obs=obs,
            actions=actions,
            returns=rewards,
            discounts=np.where(terminated, np.float32(0.0), self._discount),
            next_obs=next_obs,
            weights=np.ones(size, np.float32),
            rows=rows,
            stamps=np.zeros(size, np.int64),
        )

    def get_state(self) -> dict[str, Any]:
        """The filled part only."""
        named = zip(_COLUMNS, self._columns, strict=True)
        columns = {name: column[: len(self)].copy() for name, column in named}
        return {"columns": columns, "written": self._written, "rng": self._rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Into an empty replay; of another capacity, the newest that it has room for."""
        written, num_saved = int(state["written"]), len(state["columns"]["rewards"])
        oldest_first = np.arange(written - num_saved, written) % max(1, num_saved)
        self._written = written - num_saved if num_saved == self._capacity else 0
        self.add(Imagined(*(state["columns"][name][oldest_first] for name in _COLUMNS)))
        self._rng.bit_generator.state = state["rng"]


def mixed(real: Minibatch, imagined: Minibatch, num_batches: int) -> Minibatch:
    """`num_batches` minibatches one after the other, each with its share of both; their sizes are multiples of
    `num_batches`. Observations are arrays."""

    def side_by_side(name: str) -> Array:
        parts = [getattr(each, name) for each in (real, imagined)]
        grouped = [part.reshape(num_batches, -1, *part.shape[1:]) for part in parts]
        joined: Array = np.concatenate(grouped, axis=1)
        return joined.reshape(-1, *joined.shape[2:])

    return Minibatch(**{field.name: side_by_side(field.name) for field in fields(Minibatch)})
