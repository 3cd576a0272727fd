"""The random numbers of one trial's suggestion."""

from __future__ import annotations

import numpy as np


def trial_rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of a trial's suggestion."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))
