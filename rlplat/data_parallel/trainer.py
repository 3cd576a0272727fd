"""`TorchTrainer`: data-parallel training from the driver's side, in two forms. No torch here.

    result = TorchTrainer(train_loop, {"lr": 0.1}, num_workers=2, out="runs/demo").fit()

    trainer = TorchTrainer(model_creator=..., data_creator=..., optimizer_creator=..., loss_creator=nn.MSELoss,
                           config={"lr": 0.1}, num_workers=2)
    stats = trainer.train()                     # an epoch; RaySGD's interface
    trainer.shutdown()

Both stand on one group of ranks (`group.RankGroup`), one context in each of them (`torch.context`), one form of states.
After a loss of ranks another group continues from the last state.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat import checkpoints
from rlplat.data_parallel.failures import RanksLost
from rlplat.data_parallel.group import RankGroup
from rlplat.data_parallel.rank import Turn
from rlplat.data_parallel.reports import Report, Result, merged_state, merged_stats, merged_turns
from rlplat.data_parallel.settings import PRELOAD, TrainerSettings
from rlplat.data_parallel.torch.options import TorchOptions
from rlplat.data_parallel.trainable import trainable_of
from rlplat.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rlplat.data_parallel.torch.operator import TrainingOperator

NAME = "TorchTrainer"
"""In the manifest of its checkpoints."""
STEP_FREQUENCIES = ("epoch", "batch", "manual")


class TorchTrainer:
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
        self.settings = TrainerSettings(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources=resources,
            seed=seed,
            max_failures=max_failures,
            hang_timeout_s=hang_timeout_s,
            place_timeout_s=place_timeout_s,
            options=_options(options),
        )
        self.config = dict(config or {})
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
        self._out, self._resume, self._keep = None if out is None else Path(out), resume, keep
        self._group: RankGroup | None = None
        self._runtime = ExitStack()
        self._state: dict[str, Any] | None = None
        """After the last epoch, of the second form."""
        if train_loop is None:
            self._state = self._begun().state
            self._begin()

    # ---------------------------------------------------------------- one function

    def fit(self) -> Result:
        """Run the function to its end."""
        result = self._begun()
        with open_runtime():
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
        while True:
            reported = number
            try:
                with self.settings.open_group() as group:
                    group.call("begin", self._function, dict(config), state)
                    pending = group.start("advance")
                    while True:
                        turns: list[Turn] = group.finish(pending)
                        report = merged_turns(turns)
                        if report is None:
                            return
                        pending = group.start("advance")
                        reported += 1
                        metrics, new_state = report
                        if new_state is not None:
                            state, number, num_in_a_row = new_state, reported, 0
                        yield Report(reported, metrics, new_state, num_restarts)
            except RanksLost as lost:
                num_restarts += 1
                num_in_a_row += 1
                if num_in_a_row > self.settings.max_failures:
                    raise
                _say(lost, f"report {number}, the last checkpoint" if state is not None else "the beginning")

    # ---------------------------------------------------------------- epoch by epoch

    def train(self, num_steps: int | None = None, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One epoch, or its first `num_steps` batches; -> means over all ranks: `train_loss`, `num_samples`, `epoch`.

        An epoch during which ranks were lost begins again from its start. info: for `train_batch`.
        """
        with_state = self.settings.max_failures > 0 or self._out is not None
        answers = self._on_ranks("train_epoch", num_steps, dict(info or {}), with_state)
        stats = merged_stats([one for one, _ in answers])
        if with_state:
            self._state = merged_state([state for _, state in answers])
            if self._out is not None and self._state is not None:
                self._write(self._out, stats["epoch"], self._state)
        return stats

    def validate(self, num_steps: int | None = None, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """-> means over the validation data of all ranks: `val_loss`, `val_accuracy`, `num_samples`."""
        return merged_stats(self._on_ranks("validate", num_steps, dict(info or {})))

    def state_dict(self) -> dict[str, Any]:
        """All that a training continues from, as torch tensors: `models`, `optimizers`, ...; for `torch.save`."""
        from rlplat.data_parallel.torch.states import decode

        state: dict[str, Any] = decode(self.current_state())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        from rlplat.data_parallel.torch.states import encode

        self.load_encoded(encode(dict(state)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """A checkpoint in the directory `path`, whole or absent; -> where it is."""
        state = self.current_state()
        return self._write(Path(path), int(state["user"]["epoch"]), state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """What `save` wrote in `path`, the newest that is valid."""
        found, refused = checkpoints.latest_valid(path)
        if found is None:
            raise CheckpointError(
                f"there is no checkpoint in {path}" + "".join(f"; {one}" for one in refused)
            )
        self.load_encoded(found.state)

    def get_model(self) -> Any:
        """The trained module (a list, where there are several), on the CPU."""
        models = self._opened().call_rank(0, "model")
        return models[0] if len(models) == 1 else models

    def apply_all_workers(self, function: Callable[[], Any]) -> list[Any]:
        """What it returns in the process of each rank."""
        return self._on_ranks("apply", function)

    def apply_all_operators(self, function: Callable[[TrainingOperator], Any]) -> list[Any]:
        return self._on_ranks("apply_to_operator", function)

    def shutdown(self, force: bool = False) -> None:
        """End the ranks. force: RaySGD's; ranks are always ended at once."""
        self._close_group()
        self._runtime.close()

    def __enter__(self) -> TorchTrainer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _begin(self) -> None:
        self._runtime.enter_context(open_runtime())
        try:
            self.settings.check_against_cluster()
            self._on_ranks("ready")
        except BaseException:
            self.shutdown()
            raise

    def _on_ranks(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks; another group does it where this one is lost."""
        for num_failures in range(1, self.settings.max_failures + 2):
            try:
                return self._opened().call(method, *arguments)
            except RanksLost as lost:
                self._close_group()
                if num_failures > self.settings.max_failures:
                    raise
                done = self._state["user"]["epoch"] if self._state else 0
                _say(lost, f"the end of epoch {done}" if done else "the beginning")
            except BaseException:
                self._close_group()  # the ranks are no longer at the same place
                raise
        raise AssertionError("the last failure is raised")

    def _opened(self) -> RankGroup:
        if self._function is not None:
            raise ConfigError(
                "a trainer with a training function has fit(); train() and validate() need creators"
            )
        if self._group is None:
            if not rlplat.is_initialized():
                self._runtime.enter_context(open_runtime())
            self._group = self.settings.open_group()
            self._group.call("set_up", self._operator, self._creators, self.config, self._ways, self._state)
        return self._group

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def has_validation(self) -> bool:
        return all(self._on_ranks("has_validation"))

    def current_state(self) -> dict[str, Any]:
        """As it is saved: with arrays for tensors, without pickle."""
        state = merged_state(self._on_ranks("state"))
        assert state is not None
        return state

    def load_encoded(self, state: dict[str, Any]) -> None:
        """state: of `current_state`; the ranks begin again with it."""
        self._close_group()
        self._state = state
        self._on_ranks("ready")

    # ---------------------------------------------------------------- tune, checkpoints

    @classmethod
    def as_trainable(cls, *form: Any, **settings: Any) -> Any:
        """For `tune.run`: the arguments of a trainer, whose config each trial completes."""
        return trainable_of(cls, form, settings)

    def _write(self, directory: Path, number: int, state: dict[str, Any]) -> Path:
        info = checkpoints.CheckpointInfo(NAME, env="", env_steps=number)
        return checkpoints.save(directory / "checkpoints", state, info, keep=self._keep)

    def _begun(self) -> Result:
        """What `out` holds of this run so far."""
        if self._out is None:
            if self._resume:
                raise ConfigError("resume=True needs out=, the directory of the run that is to be resumed")
            return Result()
        found, refused = checkpoints.latest_valid(self._out)
        for reason in refused:
            print(f"rlplat: {reason}", file=sys.stderr)
        if not self._resume:
            if found or refused:
                raise ConfigError(
                    f"{self._out} has checkpoints of a run: resume=True to continue it, or another out"
                )
            return Result()
        if found is None:
            return Result()
        if found.info.algorithm != NAME:
            raise CheckpointError(f"{found.path} is a checkpoint of {found.info.algorithm}, not of {NAME}")
        return Result(list(found.state.get("history", [])), found.state, found.path)


def _say(lost: RanksLost, place: str) -> None:
    print(f"rlplat: {lost}; training continues from {place}", file=sys.stderr, flush=True)


def _options(given: dict[str, Any]) -> TorchOptions:
    known = TorchOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            raise ConfigError(
                f"TorchTrainer has no setting {name!r}; of torch's there are {', '.join(known)}"
            )
    return TorchOptions(**given)


@contextmanager
def open_runtime() -> Iterator[None]:
    """A cluster for as long as it is needed, unless there is one."""
    owns = not rlplat.is_initialized()
    if owns:
        rlplat.init(preload=PRELOAD)
    try:
        yield
    finally:
        if owns:
            rlplat.shutdown()
