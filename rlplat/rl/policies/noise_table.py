"""`NoiseTable`: Gaussian noise that every process has, so that a perturbation travels as one number, its first index.

    ref = rlplat.put(make_noise(25_000_000, seed))      # once; workers of one machine map the same memory, read-only
    table = NoiseTable(noise)                           # in each process, `noise` being what the ref brings
    indices = table.draw(rng, num_params, 64)           # any index at which `num_params` numbers begin: slices overlap
    theta + noise_std * table.slice(indices[0], num_params)

(Salimans et al. 2017, section 2.1: "sharing random seeds" by a block of noise that is drawn once.)
"""

from __future__ import annotations

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array

MAX_SIZE = 1 << 32
"""Indices travel as uint32."""
BLOCK_FLOATS = 1 << 20
"""Of slices side by side in `weighted_sum`: 4 MB, whatever the number of slices."""


def make_noise(size: int, seed: np.random.SeedSequence) -> Array:
    """float32[size] from N(0, 1)."""
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(size, dtype=np.float32)


class NoiseTable:
    def __init__(self, noise: Array) -> None:
        """noise: float32[size]; never written to."""
        assert noise.ndim == 1 and noise.dtype == np.float32 and len(noise) <= MAX_SIZE, (
            noise.shape,
            noise.dtype,
        )
        self._noise = noise

    def draw(self, rng: np.random.Generator, num_params: int, count: int) -> Array:
        """uint32[count], uniform over all indices whose slice lies within the table; repetitions happen."""
        last = len(self._noise) - num_params
        if last < 0:
            raise ConfigError(
                f"a noise table of {len(self._noise):,} floats is too small for {num_params:,} parameters; raise "
                "noise_table_size (a hundred times the parameters and more) or make the network smaller"
            )
        return rng.integers(0, last, size=count, dtype=np.uint32, endpoint=True)

    def slice(self, index: int, num_params: int) -> Array:
        """float32[num_params], a view: the perturbation that begins at `index`."""
        index = int(index)
        assert 0 <= index <= len(self._noise) - num_params, (index, num_params, len(self._noise))
        return self._noise[index : index + num_params]

    def weighted_sum(self, indices: Array, weights: Array, num_params: int) -> Array:
        """sum_i weights[i] * slice(indices[i]) -> float32[num_params]; equal input, equal bits."""
        assert indices.shape == weights.shape, (indices.shape, weights.shape)
        total = np.zeros(num_params, np.float32)
        rows_at_a_time = max(1, BLOCK_FLOATS // num_params)
        for start in range(0, len(indices), rows_at_a_time):
            part = indices[start : start + rows_at_a_time]
            rows = np.stack([self.slice(index, num_params) for index in part])
            total += weights[start : start + rows_at_a_time].astype(np.float32) @ rows
        return total
