"""What a trainer was told, checked in the driver before anything starts. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import rlplat
from rlplat.data_parallel.group import PLACE_S, RankGroup
from rlplat.errors import ConfigError, InfeasibleResources


@dataclass(frozen=True)
class TrainerSettings:
    num_workers: int | tuple[int, int] = 1
    """Ranks; (least, most): as many as there is room for, at the beginning, after a loss and at a checkpoint."""
    use_gpu: bool = False
    """A GPU for each rank."""
    resources: Mapping[str, float] | None = None
    """Of each rank, e.g. {"cpu": 2, "gpu": 0.5}; None: one CPU, and a GPU with `use_gpu`."""
    seed: int = 0
    max_failures: int = 3
    """Losses of ranks in a row, without a new checkpoint in between, before the run is given up."""
    hang_timeout_s: float = 120.0
    """How long ranks wait for one that does not take part in an exchange, before it counts as lost."""
    place_timeout_s: float = PLACE_S
    """How long to wait for room for all ranks, before fewer are taken, or the run is given up."""

    def __post_init__(self) -> None:
        least, most = self.num_ranks
        if not 1 <= least <= most:
            raise ConfigError(
                f"num_workers must be a number of ranks from 1 on, or (least, most), not {self.num_workers!r}"
            )
        if not self.hang_timeout_s > 0:
            raise ConfigError(f"hang_timeout_s must be seconds above 0, not {self.hang_timeout_s!r}")
        demand = self.demand
        if not demand or any(not amount > 0 for amount in demand.values()):
            raise ConfigError(f"resources must be amounts above 0 for each rank, not {self.resources!r}")

    @property
    def num_ranks(self) -> tuple[int, int]:
        given = self.num_workers
        if isinstance(given, (tuple, list)) and len(given) == 2 and all(type(one) is int for one in given):
            return given[0], given[1]
        return (given, given) if type(given) is int else (0, 0)

    @property
    def demand(self) -> dict[str, float]:
        """Of each rank, by the cluster's names."""
        names = {"cpu": "CPU", "gpu": "GPU"}
        given = self.resources or ({"cpu": 1.0, "gpu": 1.0} if self.use_gpu else {"cpu": 1.0})
        return {names.get(name, name): float(amount) for name, amount in given.items()}

    def check_against_cluster(self) -> None:
        """InfeasibleResources for what the cluster does not have."""
        total = rlplat.cluster_resources()
        for name, amount in self.demand.items():
            if amount * self.num_ranks[0] > total.get(name, 0.0):
                less = "use_gpu=False" if name == "GPU" else "resources={...} with less of it"
                raise InfeasibleResources(
                    f"num_workers={self.num_workers} ranks take {amount * self.num_ranks[0]:g} {name}, and the cluster "
                    f"has {total.get(name, 0.0):g}: fewer num_workers, or {less}"
                )

    def open_group(self, program: str, options: dict[str, Any], num_now: int | None = None) -> RankGroup:
        """num_now: ranks to wait for; None: the most."""
        return RankGroup(
            program,
            self.num_ranks,
            self.demand,
            seed=self.seed,
            hang_timeout_s=self.hang_timeout_s,
            options=options,
            patience_s=self.place_timeout_s,
            num_now=num_now,
        )


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
