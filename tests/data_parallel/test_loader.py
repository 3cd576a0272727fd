"""The loader of one rank: samplers that say more than "shuffle" are refused, worker processes draw by rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from rlplat.data_parallel.torch.loader import ShardedLoader
from rlplat.errors import ConfigError

DATA = TensorDataset(torch.arange(1000.0))


def prepared(loader: Any, rank: int = 0) -> ShardedLoader:
    return ShardedLoader(
        loader,
        rank=rank,
        world_size=2,
        step_size=2,
        seed=1,
        device=torch.device("cpu"),
        begin_batch=lambda _: None,
    )


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (RandomSampler(DATA, num_samples=100), "num_samples=100"),
        (RandomSampler(DATA, replacement=True), "replacement=True"),
        (DistributedSampler(DATA, 2, 0, drop_last=True), "drop_last=True"),
        (DistributedSampler(DATA, 4, 0), "num_replicas=4"),
    ],
)
def test_what_a_division_would_lose_is_refused(sampler: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"rank 0: .*{said}.* does not: give the loader shuffle="):
        prepared(DataLoader(DATA, batch_size=10, sampler=sampler))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"shuffle": True, "generator": torch.Generator()}, "loader's generator"),
        ({"generator": torch.Generator()}, "loader's generator"),
        ({"sampler": RandomSampler(DATA, generator=torch.Generator())}, "loader's generator"),
        ({"sampler": DistributedSampler(DATA, 2, 0, seed=5)}, "sampler's seed"),
    ],
)
def test_an_order_of_the_users_own_is_refused(arguments: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=f"the {what} would not be used.* seed= of the trainer; omit the {what}"):
        prepared(DataLoader(DATA, batch_size=10, **arguments))


@pytest.mark.parametrize("sampler", [RandomSampler(DATA), DistributedSampler(DATA, 2, 0), None])
def test_samplers_that_only_shuffle_are_divided(sampler: Any) -> None:
    ranks = [prepared(DataLoader(DATA, batch_size=10, sampler=sampler), rank) for rank in range(2)]
    seen = torch.cat([values for rank in ranks for (values,) in rank])
    assert sorted(seen.tolist()) == list(range(1000))


def test_worker_processes_of_each_rank_have_other_seeds() -> None:
    ranks = [prepared(DataLoader(DATA, batch_size=10), rank) for rank in range(2)]
    for rank in ranks:
        next(iter(rank))
    assert ranks[0]._generator.initial_seed() != ranks[1]._generator.initial_seed()
