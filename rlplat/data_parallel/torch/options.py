"""What a user may choose of torch's ways, the same for all ranks. No torch here: the driver checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlplat.errors import ConfigError

PRECISIONS = ("float32", "bfloat16", "float16")
SHARDINGS = ("none", "full")


@dataclass(frozen=True)
class TorchOptions:
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward pass (autocast); weights stay float32. float16 scales the loss."""
    sharding: Literal["none", "full"] = "none"
    """"full": parameters, gradients and optimizer states are divided among the ranks (FSDP2)."""
    accumulate: int = 1
    """Batches of each rank in one step."""
    max_gradient_norm: float | None = None
    find_unused_parameters: bool = False
    compile: bool = False
    deterministic: bool = False
    """Only deterministic kernels: the same ranks give the same bits again."""
    backend: str | None = None
    """None: nccl on GPUs, gloo on CPUs."""

    def check(self) -> None:
        """ConfigError for a value that cannot be meant."""
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}")
        if self.sharding not in SHARDINGS:
            raise ConfigError(f"sharding must be 'none' or 'full' (FSDP), not {self.sharding!r}")
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ConfigError(f"accumulate must be a whole number of batches, not {self.accumulate!r}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise ConfigError(f"max_gradient_norm must be above 0, not {self.max_gradient_norm!r}")
        if self.sharding == "full" and self.precision == "float16":
            raise ConfigError("sharding='full' has no loss scaling: precision='bfloat16', or sharding='none'")
        if self.sharding == "full" and self.find_unused_parameters:
            raise ConfigError(
                "find_unused_parameters is DistributedDataParallel's: sharding='full' needs it not"
            )
