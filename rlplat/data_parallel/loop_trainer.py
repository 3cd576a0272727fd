"""`LoopTrainer`: a training function that runs to its end on every rank; what `TorchTrainer` and `TFTrainer` share.

    result = TorchTrainer(train_loop, {"lr": 0.1}, num_workers=2, out="runs/demo").fit()

No torch and no TensorFlow here. The other form of both trainers, epoch by epoch, is `epochs.EpochTrainer`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlplat.checkpoints import Checkpoint
from rlplat.data_parallel.epochs import EpochTrainer, say_grown, say_lost
from rlplat.data_parallel.failures import RanksLost
from rlplat.data_parallel.group import RankGroup
from rlplat.data_parallel.rank import Turn
from rlplat.data_parallel.reports import Report, Result, merged_turns
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.errors import CheckpointError, ConfigError


class LoopTrainer(EpochTrainer):
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
        """train_loop: None: this trainer is told epoch by epoch."""
        super().__init__(settings, options, config, out=out, resume=resume, keep=keep)
        self.train_loop = train_loop

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
                say_grown(num_now, f"report {number}, the last checkpoint")
            except RanksLost as lost:
                num_restarts += 1
                num_in_a_row += 1
                if num_in_a_row > self.settings.max_failures:
                    raise
                say_lost(
                    lost, f"report {number}, the last checkpoint" if state is not None else "the beginning"
                )

    def _check_kind(self, found: Checkpoint) -> None:
        super()._check_kind(found)
        is_of_loop = "history" in found.state
        if is_of_loop != (self.train_loop is not None):
            kind = "a training function" if is_of_loop else "creators"
            raise CheckpointError(
                f"{found.path} is a checkpoint of a {self.name} with {kind}: give it one again, or begin in another "
                "directory"
            )

    def _opened(self) -> RankGroup:
        if self.train_loop is not None:
            raise ConfigError(
                "a trainer with a training function has fit(); train() and validate() need creators"
            )
        return super()._opened()
