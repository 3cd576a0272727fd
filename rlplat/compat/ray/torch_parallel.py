"""`prepare_model` and `prepare_data_loader` of Ray Train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from rlplat.data_parallel.torch.loader import to_device
from rlplat.errors import OptionError


def wrapped(model: nn.Module, rank: Any) -> nn.Module:
    model = model.to(rank.device)
    if rank.world_size == 1 or not any(one.requires_grad for one in model.parameters()):
        return model
    return DistributedDataParallel(model, device_ids=[rank.device] if rank.device.type == "cuda" else None)


def sharded(loader: DataLoader[Any], rank: Any, add_sampler: bool, move: bool) -> Any:
    if rank.world_size > 1 and add_sampler:
        if type(loader.sampler) not in (RandomSampler, SequentialSampler):
            raise OptionError(
                f"prepare_data_loader cannot divide a {type(loader.sampler).__name__} among ranks: give the loader a "
                "DistributedSampler, and add_dist_sampler=False"
            )
        shuffles = isinstance(loader.sampler, RandomSampler)
        kept = "batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn".split()
        sampler: Any = DistributedSampler(loader.dataset, rank.world_size, rank.rank, shuffle=shuffles)
        loader = DataLoader(loader.dataset, sampler=sampler, **{name: getattr(loader, name) for name in kept})
    return Moving(loader, rank.device) if move and rank.device.type != "cpu" else loader


class Moving:
    """A loader whose batches are on a device."""

    def __init__(self, loader: DataLoader[Any], device: Any) -> None:
        self._loader, self._device = loader, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return (to_device(batch, self._device) for batch in self._loader)
