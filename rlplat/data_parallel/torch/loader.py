"""`ShardedLoader`: a DataLoader's samples, divided among the ranks, with a place in the epoch that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from rlplat.data_parallel.shards import ShardedBatch, batches_of_rank, epoch_order, num_batches
from rlplat.errors import ConfigError


class ShardedLoader:
    """What `ctx.prepare(loader)` returns: iterate it once per epoch; each pass has another order.

    `batch_size` of the given loader is what one rank takes at a time, as with plain DistributedDataParallel.
    """

    def __init__(
        self,
        loader: DataLoader,
        *,
        rank: int,
        world_size: int,
        step_size: int,
        seed: int,
        device: torch.device,
        begin_batch: Callable[[ShardedBatch | None], None],
    ) -> None:
        """step_size: samples of all ranks in one step; begin_batch: is told of each batch before it is handed out, and
        of the end of the pass (None)."""
        self._shuffle = _shuffles(loader, rank, world_size)
        self._num_samples = len(loader.dataset)  # type: ignore[arg-type]
        self._rank, self._world_size, self._seed, self._device = rank, world_size, seed, device
        batch_size = int(loader.batch_size or 1)
        step_size *= batch_size
        self._sizes: dict[str, Any] = {"batch_size": batch_size, "step_size": step_size, "drop_last": loader.drop_last}
        if self._num_samples < world_size:
            raise ConfigError(
                f"rank {rank}: the data set has {self._num_samples} samples for {world_size} ranks: fewer num_workers, "
                "or more data"
            )
        if loader.drop_last and self._num_samples < step_size:
            raise ConfigError(
                f"rank {rank}: a step takes {step_size} samples ({batch_size} for each rank), the data set "
                f"has {self._num_samples} and drop_last=True: there is no batch at all; a smaller batch_size"
            )
        self._begin_batch = begin_batch
        self.epoch = 0
        """Passes so far."""
        self.position = 0
        """Samples of all ranks in this pass so far."""
        self._order = _Batches()
        self._generator = torch.Generator()
        kept = "num_workers collate_fn pin_memory timeout worker_init_fn"
        if loader.num_workers:
            kept += " prefetch_factor persistent_workers multiprocessing_context"
        of_loader: dict[str, Any] = {name: getattr(loader, name) for name in kept.split()}
        self._loader = DataLoader(loader.dataset, batch_sampler=self._order, generator=self._generator, **of_loader)
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """Batches of this rank in a whole pass."""
        return num_batches(self._num_samples, self._world_size, **self._sizes)

    def __iter__(self) -> Iterator[Any]:
        self._begin_batch(None)
        order = epoch_order(self._num_samples, self._seed, self.epoch, self._shuffle)
        batches = batches_of_rank(order, self._rank, self._world_size, position=self.position, **self._sizes)
        self._order.batches = list(batches)
        # Of the loader's worker processes: those of each rank draw other augmentations.
        self._generator.manual_seed(hash((self._seed, self.epoch, self._rank)) % 2**63)
        try:
            for batch, values in zip(self._order.batches, self._loader, strict=True):
                self._begin_batch(batch)
                self.position = batch.position
                yield to_device(values, self._device)
        finally:
            self._begin_batch(None)
            self.epoch, self.position = self.epoch + 1, 0

    def get_state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "num_samples": self._num_samples}

    def set_state(self, state: dict[str, int]) -> None:
        if state["num_samples"] != self._num_samples:
            raise ConfigError(
                f"rank {self._rank}: the checkpoint was made with {state['num_samples']} samples, and the data set has "
                f"{self._num_samples}: the order cannot be continued; begin again, or give the same data"
            )
        self.epoch, self.position = state["epoch"], state["position"]


class _Batches:
    """A batch sampler whose batches are laid down before each pass."""

    def __init__(self) -> None:
        self.batches: list[ShardedBatch] = []

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.indices for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def _shuffles(loader: DataLoader, rank: int, world_size: int) -> bool:
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise ConfigError(
            f"rank {rank}: a data set without a length cannot be divided: do not give its loader to ctx.prepare, and "
            "let each rank read its own part, by ctx.rank and ctx.world_size, as many batches on each"
        )
    if loader.batch_size is None or type(sampler) not in (RandomSampler, SequentialSampler, DistributedSampler):
        kind = type(loader.batch_sampler if loader.batch_size is None else sampler).__name__
        raise ConfigError(
            f"rank {rank}: a loader with a sampler of its own ({kind}) cannot be divided: give one with batch_size= "
            "and shuffle=, or do not give it to ctx.prepare"
        )
    lost = ""  # what a permutation of all samples, divided among the ranks, would not do
    if isinstance(sampler, RandomSampler):
        if sampler.replacement or sampler._num_samples is not None:
            lost = f"RandomSampler(replacement={sampler.replacement}, num_samples={sampler.num_samples})"
    elif isinstance(sampler, DistributedSampler):
        if sampler.drop_last or sampler.num_replicas != world_size:
            lost = f"DistributedSampler(num_replicas={sampler.num_replicas}, drop_last={sampler.drop_last})"
    generator = loader.generator or getattr(sampler, "generator", None)
    if generator is not None or getattr(sampler, "seed", None):
        unused = "sampler's seed" if generator is None else "loader's generator"
        raise ConfigError(
            f"rank {rank}: the {unused} would not be used: the order and the seeds of worker processes follow from "
            f"seed= of the trainer; omit the {unused}"
        )
    if lost:
        raise ConfigError(
            f"rank {rank}: ctx.prepare hands out every sample once in a pass, which {lost} does not: give the loader "
            "shuffle= and drop_last= instead, or do not give it to ctx.prepare"
        )
    return bool(getattr(sampler, "shuffle", isinstance(sampler, RandomSampler)))


def to_device(values: Any, device: torch.device) -> Any:
    """Tensors in nested lists, tuples and dicts, moved."""
    if isinstance(values, torch.Tensor):
        return values.to(device, non_blocking=True)
    if isinstance(values, dict):
        return {key: to_device(value, device) for key, value in values.items()}
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(to_device(value, device) for value in values))
    if isinstance(values, (list, tuple)):
        return type(values)(to_device(value, device) for value in values)
    return values
