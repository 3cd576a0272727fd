"""`TorchProgram`: what the process of a rank does, as the driver tells it (see `rank.Rank`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo  # by the first step of an optimizer anyway, then in each rank: a second
import torch.distributed as dist

from rlplat.data_parallel.rank import RankProgram, RankSettings, Reporting
from rlplat.data_parallel.settings import TorchOptions
from rlplat.data_parallel.torch import process_group
from rlplat.data_parallel.torch.context import Context
from rlplat.data_parallel.torch.operator import Creators, TrainingOperator
from rlplat.errors import ConfigError
from rlplat.given.global_random import seed_everything


class TorchProgram(RankProgram):
    equal_data = (
        "Give the loader to ctx.prepare (or self.register_data), which gives each rank as many batches, and call "
        "ctx.report on every rank"
    )
    _operator: TrainingOperator
    """From `set_up` on."""

    def __init__(self, settings: RankSettings) -> None:
        super().__init__(settings)
        self._options = TorchOptions(**settings.options)
        if settings.num_cpus >= 1:
            torch.set_num_threads(int(settings.num_cpus))
        self.device = torch.device("cuda" if settings.use_gpu else "cpu")
        if settings.use_gpu and not torch.cuda.is_available():
            raise RuntimeError(f"rank {settings.rank} was given a GPU, and torch sees none ({torch.__version__})")
        if self._options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        seed_everything(settings.seed)  # alike on all ranks until the model is there
        self._context: Context | None = None

    def open_door(self, hosts: Sequence[str]) -> tuple[str, int] | None:
        """Where the others find rank 0: (host, port)."""
        return process_group.open_store(hosts[0]) if self.settings.rank == 0 else None

    def join(self, doors: Sequence[tuple[str, int]]) -> None:
        settings, backend = self.settings, self._options.backend or ("nccl" if self.settings.use_gpu else "gloo")
        place: dict[str, Any] = {"rank": settings.rank, "world_size": settings.world_size}
        process_group.join(*doors[0], **place, backend=backend, timeout_s=settings.hang_timeout_s)

    def context_of(self, report: Reporting, checkpoint: dict[str, Any] | None) -> Context:
        self._context = Context(self.settings, self.device, report, checkpoint)
        return self._context

    # ---------------------------------------------------------------- a training operator

    def set_up(
        self,
        operator: type[TrainingOperator] | None,
        creators: Creators,
        ways: dict[str, Any],
        config: dict[str, Any],
        checkpoint: dict[str, Any] | None,
    ) -> None:
        context = self.context_of(_no_report, checkpoint)
        self._operator = (operator or TrainingOperator)(context, dict(config), creators, ways)
        if checkpoint and context.checkpoint:
            self._operator.epoch = context.checkpoint["epoch"]
            self._operator.global_step = context.checkpoint["global_step"]
            self._operator.load_state_dict(context.checkpoint["operator"])
        context.begin_drawing()

    def train_epoch(
        self, num_steps: int | None, info: dict[str, Any], with_state: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(stats, state after it)."""
        stats = self._operator.run_epoch(num_steps, info)
        return stats, self.state() if with_state else None

    def validate(self, num_steps: int | None, info: dict[str, Any]) -> dict[str, Any]:
        return self._operator.run_validation(num_steps, info)

    def state(self) -> dict[str, Any]:
        """As `Context.state`; on every rank at once."""
        assert self._context is not None
        operator = self._operator
        return self._context.state(
            {"epoch": operator.epoch, "global_step": operator.global_step, "operator": operator.state_dict()}
        )

    def has_validation(self) -> bool:
        return self._operator.validation_loader is not None

    def apply_to_operator(
        self, function: Callable[[TrainingOperator], Any], with_state: bool
    ) -> tuple[Any, dict[str, Any] | None]:
        answer = function(self._operator)
        return answer, self.state() if with_state else None

    def model(self) -> Any:
        assert self._context is not None
        return self._context.plain_models()

    def broken_exchange(self, error: BaseException) -> str | None:
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
            return str(error).splitlines()[0]
        return None

    @property
    def num_steps(self) -> int:
        return self._context.num_steps if self._context else 0


def _no_report(metrics: dict[str, Any], state: dict[str, Any] | None) -> None:
    raise ConfigError("ctx.report is for training functions; a training operator returns its metrics")
