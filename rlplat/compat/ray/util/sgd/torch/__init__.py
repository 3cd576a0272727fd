"""`ray.util.sgd.torch`: RaySGD's trainer with creator functions, on `rlplat.data_parallel.TorchTrainer`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch as pytorch

import rlplat
from rlplat import data_parallel
from rlplat.compat.ray.refusals import check
from rlplat.compat.ray.util.sgd import utils
from rlplat.errors import OptionError

_CREATORS = ("model_creator", "optimizer_creator", "data_creator", "loss_creator", "scheduler_creator")
_NOT_HERE = {
    "apex_args": "use_fp16=True is torch.autocast",
    "ddp_args": "find_unused_parameters= of rlplat.data_parallel.TorchTrainer",
    "data_loader_args": "arguments of the DataLoader in data_creator",
    "batch_size": "the DataLoader in data_creator has it; config={'batch_size': ...}",
    "train_function": "training_operator_cls, with train_epoch",
    "validation_function": "training_operator_cls, with validate",
    "use_local": "num_workers=1",
    "profile": "torch.profiler in training_operator_cls",
}
_NO_EFFECT = ("add_dist_sampler", "wrap_ddp", "serialize_data_creation", "max_retries")
"""add_dist_sampler, wrap_ddp: samples are divided and models are wrapped in any case."""


class TrainingOperator(data_parallel.TrainingOperator):
    creators: Mapping[str, Any] = {}

    @classmethod
    def from_creators(cls, *parts: Any, **named: Any) -> type[TrainingOperator]:
        return type("CreatorOperator", (cls,), {"creators": {**dict(zip(_CREATORS, parts, strict=False)), **named}})

    @property
    def device_ids(self) -> list[int]:
        return [0] if self.use_gpu else []


class TorchTrainer(data_parallel.TorchTrainer):
    def __init__(
        self,
        model_creator: Callable[..., Any] | None = None,
        data_creator: Callable[..., Any] | None = None,
        optimizer_creator: Callable[..., Any] | None = None,
        loss_creator: Callable[..., Any] | None = None,
        scheduler_creator: Callable[..., Any] | None = None,
        training_operator_cls: type[Any] | None = None,
        initialization_hook: Callable[..., Any] | None = None,
        config: Mapping[str, Any] | None = None,
        num_workers: int | None = None,
        num_replicas: int | None = None,
        num_cpus_per_worker: float = 1,
        use_gpu: bool | str = "auto",
        backend: str = "auto",
        use_fp16: bool = False,
        use_tqdm: bool = False,
        scheduler_step_freq: str | None = None,
        timeout_s: float = 1800.0,
        **others: Any,
    ) -> None:
        """num_replicas: num_workers of before 2020. scheduler_step_freq: None: "batch", as in 2020.
        timeout_s: for ranks that do not take part in an exchange."""
        parts = dict(getattr(training_operator_cls, "creators", {}))
        parts |= {name: value for name, value in locals().items() if name in _CREATORS and value is not None}
        ours = {key: others.pop(key) for key in ("seed", "max_failures", "out", "resume") if key in others}
        check("TorchTrainer", others, _NOT_HERE, _NO_EFFECT)
        if num_workers is not None and num_replicas is not None:
            raise OptionError("num_replicas is the old name of num_workers: give one of them")
        operator = training_operator_cls
        if use_fp16 and operator is not None and operator.train_batch is not data_parallel.TrainingOperator.train_batch:
            raise OptionError(
                "use_fp16=True with a train_batch of your own, whose loss.backward() is not scaled: take "
                "precision='bfloat16' of rlplat.data_parallel.TorchTrainer"
            )
        if initialization_hook is not None:
            operator = _after(initialization_hook, operator or TrainingOperator)
        gpu = rlplat.is_initialized() and rlplat.cluster_resources().get("GPU", 0) > 0 if use_gpu == "auto" else use_gpu
        super().__init__(
            config=config,
            **parts,
            training_operator_cls=operator,
            scheduler_step_freq=scheduler_step_freq or "batch",
            use_tqdm=use_tqdm,
            num_workers=num_workers or num_replicas or 1,
            use_gpu=bool(gpu),
            resources={"cpu": num_cpus_per_worker, **({"gpu": 1} if gpu else {})},
            use_fp16=use_fp16,
            backend=None if backend == "auto" else backend,
            hang_timeout_s=timeout_s,
            **ours,
        )

    def train(self, num_steps: int | None = None, info: Any = None, **others: Any) -> dict[str, Any]:
        _check_call("train", others)
        return super().train(num_steps, info)

    def validate(self, num_steps: int | None = None, info: Any = None, **others: Any) -> dict[str, Any]:
        _check_call("validate", others)
        return super().validate(num_steps, info)

    def save(self, path: Any) -> Any:
        """One file, of `torch.save`."""
        pytorch.save(self.state_dict(), path)
        return path

    def load(self, path: Any) -> None:
        self.load_state_dict(pytorch.load(Path(path), weights_only=True))

    restore = load

    @classmethod
    def as_trainable(cls, *form: Any, **settings: Any) -> Any:
        """For tune.run; a trial has the CPUs of all its ranks."""
        made = super().as_trainable(*form, **settings)
        num = settings.get("num_workers") or settings.get("num_replicas") or 1
        gpu = {"gpu": num} if settings.get("use_gpu") is True else {}
        made.resources = {"cpu": num * settings.get("num_cpus_per_worker", 1), **gpu}
        return made


def _check_call(verb: str, others: dict[str, Any]) -> None:
    if not others.pop("reduce_results", True):
        raise OptionError(f"{verb}(reduce_results=False) is not here: apply_all_operators reads each rank")
    check(verb, others, _NOT_HERE, _NO_EFFECT)


def _after(hook: Callable[..., Any], operator: type[Any]) -> type[Any]:
    """The same, on each rank after the hook."""

    class Operator(operator):
        def __init__(self, *parts: Any) -> None:
            hook()
            super().__init__(*parts)

    Operator.__name__ = operator.__name__
    return Operator


class PyTorchTrainer(TorchTrainer):
    """`ray.experimental.sgd.pytorch`, of 2019: data_creator returns data sets, and `batch_size` is of all ranks."""

    def __init__(
        self, model_creator: Any, data_creator: Any, optimizer_creator: Any, *parts: Any, **settings: Any
    ) -> None:
        num = settings.get("num_replicas") or settings.get("num_workers") or 1
        size = max(1, settings.pop("batch_size", 16) // num)

        def loaders(config: dict[str, Any]) -> Any:
            made = data_creator(config)
            listed = made if isinstance(made, tuple | list) else (made,)
            loader = pytorch.utils.data.DataLoader
            return tuple(
                one if isinstance(one, loader) else loader(one, size, shuffle=not i) for i, one in enumerate(listed)
            )

        settings.setdefault("scheduler_step_freq", "epoch")
        super().__init__(model_creator, loaders, optimizer_creator, *parts, **settings)


for _name in ("torch_trainer", "training_operator"):
    sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]
sys.modules[f"{__name__}.constants"] = utils
