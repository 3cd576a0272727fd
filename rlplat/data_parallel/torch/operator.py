"""`TrainingOperator`: the parts of a training and what is done with a batch; for trainers that are told epoch by epoch.

RaySGD's names: `train_batch`, `validate_batch`, `train_epoch` and `validate` may be overridden. Where a
trainer is given creators, `setup` may add to what they make.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from rlplat.data_parallel.torch.context import Context
from rlplat.errors import ConfigError
from rlplat.given.say import write

NUM_SAMPLES = "num_samples"
Creators = dict[str, Callable[..., Any] | None]


class TrainingOperator:
    model: Any = None
    optimizer: Any = None
    criterion: Any = None
    scheduler: Any = None

    def __init__(self, context: Context, config: dict[str, Any], creators: Creators, ways: dict[str, Any]) -> None:
        """creators: `model`, `data`, `optimizer`, `loss`, `scheduler`; none: `setup` registers all of it.
        ways: use_tqdm, scheduler_step_freq."""
        self.context, self.config = context, config
        self.world_rank, self.world_size, self.device = context.rank, context.world_size, context.device
        self.use_gpu = context.device.type == "cuda"
        self.train_loader: Any = None
        self.validation_loader: Any = None
        self.epoch = 0
        """Epochs trained so far."""
        self.global_step = 0
        """Batches of this rank so far."""
        self._ways = ways
        self._schedulers: list[Any] = []
        if creators.get("model"):
            self._create(creators)
        self.setup(config)
        if self.model is None:
            raise ConfigError(
                f"rank {self.world_rank}: {type(self).__name__}.setup has not registered a model: "
                "self.model, self.optimizer, self.criterion = self.register(models=..., optimizers=..., criterion=...)"
            )

    def setup(self, config: dict[str, Any]) -> None:
        """Called once; with creators their parts are there already."""

    # ---------------------------------------------------------------- registering

    def register(
        self, *, models: Any, optimizers: Any, criterion: Any = None, schedulers: Any = None
    ) -> tuple[Any, ...]:
        """The same things, prepared: (models, optimizers, criterion[, schedulers]), as one or as a list, as given."""
        given = [_listed(models), _listed(optimizers), _listed(schedulers)]
        for kind, things in zip(("models", "optimizers", "schedulers"), given, strict=True):
            if (kind != "schedulers" and not things) or any(one is None for one in things):
                raise ConfigError(f"rank {self.world_rank}: register(...) was given no {kind}")
        flat = [thing for things in given for thing in things]
        prepared = iter(_listed(self.context.prepare(*flat)) if len(flat) == 1 else self.context.prepare(*flat))
        done = [[next(prepared) for _ in things] for things in given]
        if isinstance(criterion, nn.Module):
            criterion = criterion.to(self.device)
        self.model, self.optimizer = done[0][0], done[1][0]
        self.scheduler, self.criterion = (done[2] or [None])[0], criterion
        parts = [
            made if isinstance(one, (list, tuple)) else made[0]
            for one, made in zip((models, optimizers), done[:2], strict=True)
        ]
        scheduler = done[2] if isinstance(schedulers, (list, tuple)) else self.scheduler
        self._schedulers = done[2]
        return (*parts, criterion, scheduler) if schedulers is not None else (*parts, criterion)

    def register_data(self, *, train_loader: Any = None, validation_loader: Any = None) -> None:
        if train_loader is not None:
            self.train_loader = self.context.prepare(train_loader)
        if validation_loader is not None:
            self.validation_loader = self.context.prepare(validation_loader)

    def _create(self, creators: Creators) -> None:
        config = self.config
        model = self._made(creators, "model", config)
        optimizer = self._made(creators, "optimizer", model, config)
        criterion = self._made(creators, "loss", config) if creators.get("loss") else None
        schedulers = self._made(creators, "scheduler", optimizer, config) if creators.get("scheduler") else None
        self.register(models=model, optimizers=optimizer, criterion=criterion, schedulers=schedulers)
        if creators.get("data"):
            loaders = self._made(creators, "data", config)
            train, validation = loaders if isinstance(loaders, (tuple, list)) else (loaders, None)
            self.register_data(train_loader=train, validation_loader=validation)

    def _made(self, creators: Creators, kind: str, *arguments: Any) -> Any:
        creator = creators[kind]
        if creator is None:
            raise ConfigError(f"rank {self.world_rank}: a trainer with model_creator needs {kind}_creator as well")
        if inspect.isclass(creator) and creator.__module__.startswith("torch.nn."):
            made = creator()
        else:
            made = creator(*arguments)
        if made is None:
            name = getattr(creator, "__name__", repr(creator))
            raise ConfigError(f"rank {self.world_rank}: {kind}_creator ({name}) returned None: end it with `return`")
        return made

    # ---------------------------------------------------------------- training

    def train_epoch(self, iterator: Iterable[Any], info: dict[str, Any]) -> dict[str, Any]:
        """One pass; -> the mean of what `train_batch` returns, and its last values as `last_...`."""
        self.context.set_training(True)
        means = Means()
        for number, batch in enumerate(iterator):
            result = self.train_batch(batch, {"batch_idx": number, "global_step": self.global_step, **info})
            self.global_step += 1
            if self._ways["scheduler_step_freq"] == "batch" and self.context.sync_gradients:
                self._step_schedulers()
            means.add(result, self._num_counted(batch, result))
        if self._ways["scheduler_step_freq"] == "epoch":
            self._step_schedulers()
        return means.summary()

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """One batch: (features..., target), on the device; -> metrics, `train_loss` among them."""
        *features, target = batch
        loss = self._loss(self.model(*features), target)
        self.optimizer.zero_grad()
        self.context.backward(loss)
        self.optimizer.step()
        return {"train_loss": loss.item(), NUM_SAMPLES: _length(batch)}

    def validate(self, iterator: Iterable[Any], info: dict[str, Any]) -> dict[str, Any]:
        self.context.set_training(False)
        means = Means()
        with torch.no_grad():
            for number, batch in enumerate(iterator):
                result = self.validate_batch(batch, {"batch_idx": number, **info})
                means.add(result, self._num_counted(batch, result))
        return means.summary()

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        """-> `val_loss`, and `val_accuracy` where the target is a class."""
        *features, target = batch
        output = self.model(*features)
        metrics = {"val_loss": self._loss(output, target).item(), NUM_SAMPLES: _length(batch)}
        if target.dtype == torch.long and output.ndim == target.ndim + 1:
            metrics["val_accuracy"] = (output.argmax(1) == target).float().mean().item()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What a subclass keeps beside what is registered; rank 0's is saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def _loss(self, output: Any, target: Any) -> Any:
        if self.criterion is None:
            raise ConfigError(
                f"rank {self.world_rank}: there is no loss: loss_creator=, or register(criterion=...), or a "
                "train_batch of your own"
            )
        return self.criterion(output, target)

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.step()

    def _num_counted(self, batch: Any, result: dict[str, Any]) -> int:
        """0 for the sample that a rank is given because none is left for it."""
        return int(result.get(NUM_SAMPLES, _length(batch))) if self.context.batch_weight else 0

    # ---------------------------------------------------------------- what the trainer asks for

    def run_epoch(self, num_steps: int | None, info: dict[str, Any]) -> dict[str, Any]:
        if self.train_loader is None:
            raise ConfigError(f"rank {self.world_rank}: there is no training data: data_creator, or register_data")
        stats = self.train_epoch(self._shown(self.train_loader, num_steps), info)
        if not isinstance(stats, dict):
            raise ConfigError(
                f"rank {self.world_rank}: {type(self).__name__}.train_epoch returned {type(stats).__name__}: return a "
                "dict of metrics"
            )
        self.epoch += 1
        return {"epoch": self.epoch, **stats}

    def run_validation(self, num_steps: int | None, info: dict[str, Any]) -> dict[str, Any]:
        if self.validation_loader is None:
            raise ConfigError(
                f"rank {self.world_rank}: there is no validation data: return (train_loader, validation_loader) from "
                "data_creator"
            )
        return self.validate(_first(self.validation_loader, num_steps), info)

    def _shown(self, loader: Any, num_steps: int | None) -> Iterable[Any]:
        batches = _first(loader, num_steps)
        if not self._ways["use_tqdm"] or self.world_rank:
            return batches
        from tqdm import tqdm

        total = len(loader) if num_steps is None else min(num_steps, len(loader))
        return tqdm(batches, f"epoch {self.epoch + 1}", total, file=_Lines(), mininterval=1.0, ncols=80)


class Means:
    """Means of metrics over batches of unequal length."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._last: dict[str, Any] = {}
        self._num_samples = self._num_batches = 0

    def add(self, metrics: dict[str, Any], num_samples: int) -> None:
        self._num_batches += 1
        self._num_samples += num_samples
        for name, value in metrics.items():
            if name != NUM_SAMPLES:
                self._last[name] = value.item() if hasattr(value, "item") else value
                self._sums[name] += self._last[name] * num_samples

    def summary(self) -> dict[str, Any]:
        means = {name: total / max(1, self._num_samples) for name, total in self._sums.items()}
        last = {f"last_{name}": value for name, value in self._last.items()}
        return {"batch_count": self._num_batches, NUM_SAMPLES: self._num_samples, **means, **last}


class _Lines:
    """A progress bar's file: each state of the bar is a line of the rank's output."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            write(f"{line}\n")

    def flush(self) -> None:
        pass


def _listed(things: Any) -> list[Any]:
    if things is None:
        return []
    return list(things) if isinstance(things, (list, tuple)) else [things]


def _first(loader: Any, num_steps: int | None) -> Iterator[Any]:
    """The first batches of a pass, all of them by default."""
    for number, batch in enumerate(loader):
        yield batch
        if number + 1 == num_steps:
            return


def _length(batch: Any) -> int:
    first = batch
    while isinstance(first, (list, tuple, dict)):
        first = next(iter(first.values() if isinstance(first, dict) else first))
    return len(first)
