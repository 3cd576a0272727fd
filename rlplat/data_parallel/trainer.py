"""`TorchTrainer`: data-parallel training from the driver's side, in two forms. No torch here.

    result = TorchTrainer(train_loop, {"lr": 0.1}, num_workers=2, out="runs/demo").fit()

    trainer = TorchTrainer(model_creator=..., data_creator=..., optimizer_creator=..., loss_creator=nn.MSELoss,
                           config={"lr": 0.1}, num_workers=2)
    stats = trainer.train()                     # an epoch; RaySGD's interface
    trainer.shutdown()

Both stand on one group of ranks (`group.RankGroup`), one context in each of them (`torch.context`), one form of states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlplat.data_parallel.epochs import EpochTrainer, say_grown, say_lost
from rlplat.data_parallel.failures import RanksLost
from rlplat.data_parallel.group import RankGroup
from rlplat.data_parallel.rank import Turn
from rlplat.data_parallel.reports import Report, Result, merged_turns
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.data_parallel.torch.options import TorchOptions
from rlplat.errors import ConfigError

if TYPE_CHECKING:
    from rlplat.data_parallel.torch.operator import TrainingOperator

STEP_FREQUENCIES = ("epoch", "batch", "manual")


class TorchTrainer(EpochTrainer):
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
        num_workers, use_gpu, ...: see `TrainerSettings`; options: see `torch.options.TorchOptions`.
        """
        if use_fp16:
            options.setdefault("precision", "float16")
        settings = TrainerSettings(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources=resources,
            seed=seed,
            max_failures=max_failures,
            hang_timeout_s=hang_timeout_s,
            place_timeout_s=place_timeout_s,
        )
        torch_options = options_of(options, settings.demand)
        super().__init__(settings, torch_options, config, out=out, resume=resume, keep=keep)
        self._function = train_loop
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

    # ---------------------------------------------------------------- one function

    def fit(self) -> Result:
        """Run the function to its end."""
        result = self._begun()
        with self._open_runtime():
            self.settings.check_against_cluster()
            for report in self.reports(self.config, result.state, len(result.history)):
                del result.history[report.number - 1 :]  # those that were lost with their ranks
                result.history.append(report.metrics)
                result.num_restarts = report.num_restarts
                if report.state is not None:
                    result.state = report.state | {"history": list(result.history)}
                    if self._out is not None:
                        result.path = self._write(self._out, report.number, result.state)
        return result

    def reports(
        self, config: Mapping[str, Any], state: dict[str, Any] | None = None, number: int = 0
    ) -> Iterator[Report]:
        """What the ranks report, one after the other; they train on while the caller is busy with a report.

        state: a checkpoint to start from, made with report `number`. Closing the iterator ends the ranks.
        """
        if self._function is None:
            raise ConfigError("fit() is for a training function; with creators: train(), validate()")
        num_restarts = num_in_a_row = 0
        num_now: int | None = None
        while True:
            reported = number
            try:
                with self._open_group(num_now) as group:
                    group.call("begin", self._function, dict(config), state)
                    pending, num_now = group.start("advance"), None
                    while num_now is None:
                        turns: list[Turn] = group.finish(pending)
                        report = merged_turns(turns)
                        if report is None:
                            return
                        reported += 1
                        metrics, new_state = report
                        if new_state is not None:
                            state, number, num_in_a_row = new_state, reported, 0
                            num_now = group.num_growing()
                        if num_now is None:
                            pending = group.start("advance")
                        yield Report(reported, metrics, new_state, num_restarts)
                say_grown(num_now, f"report {number}, the last checkpoint")
            except RanksLost as lost:
                num_restarts += 1
                num_in_a_row += 1
                if num_in_a_row > self.settings.max_failures:
                    raise
                say_lost(
                    lost, f"report {number}, the last checkpoint" if state is not None else "the beginning"
                )

    # ---------------------------------------------------------------- epoch by epoch

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
        return self._on_ranks("apply_to_operator", function)

    def _parts(self) -> tuple[Any, ...]:
        return self._operator, self._creators, self._ways

    def _opened(self) -> RankGroup:
        if self._function is not None:
            raise ConfigError(
                "a trainer with a training function has fit(); train() and validate() need creators"
            )
        return super()._opened()


def options_of(given: dict[str, Any], demand: Mapping[str, float]) -> dict[str, Any]:
    """The checked settings of torch, for each rank; demand: of a rank, by the cluster's names."""
    known = TorchOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise ConfigError(
                f"TorchTrainer has no setting {name!r}; of torch's there are {', '.join(known)}"
            )
    options = TorchOptions(**given)
    options.check()
    if 0 < demand.get("GPU", 0) < 1:
        if options.backend == "nccl":
            raise ConfigError(
                "nccl refuses two ranks on one GPU: backend='gloo', or a whole GPU for each rank"
            )
        return asdict(options) | {"backend": options.backend or "gloo"}
    return asdict(options)
