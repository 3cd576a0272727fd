"""`Stateless`: what policies that carry nothing from step to step have in common."""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.saved import Saved


class Stateless(Saved):
    """A generator of random numbers, and no core (see interfaces.Policy)."""

    saved = {"rng": "_rng"}
    core_state = np.zeros((0, 0), np.float32)

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def reset_core(self, ended: Array) -> None:
        """Nothing is carried from step to step."""

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng.bit_generator.state = np.random.PCG64(seed).state
