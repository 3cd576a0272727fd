"""`DividedData`: a data set of which this rank takes its part of every batch.

A batch is what all ranks take in a step, as with tf.distribute: rank r takes every n-th sample of it, from the r-th on,
so that the losses do not depend on the number of ranks. Every rank reads the whole data set, in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from rlplat.errors import ConfigError


class DividedData:
    def __init__(self, data: Any, kind: str, rank: int, num_ranks: int) -> None:
        """data: a batched `tf.data.Dataset`; kind: what messages call it."""
        self._kind, self._rank, self._num_ranks = kind, rank, num_ranks
        if not isinstance(data, tf.data.Dataset):
            raise ConfigError(
                f"rank {rank}: data_creator must return tf.data.Datasets, not {type(data).__name__} for {kind}"
            )
        if any(spec.shape.rank == 0 for spec in tf.nest.flatten(data.element_spec)):
            raise ConfigError(f"rank {rank}: the {kind} data has single samples: dataset.batch(64)")

        def own(*batch: Any) -> Any:
            size = tf.shape(tf.nest.flatten(batch)[0])[0]
            mine = tf.range(rank, size, num_ranks)
            num_own = tf.size(mine)
            # Every rank takes part in every step: with weight 0 where no sample is left for it.
            mine = tf.cond(num_own > 0, lambda: mine, lambda: tf.zeros([1], tf.int32))
            return tf.nest.map_structure(lambda part: tf.gather(part, mine), batch), num_own, size

        self._data = data.map(own).prefetch(1)

    def batches(self, num_batches: int | None = None) -> Iterator[tuple[Any, int, int]]:
        """A pass: (own part of a batch, its samples that count, samples of the whole batch)."""
        if num_batches is None and int(self._data.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ConfigError(
                f"rank {self._rank}: the data set has no end: omit .repeat(), or say how many batches make an epoch: "
                "train(num_steps=...), validate(num_steps=...)"
            )
        is_first = True
        for batch, num_own, size in itertools.islice(iter(self._data), num_batches):
            if is_first and int(size) < self._num_ranks:
                raise ConfigError(
                    f"rank {self._rank}: the first batch of the {self._kind} data has {int(size)} samples for "
                    f"{self._num_ranks} ranks, and a batch is what all of them take together: a larger "
                    "dataset.batch(...), more data, or fewer num_workers"
                )
            is_first = False
            yield batch if len(batch) > 1 else batch[0], int(num_own), int(size)

    def skip_passes(self, num_passes: int) -> None:
        """`shuffle` draws another order for each pass: those that are past."""
        for _ in range(num_passes):
            iter(self._data)
