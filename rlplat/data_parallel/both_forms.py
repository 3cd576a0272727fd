"""`Trainer`: what `TorchTrainer` and `TFTrainer` share, in both forms: a training function that runs to its end on
every rank (`fit`), and a training that the driver tells epoch by epoch (`train`, `validate`).

    result = TorchTrainer(train_loop, {"lr": 0.1}, num_workers=2, out="runs/demo").fit()

It holds one group of ranks (`group.RankGroup`). After a loss of ranks another group continues from the last state.
No torch and no TensorFlow here: what a rank does is its program's (`torch.program`, `tf.program`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import rlplat
from rlplat import checkpoints
from rlplat.data_parallel.failures import RanksLost
from rlplat.data_parallel.group import RankGroup
from rlplat.data_parallel.rank import Turn
from rlplat.data_parallel.reports import Report, Result, merged_state, merged_stats, merged_turns
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.errors import CheckpointError, ConfigError
from rlplat.given.say import say
from rlplat.paths import user_path


class Trainer:
    name: ClassVar[str]
    """In the manifest of its checkpoints."""
    program: ClassVar[str]
    """What each rank runs: "module:class"."""

    def __init__(
        self,
        settings: TrainerSettings,
        options: dict[str, Any],
        config: Mapping[str, Any] | None,
        train_loop: Callable[..., Any] | None,
        *,
        out: str | os.PathLike[str] | None,
        resume: bool,
        keep: int,
    ) -> None:
        """options: of the framework, for each rank; train_loop: None: this trainer is told epoch by epoch."""
        self.settings, self.config, self.train_loop = settings, dict(config or {}), train_loop
        self._options = options
        self._out, self._resume, self._keep = None if out is None else user_path(out), resume, keep
        self._group: RankGroup | None = None
        self._num_now: int | None = None
        """How many ranks the next group waits for; None: the most."""
        self._runtime = ExitStack()
        self._state: dict[str, Any] | None = None
        """After the last epoch, or what changed the ranks since."""
        self._losses_in_a_row = 0
        """Of ranks, since the state is there."""

    # ---------------------------------------------------------------- a training function

    def fit(self) -> Result:
        """Run the function to its end."""
        result = self._begun()
        with self._open_runtime():
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
        if self.train_loop is None:
            raise ConfigError("fit() is for a training function; with creators: train(), validate()")
        num_restarts = num_in_a_row = 0
        num_now: int | None = None
        while True:
            reported = number
            try:
                with self._open_group(num_now) as group:
                    group.call("begin", self.train_loop, dict(config), state)
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
                _say_from(f"room for {num_now} ranks", f"report {number}, the last checkpoint")
            except RanksLost as lost:
                num_restarts += 1
                num_in_a_row += 1
                if num_in_a_row > self.settings.max_failures:
                    raise
                _say_from(lost, f"report {number}, the last checkpoint" if state is not None else "the beginning")

    # ---------------------------------------------------------------- epoch by epoch

    def _parts(self) -> tuple[Any, ...]:
        """What the program of each rank is set up with, before the state."""
        raise NotImplementedError

    def validate(self, num_steps: int | None = None, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """-> means over the validation data of all ranks: `val_loss`, `val_accuracy`, `num_samples`."""
        return merged_stats(self._on_ranks("validate", num_steps, dict(info or {})))

    def train(self, num_steps: int | None = None, info: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One epoch, or its first `num_steps` batches; -> means over all ranks: `train_loss`, `num_samples`, `epoch`.

        An epoch during which ranks were lost begins again from its start. info: for `train_batch`.
        """
        self._grow()
        with_state = self.settings.max_failures > 0 or self._out is not None
        answers = self._on_ranks("train_epoch", num_steps, dict(info or {}), with_state)
        stats = merged_stats([one for one, _ in answers])
        if with_state:
            self._keep_state(merged_state([state for _, state in answers]))
            if self._out is not None and self._state is not None:
                self._write(self._out, stats["epoch"], self._state)
        return stats

    def save(self, path: str | os.PathLike[str]) -> Path:
        """A checkpoint in the directory `path`, whole or absent; -> where it is."""
        state = self.current_state()
        return self._write(user_path(path), int(state["user"]["epoch"]), state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """What `save` wrote in `path`, the newest that is valid."""
        found, refused = checkpoints.latest_valid(path)
        if found is None:
            raise CheckpointError(f"there is no checkpoint in {path}" + "".join(f"; {one}" for one in refused))
        self._check_kind(found)
        self.load_encoded(found.state)

    def apply_all_workers(self, function: Callable[[], Any]) -> list[Any]:
        """What it returns in the process of each rank."""
        return self._on_ranks("apply", function)

    def shutdown(self, force: bool = False) -> None:
        """End the ranks. force: RaySGD's; ranks are always ended at once."""
        self._close_group()
        self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def has_validation(self) -> bool:
        return all(self._on_ranks("has_validation"))

    def current_state(self) -> dict[str, Any]:
        """As it is saved: with arrays for tensors, without pickle."""
        state = merged_state(self._on_ranks("state"))
        assert state is not None
        return state

    def load_encoded(self, state: dict[str, Any]) -> None:
        """state: of `current_state`; the ranks begin again with it."""
        if "user" not in state:
            raise CheckpointError(
                f"not the state of a {self.name}: load_state_dict takes what the trainer's state_dict() returned; "
                "weights alone are loaded in model_creator"
            )
        self._close_group()
        self._keep_state(state)
        self._on_ranks("ready")

    @classmethod
    def as_trainable(cls, *form: Any, config: Mapping[str, Any] | None = None, **settings: Any) -> Any:
        """For `tune.run`: the arguments of a trainer, whose config each trial completes."""

        def trial(of_trial: dict[str, Any], report: Any) -> Iterator[Any]:
            # A trial whose ranks are lost is tune's to repeat, from its last checkpoint.
            own = {"seed": report.seed, **settings, "max_failures": 0, "config": {**(config or {}), **of_trial}}
            one: Trainer = cls(*form, **own)
            if one.train_loop is not None:
                for each in one.reports(one.config, report.checkpoint, report.step):
                    yield each.metrics if each.state is None else (each.metrics, each.state)
                return
            with one:
                if report.checkpoint is not None:
                    one.load_encoded(report.checkpoint)
                while True:
                    stats = one.train()
                    if one.has_validation():
                        stats |= one.validate()
                    yield stats, one.current_state()

        trial.leaves_gpus = True  # type: ignore[attr-defined]
        return trial

    # ---------------------------------------------------------------- the group of ranks

    def _begin(self) -> None:
        self._state = self._begun().state
        self._runtime.enter_context(self._open_runtime())
        try:
            self._on_ranks("ready")
        except BaseException:
            self.shutdown()
            raise

    def _grow(self) -> None:
        """More ranks, where fewer than the most were left and there is room again."""
        if self._group is not None and (num_now := self._group.num_growing()):
            state = self.current_state()
            self._keep_state(state)
            self._close_group()
            self._num_now = num_now
            _say_from(f"room for {num_now} ranks", f"the end of epoch {state['user']['epoch']}")

    def _on_ranks(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks; another group does it where this one is lost."""
        while True:
            try:
                return self._opened().call(method, *arguments)
            except RanksLost as lost:
                self._close_group()
                self._losses_in_a_row += 1
                if self._losses_in_a_row > self.settings.max_failures:
                    raise
                done = self._state["user"]["epoch"] if self._state else 0
                _say_from(lost, f"the end of epoch {done}" if done else "the beginning")
            except BaseException:
                self._close_group()  # the ranks are no longer at the same place
                raise

    def _keep_state(self, state: dict[str, Any] | None) -> None:
        self._state, self._losses_in_a_row = state, 0

    def _opened(self) -> RankGroup:
        if self.train_loop is not None:
            raise ConfigError("a trainer with a training function has fit(); train() and validate() need creators")
        if self._group is None:
            if not rlplat.is_initialized():
                self._runtime.enter_context(self._open_runtime())
            num_now, self._num_now = self._num_now, None
            self._group = self._open_group(num_now)
            self._group.call("set_up", *self._parts(), self.config, self._state)
        return self._group

    def _open_group(self, num_now: int | None = None) -> RankGroup:
        return RankGroup(self.program, self.settings, self._options, num_now)

    def _close_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    @contextmanager
    def _open_runtime(self) -> Iterator[None]:
        """A cluster for as long as it is needed, unless there is one."""
        owns = not rlplat.is_initialized()
        if owns:
            rlplat.init(preload=[self.program.partition(":")[0]])
        try:
            yield
        finally:
            if owns:
                rlplat.shutdown()

    # ---------------------------------------------------------------- checkpoints

    def _write(self, directory: Path, number: int, state: dict[str, Any]) -> Path:
        info = checkpoints.CheckpointInfo(self.name, env="", env_steps=number)
        return checkpoints.save(directory / "checkpoints", state, info, keep=self._keep)

    def _begun(self) -> Result:
        """What `out` holds of this run so far."""
        if self._out is None:
            if self._resume:
                raise ConfigError("resume=True needs out=, the directory of the run that is to be resumed")
            return Result()
        found, refused = checkpoints.latest_valid(self._out)
        for reason in refused:
            say(reason)
        if not self._resume:
            if found or refused:
                raise ConfigError(f"{self._out} has checkpoints of a run: resume=True to continue it, or another out")
            return Result()
        if found is None:
            return Result()
        self._check_kind(found)
        return Result(list(found.state.get("history", [])), found.state, found.path)

    def _check_kind(self, found: checkpoints.Checkpoint) -> None:
        if found.info.algorithm != self.name:
            raise CheckpointError(f"{found.path} is a checkpoint of {found.info.algorithm}, not of {self.name}")
        is_of_loop = "history" in found.state
        if is_of_loop != (self.train_loop is not None):
            kind = "a training function" if is_of_loop else "creators"
            raise CheckpointError(
                f"{found.path} is a checkpoint of a {self.name} with {kind}: give it one again, or begin in another "
                "directory"
            )


def _say_from(why: object, place: str) -> None:
    say(f"{why}; training continues from {place}")
