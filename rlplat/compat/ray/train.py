"""`ray.train`: `TorchTrainer` with a `train_loop_per_worker`, on rlplat's ranks (docs/data-parallel.md).

`prepare_model` is torch's DistributedDataParallel and `prepare_data_loader` its DistributedSampler, as in Ray: the loop
calls `loss.backward()` and `optimizer.step()` itself. A reported number is the mean over the ranks (Ray: rank 0's).
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rlplat.compat.ray.session import Checkpoint, current, get_checkpoint, get_context, report, running
from rlplat.errors import ConfigError

__path__: list[str] = []  # its modules are found by the package's finder
__all__ = ["Checkpoint", "get_checkpoint", "get_context", "report"]


@dataclass
class ScalingConfig:
    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    trainer_resources: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"


@dataclass
class FailureConfig:
    max_failures: int = 0
    fail_fast: bool = False


@dataclass
class CheckpointConfig:
    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool = False


@dataclass
class RunConfig:
    name: str | None = None
    storage_path: str | None = None
    local_dir: str | None = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    stop: Mapping[str, float] | None = None
    verbose: int | None = None
    callbacks: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage_path = self.storage_path or self.local_dir
        if self.callbacks:
            raise ConfigError(
                "RunConfig: Ray's callbacks do not run here: report what they would have written"
            )
        if self.checkpoint_config and self.checkpoint_config.checkpoint_score_attribute:
            raise ConfigError("CheckpointConfig: the newest checkpoints are kept here, not the best")


@dataclass
class Result:
    metrics: dict[str, Any]
    checkpoint: Checkpoint | None
    path: str
    error: Exception | None = None
    config: dict[str, Any] | None = None
    metrics_dataframe: Any = None


class _RankSession:
    """What a loop knows of its rank; ctx: rlplat's `torch.context.Context`."""

    def __init__(self, ctx: Any, folder: Path, keep: int | None) -> None:
        self.ctx, self._folder, self._keep = ctx, folder, keep
        self.trial_dir = str(folder)

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None and self.ctx.rank == 0:
            kept = self._kept()
            number = int(kept[-1].name.rpartition("_")[2]) + 1 if kept else 0
            writing = self._folder / ".writing"
            shutil.rmtree(writing, ignore_errors=True)
            shutil.copytree(checkpoint.path, writing)
            writing.rename(self._folder / f"checkpoint_{number:06d}")
            for old in self._kept()[: -self._keep] if self._keep else []:
                shutil.rmtree(old)
        self.ctx.report(metrics)

    def _kept(self) -> list[Path]:
        return sorted(self._folder.glob("checkpoint_*"))

    @property
    def checkpoint(self) -> Checkpoint | None:
        kept = self._kept()
        return Checkpoint(str(kept[-1])) if kept else None

    def get_world_rank(self) -> int:
        return int(self.ctx.rank)

    def get_world_size(self) -> int:
        return int(self.ctx.world_size)

    get_local_rank, get_local_world_size = get_world_rank, get_world_size

    def get_node_rank(self) -> int:
        return 0

    def get_trial_dir(self) -> str:
        return self.trial_dir

    def get_experiment_name(self) -> str:
        return self._folder.name


@dataclass
class _Loop:
    function: Callable[..., Any]
    folder: str
    keep: int | None

    def __call__(self, ctx: Any, config: dict[str, Any]) -> None:
        with running(_RankSession(ctx, Path(self.folder), self.keep)):
            if inspect.signature(self.function).parameters:
                self.function(config)
            else:
                self.function()


class TorchTrainer:
    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        torch_config: Any = None,
        datasets: Any = None,
        resume_from_checkpoint: Checkpoint | None = None,
        **others: Any,
    ) -> None:
        if datasets or others:
            raise ConfigError(
                f"TorchTrainer has no {', '.join(['datasets'] * bool(datasets) + list(others))} here: there is no Ray "
                "Data; make the loader in the loop"
            )
        self._loop, self._config = train_loop_per_worker, dict(train_loop_config or {})
        self._scaling, self._run = scaling_config or ScalingConfig(), run_config or RunConfig()
        self._from = resume_from_checkpoint

    def fit(self) -> Result:
        """Run the loop on every worker; what it raises is raised here."""
        from rlplat.data_parallel import TorchTrainer as Ours

        name = self._run.name or f"train-{datetime.now():%Y%m%d-%H%M%S}"
        folder = Path(self._run.storage_path or "runs").expanduser().absolute() / name
        folder.mkdir(parents=True, exist_ok=True)
        if self._from is not None and not list(folder.glob("checkpoint_*")):
            shutil.copytree(self._from.path, folder / "checkpoint_000000")
        checkpoints = self._run.checkpoint_config
        scaling = self._scaling
        resources = {key.lower(): value for key, value in (scaling.resources_per_worker or {}).items()}
        if scaling.use_gpu:
            resources.setdefault("gpu", 1)
        result = Ours(
            _Loop(self._loop, str(folder), checkpoints.num_to_keep if checkpoints else None),
            self._config,
            num_workers=scaling.num_workers,
            use_gpu=scaling.use_gpu,
            resources={"cpu": 1, **resources} if resources else None,
            max_failures=self._run.failure_config.max_failures if self._run.failure_config else 0,
        ).fit()
        newest = sorted(folder.glob("checkpoint_*"))
        found = Result(
            result.metrics, Checkpoint(str(newest[-1])) if newest else None, str(folder), config=self._config
        )
        try:
            import pandas

            found.metrics_dataframe = pandas.DataFrame(result.history)
        except ImportError:
            pass
        return found


def get_device() -> Any:
    return current().ctx.device  # type: ignore[attr-defined]


def prepare_model(model: Any, move_to_device: bool = True, **ddp_options: Any) -> Any:
    import torch

    ctx = current().ctx  # type: ignore[attr-defined]
    model = model.to(ctx.device) if move_to_device else model
    if ctx.world_size == 1:
        return model
    return torch.nn.parallel.DistributedDataParallel(model, **ddp_options.get("parallel_strategy_kwargs", {}))


def prepare_data_loader(loader: Any, add_dist_sampler: bool = True, move_to_device: bool = True) -> Any:
    """The rank's share of the loader, moved to its device."""
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

    ctx = current().ctx  # type: ignore[attr-defined]
    if ctx.world_size > 1 and add_dist_sampler and not isinstance(loader.sampler, DistributedSampler):
        if type(loader.sampler) not in (RandomSampler, SequentialSampler):
            raise ConfigError(f"prepare_data_loader cannot share out a {type(loader.sampler).__name__}")
        shuffle = isinstance(loader.sampler, RandomSampler)
        loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=DistributedSampler(loader.dataset, ctx.world_size, ctx.rank, shuffle=shuffle),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
        )
    return _Moved(loader, ctx.device) if move_to_device and ctx.device.type != "cpu" else loader


class _Moved:
    """A loader whose batches are on a device."""

    def __init__(self, loader: Any, device: Any) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Any:
        from torch.utils._pytree import tree_map

        there = lambda leaf: leaf.to(self._device, non_blocking=True) if hasattr(leaf, "to") else leaf  # noqa: E731
        return (tree_map(there, batch) for batch in self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def __getattr__(name: str) -> Any:
    if name == "torch":
        import importlib

        return importlib.import_module("rlplat.compat.ray.train.torch")
    raise AttributeError(f"rlplat.compat.ray.train has no {name!r}; rlplat's own is in docs/data-parallel.md")
