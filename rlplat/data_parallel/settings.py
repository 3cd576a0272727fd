"""What a trainer was told, checked in the driver before anything starts. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlplat.section import Count, CountOrZero, Seconds, Section
from rlplat.setting_types import Words

Amount = Annotated[float, Field(gt=0)]


class TrainerSettings(Section):
    num_workers: Annotated[Count | tuple[Count, Count], Words("a number of ranks from 1 on, or (least, most)")] = 1
    """Ranks; (least, most): as many as there is room for, at the beginning, after a loss and at a checkpoint."""
    use_gpu: bool = False
    """A GPU for each rank."""
    resources: dict[str, Amount] | None = None
    """Of each rank, e.g. {"cpu": 2, "gpu": 0.5}; None: one CPU, and a GPU with `use_gpu`."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    max_failures: CountOrZero = 3
    """Losses of ranks in a row, without a new checkpoint in between, before the run is given up."""
    hang_timeout_s: Seconds = 120.0
    """How long ranks wait for one that does not take part in an exchange, before it counts as lost."""
    place_timeout_s: Annotated[float, Field(ge=0)] = 60.0
    """How long to wait for room for all ranks, before fewer are taken, or the run is given up."""

    @field_validator("num_workers")
    @classmethod
    def _in_order(cls, given: Any) -> Any:
        if isinstance(given, tuple) and given[0] > given[1]:
            raise ValueError("must be (least, most)")
        return given

    @property
    def num_ranks(self) -> tuple[int, int]:
        given = self.num_workers
        return given if isinstance(given, tuple) else (given, given)

    @property
    def demand(self) -> dict[str, float]:
        """Of each rank, by the cluster's names."""
        names = {"cpu": "CPU", "gpu": "GPU"}
        given = self.resources or ({"cpu": 1.0, "gpu": 1.0} if self.use_gpu else {"cpu": 1.0})
        return {names.get(name, name): float(amount) for name, amount in given.items()}


class TorchOptions(Section):
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward pass (autocast); weights stay float32. float16 scales the loss."""
    sharding: Literal["none", "full"] = "none"
    """"full": parameters, gradients and optimizer states are divided among the ranks (FSDP2)."""
    accumulate: Count = 1
    """Batches of each rank in one step."""
    max_gradient_norm: Amount | None = None
    find_unused_parameters: bool = False
    compile: bool = False
    deterministic: bool = False
    """Only deterministic kernels: the same ranks give the same bits again."""
    backend: str | None = None
    """None: nccl on GPUs, gloo on CPUs."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.sharding == "full" and self.precision == "float16":
            raise ValueError("sharding='full' has no loss scaling: precision='bfloat16', or sharding='none'")
        if self.sharding == "full" and self.find_unused_parameters:
            raise ValueError("find_unused_parameters is DistributedDataParallel's: sharding='full' needs it not")
        return self
