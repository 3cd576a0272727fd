"""`ObsGatherer`: sums over what a worker observes, for observation statistics that a learner keeps."""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import RunningMeanVar


class ObsGatherer:
    """Sums over the observations of some episodes, less a reference near their mean, so that squares do not cancel."""

    def __init__(self, reference: Array) -> None:
        """reference: [*shape] of one observation."""
        self._reference = reference.astype(np.float64).reshape(-1)
        self._slots: list[int] = []
        self._sums = np.zeros(0)
        self._rows: list[Array] = []

    def begin(self, slot: int, is_gathered: bool) -> None:
        """An episode begins in `slot`."""
        if slot in self._slots:
            self._slots.remove(slot)
        if is_gathered:
            self._slots.append(slot)

    def add(self, obs: Array) -> None:
        """obs: [B, ...]; what is kept of it is a copy."""
        if self._slots:
            self._rows.append(obs[self._slots])
            if len(self._rows) == 1000:
                self.sums()

    def sums(self) -> Array:
        """float64[1 + 2 D]: number, sums, sums of squares; empty where there are none."""
        if self._rows:
            rows = np.concatenate(self._rows).reshape(-1, self._reference.size) - self._reference
            sums = np.concatenate([[len(rows)], rows.sum(axis=0), np.square(rows).sum(axis=0)])
            self._sums = self._sums + sums if self._sums.size else sums
            self._rows = []
        return self._sums


class NullGatherer:
    """Where observations are taken as they are."""

    def begin(self, slot: int, is_gathered: bool) -> None: ...

    def add(self, obs: Array) -> None: ...

    def sums(self) -> Array:
        return np.zeros(0)


def merge_gathered(statistics: RunningMeanVar | None, sums: Array) -> None:
    """sums: `ObsGatherer.sums` around the mean that was published with the weights; statistics None: there are none."""
    if statistics is None or not sums.size:
        return
    shape, number = statistics.mean.shape, int(sums[0])
    offset, squares = np.split(sums[1:] / number, 2)
    reference = statistics.mean.astype(np.float32).astype(np.float64)
    variance = np.maximum(squares - np.square(offset), 0.0)
    statistics.merge(reference + offset.reshape(shape), variance.reshape(shape), number)
