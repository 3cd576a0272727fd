"""Which samples which rank takes, and in which order. Pure: no torch, no clock, no processes.

A *step* is one update of the weights; it takes the next `step_size` samples of the epoch's order. Rank r takes every
`world_size`-th of them, from the r-th on, in batches of at most `batch_size` (a "micro-batch" where there are several).
What a step takes therefore does not depend on how many ranks there are: with half of the ranks each takes twice as many
batches, and the sum of the weighted gradients is the same. How far an epoch has come is one number: the samples of all
ranks so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ShardedBatch:
    indices: list[int]
    """Samples for this rank; never empty: where none is left, one of the step's with weight 0."""
    weight: float
    """By which the mean loss over them is multiplied, so that the mean over the ranks of the sum over the batches of a
    step is the mean over the step's samples."""
    is_last_of_step: bool
    position: int
    """Samples of all ranks, from the epoch's beginning to the end of this step (before it, unless the last of it)."""


def epoch_order(num_samples: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """int64[num_samples]: the same on every rank, another one in each epoch."""
    if not shuffle:
        return np.arange(num_samples)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch)))).permutation(num_samples)


def batches_of_rank(
    order: np.ndarray,
    rank: int,
    world_size: int,
    *,
    batch_size: int,
    step_size: int,
    position: int = 0,
    drop_last: bool = False,
) -> Iterator[ShardedBatch]:
    """From `position` (a boundary of steps) to the epoch's end; as many on every rank.

    drop_last: whether an incomplete last step is omitted.
    """
    while position < len(order):
        samples = order[position : position + step_size]
        if drop_last and len(samples) < step_size:
            return
        own = samples[rank::world_size]
        pieces = np.array_split(own, _batches_of_step(len(samples), world_size, batch_size))
        for number, piece in enumerate(pieces, 1):
            is_last = number == len(pieces)
            yield ShardedBatch(
                (piece if len(piece) else samples[:1]).tolist(),
                len(piece) * world_size / len(samples),
                is_last,
                position + len(samples) if is_last else position,
            )
        position += len(samples)


def num_batches(num_samples: int, world_size: int, *, batch_size: int, step_size: int, drop_last: bool) -> int:
    """How many `batches_of_rank` yields in a whole epoch."""
    whole, rest = divmod(num_samples, step_size)
    count = whole * _batches_of_step(step_size, world_size, batch_size)
    return count + (0 if drop_last or not rest else _batches_of_step(rest, world_size, batch_size))


def _batches_of_step(num_samples: int, world_size: int, batch_size: int) -> int:
    return math.ceil(math.ceil(num_samples / world_size) / batch_size)
