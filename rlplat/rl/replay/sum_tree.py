"""`SumTree`: draws indices in proportion to their priorities, many at once (Schaul et al. 2016, appendix B.2.1)."""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array

FANOUT = 16
"""Children of a node. Two would make the tree four times as deep, and every level is a handful of numpy calls."""


class SumTree:
    """`size` leaves; every inner node holds the sum of its children.

    tree = SumTree(4)
    tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    tree.find(np.array([0.5, 1.5]))                      # [0, 2]: where the running sum of the leaves passes it
    """

    def __init__(self, size: int) -> None:
        assert size > 0, f"a sum tree needs leaves, got size {size}"
        self.size = size
        self._levels: list[Array] = []  # [nodes / FANOUT, FANOUT] float64, leaves first
        num_nodes = size
        while True:
            num_rows = -(-num_nodes // FANOUT)
            self._levels.append(np.zeros((num_rows, FANOUT), np.float64))
            if num_rows == 1:
                break
            num_nodes = num_rows
        self._leaves = self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._levels[-1].sum())

    def get(self, indices: Array) -> Array:
        """indices: int64[N] -> float64[N]."""
        return self._leaves[indices]

    def set(self, indices: Array, priorities: Array | float) -> None:
        """indices: int64[N], priorities: float[N] >= 0, 0 for what is not to be drawn; of an index that is there twice
        the last one holds."""
        self._leaves[indices] = priorities
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // FANOUT
            above.reshape(-1)[indices] = below[indices].sum(axis=1)

    def clear(self) -> None:
        """All priorities are 0."""
        for level in self._levels:
            level[:] = 0.0

    def find(self, masses: Array) -> Array:
        """masses: float64[N] in [0, total) -> int64[N], the leaves i with sum(p[:i]) <= mass < sum(p[:i + 1]).

        Rounding never leads to a leaf of priority 0, as long as `total` is positive.
        """
        masses = np.array(masses, np.float64)
        nodes = np.zeros(len(masses), np.int64)
        rows = np.arange(len(masses))
        for level in reversed(self._levels):
            running = level[nodes].cumsum(axis=1)
            np.minimum(masses, np.nextafter(running[:, -1], 0.0), out=masses)
            children = (running <= masses[:, None]).sum(axis=1)
            before = np.where(children > 0, running[rows, children - 1], 0.0)
            masses -= before
            nodes = nodes * FANOUT + children
        return nodes
