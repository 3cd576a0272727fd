"""`ray.train` and `ray.train.torch`: a function on every rank; torch's own DistributedDataParallel, as in Ray."""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rlplat import data_parallel
from rlplat.compat.ray import session
from rlplat.compat.ray.refusals import check, refusing
from rlplat.compat.ray.session import Checkpoint, get_checkpoint, get_context, report
from rlplat.errors import OptionError
from rlplat.paths import expanded


@dataclass
class ScalingConfig:
    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None


@dataclass
class FailureConfig:
    max_failures: int = 0


@dataclass
class CheckpointConfig:
    num_to_keep: int | None = None
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None


@dataclass
class RunConfig:
    name: str | None = None
    storage_path: str | None = None
    stop: Any = None
    verbose: int | None = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None


@dataclass
class TorchConfig:
    backend: str | None = None


@dataclass
class Result:
    metrics: dict[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    path: str = ""
    error: Exception | None = None
    config: dict[str, Any] | None = None
    metrics_dataframe: Any = None


class Rank:
    """The session of a rank."""

    def __init__(self, ctx: Any, directory: Path) -> None:
        self._ctx, self.directory = ctx, directory
        self.rank, self.world_size, self.device = ctx.rank, ctx.world_size, ctx.device
        self.trial_id = directory.name
        self._last = ctx.checkpoint
        self._number = self._last["number"] if self._last else 0

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """The files of rank 0's checkpoint are copied into the run's directory."""
        self._number += 1
        path = self.directory / f"checkpoint_{self._number:06d}"
        if checkpoint is not None and self.rank == 0:
            shutil.copytree(checkpoint.path, path, dirs_exist_ok=True)
        state = {"number": self._number, "directory": str(path)}
        self._ctx.report(metrics, checkpoint=state if checkpoint is not None else False)

    def get_checkpoint(self) -> Checkpoint | None:
        return Checkpoint(self._last["directory"]) if self._last else None


class TorchTrainer:
    """`ray.train.torch.TorchTrainer`; what has creator functions is `ray.util.sgd.torch.TorchTrainer`."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., None],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        torch_config: TorchConfig | None = None,
        **others: Any,
    ) -> None:
        instead = {
            "datasets": "a torch DataLoader in the loop, train.torch.prepare_data_loader(loader)",
            "dataset_config": "a torch DataLoader in the loop",
            "metadata": "what the loop reports",
            "resume_from_checkpoint": "open it in the loop",
        }
        check("TorchTrainer", others, instead)
        self._loop, self._config = train_loop_per_worker, dict(train_loop_config or {})
        self._scaling, self._run = scaling_config or ScalingConfig(), run_config or RunConfig()
        self._torch = torch_config or TorchConfig()
        if self._run.stop:
            raise OptionError("RunConfig(stop=...) of a TorchTrainer is not here: return from the loop")

    def fit(self) -> Result:
        name = self._run.name or f"{getattr(self._loop, '__name__', 'train')}-{datetime.now():%Y%m%d-%H%M%S}"
        directory = expanded(Path(self._run.storage_path or "runs") / name).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        user_loop, takes_config = self._loop, bool(inspect.signature(self._loop).parameters)

        def loop(ctx: Any, config: dict[str, Any]) -> None:
            with session.running(Rank(ctx, directory)):
                user_loop(config) if takes_config else user_loop()

        resources = self._scaling.resources_per_worker
        lower = {"CPU": "cpu", "GPU": "gpu"}
        trainer = data_parallel.TorchTrainer(
            loop,
            self._config,
            num_workers=self._scaling.num_workers,
            use_gpu=self._scaling.use_gpu,
            resources=None if resources is None else {lower.get(key, key): n for key, n in resources.items()},
            max_failures=self._run.failure_config.max_failures if self._run.failure_config else 0,
            backend=self._torch.backend,
        )
        done = trainer.fit()
        saved = done.state["user"] if done.state else None
        return Result(done.metrics, Checkpoint(saved["directory"]) if saved else None, str(directory))


def get_device() -> Any:
    return _rank().device


def prepare_model(model: Any, **options: Any) -> Any:
    """On the rank's device, in DistributedDataParallel where there are several ranks."""
    from rlplat.compat.ray.torch_parallel import wrapped

    check(
        "prepare_model",
        options,
        {"parallel_strategy": "rlplat.data_parallel has sharding='full'"},
        ("move_to_device",),
    )
    return wrapped(model, _rank())


def prepare_data_loader(loader: Any, add_dist_sampler: bool = True, move_to_device: bool = True) -> Any:
    from rlplat.compat.ray.torch_parallel import sharded

    return sharded(loader, _rank(), add_dist_sampler, move_to_device)


def _rank() -> Rank:
    found = session.current()
    if not isinstance(found, Rank):
        raise OptionError("ray.train.torch is for the function of a TorchTrainer, which this is not")
    return found


torch = sys.modules[__name__]
for _name in ("torch", "session", "context", "data_parallel_trainer"):
    sys.modules[f"{__name__}.{_name}"] = torch


__path__: list[str] = []  # a package, so that `from` asks refusals.py for what is missing
__getattr__ = refusing(__name__)
