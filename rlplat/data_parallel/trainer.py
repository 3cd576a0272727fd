"""`TorchTrainer`: data-parallel training from the driver's side, in two forms (docs/data-parallel.md). No torch here.

Both stand on one group of ranks (`group.RankGroup`), one context in each of them (`torch.context`), one form of states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlplat.data_parallel.both_forms import Trainer
from rlplat.data_parallel.reports import merged_state
from rlplat.data_parallel.settings import TorchOptions, TrainerSettings
from rlplat.errors import ConfigError

if TYPE_CHECKING:
    from rlplat.data_parallel.torch.operator import TrainingOperator

STEP_FREQUENCIES = ("epoch", "batch", "manual")


class TorchTrainer(Trainer):
    name = "TorchTrainer"
    program = "rlplat.data_parallel.torch.program:TorchProgram"

    def __init__(
        self,
        train_loop: Callable[..., Any] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        model_creator: Callable[..., Any] | None = None,
        data_creator: Callable[..., Any] | None = None,
        optimizer_creator: Callable[..., Any] | None = None,
        loss_creator: Callable[..., Any] | None = None,
        scheduler_creator: Callable[..., Any] | None = None,
        training_operator_cls: type[TrainingOperator] | None = None,
        scheduler_step_freq: str = "epoch",
        use_tqdm: bool = False,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        keep: int = 3,
        num_workers: int | tuple[int, int] = 1,
        use_gpu: bool = False,
        use_fp16: bool = False,
        resources: Mapping[str, float] | None = None,
        seed: int = 0,
        max_failures: int = 3,
        hang_timeout_s: float = 120.0,
        place_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        """train_loop(ctx, config): runs on every rank (`torch.context.Context`), by `fit`. Or creators, or an operator
        class (`torch.operator.TrainingOperator`), for `train` and `validate`. config: what they are given.

        out: a directory for checkpoints, the newest `keep`; resume: continue from the newest valid one there.
        use_fp16: precision="float16". scheduler_step_freq: "epoch", "batch", "manual" (RaySGD's).
        num_workers, use_gpu, ...: see `TrainerSettings`; options: see `settings.TorchOptions`.
        """
        if use_fp16:
            options.setdefault("precision", "float16")
        given = locals()
        settings = TrainerSettings(**{name: given[name] for name in TrainerSettings.model_fields})
        torch_options = options_of(options, settings.demand)
        super().__init__(settings, torch_options, config, train_loop, out=out, resume=resume, keep=keep)
        creators = (model_creator, data_creator, optimizer_creator, loss_creator, scheduler_creator)
        self._creators = dict(zip(("model", "data", "optimizer", "loss", "scheduler"), creators, strict=True))
        self._operator = training_operator_cls
        if sum([train_loop is not None, model_creator is not None or training_operator_cls is not None]) != 1:
            raise ConfigError(
                "TorchTrainer takes a function train_loop(ctx, config), or creators (model_creator=, ...), or "
                "training_operator_cls=; one of these forms"
            )
        if scheduler_step_freq not in STEP_FREQUENCIES:
            raise ConfigError(
                f"scheduler_step_freq must be one of {', '.join(STEP_FREQUENCIES)}, not {scheduler_step_freq!r}"
            )
        self._ways = {"use_tqdm": use_tqdm, "scheduler_step_freq": scheduler_step_freq}
        if train_loop is None:
            self._begin()

    def state_dict(self) -> dict[str, Any]:
        """All that a training continues from, as torch tensors: `models`, `optimizers`, ...; for `torch.save`."""
        from rlplat.data_parallel.torch.states import decode

        state: dict[str, Any] = decode(self.current_state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        from rlplat.data_parallel.torch.states import encode

        self.load_encoded(encode(dict(state)))

    def get_model(self) -> Any:
        """The trained module (a list, where there are several), on the CPU."""
        models = self._opened().call_first("model")
        return models[0] if len(models) == 1 else models

    def apply_all_operators(self, function: Callable[[TrainingOperator], Any]) -> list[Any]:
        """What it returns of each rank. What it changes is kept: a rank that is lost begins again with it."""
        with_state = self.settings.max_failures > 0
        answers = self._on_ranks("apply_to_operator", function, with_state)
        if with_state:
            self._keep_state(merged_state([state for _, state in answers]))
        return [answer for answer, _ in answers]

    def _parts(self) -> tuple[Any, ...]:
        return self._operator, self._creators, self._ways


def options_of(given: dict[str, Any], demand: Mapping[str, float]) -> dict[str, Any]:
    """The checked settings of torch, for each rank; demand: of a rank, by the cluster's names."""
    options = TorchOptions(**given)
    if 0 < demand.get("GPU", 0) < 1:
        if options.backend == "nccl":
            raise ConfigError("nccl refuses two ranks on one GPU: backend='gloo', or a whole GPU for each rank")
        return dict(options) | {"backend": options.backend or "gloo"}
    return dict(options)
