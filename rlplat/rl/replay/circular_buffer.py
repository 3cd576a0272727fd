"""`CircularBuffer`: columns side by side that hold the newest of the rows which were added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array


class CircularBuffer:
    """buffer = CircularBuffer({"obs": np.zeros((1000, 4), np.float32), "rewards": np.zeros(1000, np.float32)}, seed)
    buffer.add([obs, rewards])
    numbers, (obs, rewards) = buffer.draw(32)
    """

    def __init__(self, columns: Mapping[str, Array], seed: np.random.SeedSequence) -> None:
        """Arrays of as many rows as there is room for; seed: of the draws."""
        self._columns, self._rng = dict(columns), np.random.Generator(np.random.PCG64(seed))
        self._capacity = min(map(len, columns.values()))
        self.num_added = 0
        """Ever."""

    def __len__(self) -> int:
        return min(self.num_added, self._capacity)

    def add(self, new: Iterable[Array]) -> None:
        """Any number of rows, an array for each column; the oldest give way."""
        columns = list(zip(self._columns.values(), new, strict=True))
        num_new = len(columns[0][1])
        first = max(0, num_new - self._capacity)
        places = (self.num_added + np.arange(first, num_new)) % self._capacity
        for column, values in columns:
            column[places] = values[first:]
        self.num_added += num_new

    def draw(self, size: int) -> tuple[Array, list[Array]]:
        """Independent draws, all rows equally likely -> (their numbers int64[size], copies of their columns)."""
        numbers = self._rng.integers(len(self), size=size)
        return numbers, [column[numbers] for column in self._columns.values()]

    def get_state(self) -> dict[str, Any]:
        """The filled part only."""
        filled = {name: column[: len(self)].copy() for name, column in self._columns.items()}
        return {"columns": filled, "num_added": self.num_added, "rng": self._rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Into an empty one; of another capacity, the newest that it has room for."""
        columns = [state["columns"][name] for name in self._columns]
        num_added = int(state["num_added"] if "num_added" in state else state["written"])  # as MBPO named it
        num_saved = len(columns[0])
        oldest_first = np.arange(num_added - num_saved, num_added) % max(1, num_saved)
        self.num_added = num_added - num_saved if num_saved == self._capacity else 0
        self.add(column[oldest_first] for column in columns)
        self._rng.bit_generator.state = state["rng"]
