"""RaySGD (`ray.util.sgd.torch`, 2019 to 2021): `TorchTrainer` with creator functions, `TrainingOperator`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rlplat.data_parallel import TorchTrainer as _TorchTrainer
from rlplat.data_parallel import TrainingOperator
from rlplat.errors import ConfigError

__path__: list[str] = []  # its modules are found by the package's finder
__all__ = ["PyTorchTrainer", "TorchTrainer", "TrainingOperator"]

BATCH_SIZE, NUM_SAMPLES, SCHEDULER_STEP = "*batch_size", "num_samples", "scheduler_step"
_CHANGES_NO_RESULT = (
    "add_dist_sampler apex_args ddp_args log_interval scheduler_step_freq_ serialize_data_creation timeout_s use_local "
    "wrap_ddp wrap_distributed_sampler".split()
)


class TorchTrainer(_TorchTrainer):
    """`rlplat.data_parallel.TorchTrainer`, with RaySGD's argument names."""

    def __init__(
        self,
        *,
        num_workers: int | tuple[int, int] = 1,
        num_replicas: int | None = None,
        batch_size: int | None = None,
        initialization_hook: Any = None,
        num_cpus_per_worker: float = 1,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """num_replicas: the old name of num_workers; batch_size: of all workers together, `config[BATCH_SIZE]`."""
        workers = num_workers if num_replicas is None else num_replicas
        config = dict(config or {})
        for key in [key for key in settings if key in _CHANGES_NO_RESULT]:
            if settings.pop(key) not in (None, True, {}):
                print(f"rlplat: TorchTrainer({key}=...) says nothing here: docs/from-ray.md", file=sys.stderr)
        if initialization_hook is not None:
            raise ConfigError("TorchTrainer: initialization_hook is not here: call it in model_creator")
        if batch_size is not None:
            config[BATCH_SIZE] = max(1, batch_size // (workers if isinstance(workers, int) else workers[1]))
        if num_cpus_per_worker != 1:
            settings["resources"] = {
                "cpu": num_cpus_per_worker,
                **({"gpu": 1} if settings.get("use_gpu") else {}),
            }
        super().__init__(config=config, num_workers=workers, **settings)

    def train(self, num_steps: int | None = None, **others: Any) -> dict[str, Any]:  # type: ignore[override]
        """One epoch (or `num_steps` batches) on all workers: the means of what it measured."""
        return super().train(num_steps, info=_info(others))

    def validate(self, num_steps: int | None = None, **others: Any) -> dict[str, Any]:  # type: ignore[override]
        return super().validate(num_steps, info=_info(others))

    def shutdown(self, force: bool = False) -> None:
        super().shutdown()


def _info(others: dict[str, Any]) -> Any:
    """The `info` of `train(...)`; what else RaySGD took (profile, reduce_results, max_retries, checkpoint) changes no
    result, but reduce_results."""
    info = others.pop("info", None)
    if others.pop("reduce_results", True) is not True:
        raise ConfigError(
            "TorchTrainer: reduce_results=False is not here: apply_all_operators reads each worker"
        )
    unknown = set(others) - {"profile", "max_retries", "checkpoint"}
    if unknown:
        raise ConfigError(f"TorchTrainer: no argument {', '.join(sorted(unknown))}")
    return info


class PyTorchTrainer(TorchTrainer):
    """Of 2019: the creators come first, by position."""

    def __init__(
        self,
        model_creator: Any,
        data_creator: Any,
        optimizer_creator: Any,
        loss_creator: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            model_creator=model_creator,
            data_creator=data_creator,
            optimizer_creator=optimizer_creator,
            loss_creator=loss_creator,
            **settings,
        )


def __getattr__(name: str) -> Any:
    if name == "torch":
        return sys.modules[__name__]
    raise AttributeError(f"rlplat.compat.ray.util.sgd has no {name!r}")
