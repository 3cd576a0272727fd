"""Which rank takes which samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat.data_parallel.shards import batches_of_rank, epoch_order, num_batches

SIZES = st.integers(1, 40)


def taken(num_samples: int, world_size: int, drop_last: bool = False, position: int = 0, **sizes: int) -> list:
    order = epoch_order(num_samples, 3, 0, shuffle=True)
    ranks = range(world_size)
    return [
        list(batches_of_rank(order, rank, world_size, position=position, drop_last=drop_last, **sizes))
        for rank in ranks
    ]


@given(
    num_samples=SIZES,
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 7),
    step_size=SIZES,
    drop=st.booleans(),
)
def test_every_sample_counts_once_and_all_ranks_have_as_many_batches(
    num_samples: int, world_size: int, batch_size: int, step_size: int, drop: bool
) -> None:
    per_rank = taken(num_samples, world_size, drop, batch_size=batch_size, step_size=step_size)
    counts = {len(batches) for batches in per_rank}
    assert counts == {num_batches(num_samples, world_size, batch_size=batch_size, step_size=step_size, drop_last=drop)}
    assert all(1 <= len(batch.indices) <= batch_size for batches in per_rank for batch in batches)
    counted = [i for batches in per_rank for batch in batches if batch.weight for i in batch.indices]
    kept = num_samples - num_samples % step_size if drop else num_samples
    assert sorted(counted) == sorted(epoch_order(num_samples, 3, 0, shuffle=True)[:kept])
    for together in zip(*per_rank, strict=True):
        assert len({(batch.is_last_of_step, batch.position) for batch in together}) == 1


@given(num_samples=SIZES, world_size=st.integers(1, 5), batch_size=st.integers(1, 7), step_size=SIZES)
def test_the_weighted_means_of_a_step_are_its_mean(
    num_samples: int, world_size: int, batch_size: int, step_size: int
) -> None:
    values = np.random.default_rng(0).normal(size=num_samples)
    per_rank = taken(num_samples, world_size, batch_size=batch_size, step_size=step_size)
    order, position, sums = epoch_order(num_samples, 3, 0, shuffle=True), 0, 0.0
    for together in zip(*per_rank, strict=True):
        sums += np.mean([batch.weight * values[batch.indices].mean() for batch in together])
        if together[0].is_last_of_step:
            assert sums == pytest.approx(values[order[position : together[0].position]].mean())
            position, sums = together[0].position, 0.0
    assert position == num_samples


@given(num_samples=SIZES, before=st.integers(1, 4), after=st.integers(1, 4), num_steps=st.integers(0, 5))
def test_other_ranks_take_the_rest_of_an_epoch(num_samples: int, before: int, after: int, num_steps: int) -> None:
    sizes = {"batch_size": 3, "step_size": 6}
    ends = [0, *(batch.position for batch in taken(num_samples, before, **sizes)[0] if batch.is_last_of_step)]
    position = min(ends[-1], ends[min(num_steps, len(ends) - 1)])
    first = epoch_order(num_samples, 3, 0, shuffle=True)[:position]
    second = taken(num_samples, after, position=position, **sizes)
    rest = [index for rank in second for batch in rank if batch.weight for index in batch.indices]
    assert sorted([*first, *rest]) == list(range(num_samples))


def test_an_epoch_has_its_own_order_and_the_same_one_again() -> None:
    orders = [epoch_order(50, 1, epoch, shuffle=True).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert epoch_order(4, 1, 0, shuffle=False).tolist() == [0, 1, 2, 3]


def test_a_rank_without_a_sample_takes_one_that_does_not_count() -> None:
    (last,) = taken(3, 4, batch_size=1, step_size=4)[3]
    assert (last.weight, len(last.indices), last.is_last_of_step) == (0.0, 1, True)
