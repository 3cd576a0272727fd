"""`TrialHost`: the actor in which trials run, one at a time; it is used again for the next trial.

    turn = get(host.begin.remote(order))          # opens the trial's program and runs it to its first report
    turn = get(host.advance.remote())             # ... to its next one
    saved = get(host.save.remote())               # between two reports only: exactly the state of the last one
    get(host.end.remote())

An actor runs its calls in order, so `save` and `advance` may be sent together.
"""

from __future__ import annotations

import time
import traceback
from typing import Any, NamedTuple

import rlplat
from rlplat.errors import CheckpointError
from rlplat.given.say import say
from rlplat.paths import user_path
from rlplat.tune.trials import Program, TrialContext
from rlplat.tune.trials.programs import open_program


class Order(NamedTuple):
    number: int
    config: dict[str, Any]
    seed: int
    attempt: int
    step: int
    """Reports of the trial so far."""
    checkpoint: str
    """Name of the checkpoint to go on from; "" to begin."""


class Turn(NamedTuple):
    metrics: dict[str, Any] | None
    """Of one report; None: the trial came to its own end."""
    run_s: float
    """Seconds since the report before."""
    can_save: bool


class SavedTurn(NamedTuple):
    name: str | None
    step: int
    seconds: float
    error: str = ""
    """Why it failed, where it did: a line with the place, then where it was raised."""


class TrialHost:
    def __init__(self, trainable: Any, trials: str, metric: str, seeds_per_trial: int) -> None:
        """trials: the directory with a folder for each trial; metric: the experiment's first."""
        self._trainable = trainable
        self._trials = user_path(trials)  # whatever folder the trials change to
        self._metric, self._num_seeds = metric, seeds_per_trial
        self._client_id = rlplat.get_runtime_context().client_id
        self._program: Program | None = None
        self._raised: BaseException | None = None
        """By the trial: each further turn raises it until `end` closes the program."""
        self._step = 0
        self._directory = self._trials

    def ready(self) -> None:
        """The process is there."""

    def begin(self, order: Order) -> Turn:
        self.end()
        started = time.monotonic()
        directory = self._directory = self._trials / f"{order.number:05d}"
        context = TrialContext(
            order.number, order.seed, directory, order.attempt, metric=self._metric, num_seeds=self._num_seeds
        )
        self._program = open_program(self._trainable, order.config, context)
        self._step = order.step
        if order.checkpoint:
            self._program.load_from(directory / "checkpoints" / order.checkpoint)
        return self._turn(started)

    def advance(self) -> Turn:
        return self._turn(time.monotonic())

    def save(self) -> SavedTurn:
        assert self._program is not None
        started = time.monotonic()
        directory, name, problem = self._directory / "checkpoints", None, ""
        try:
            name = self._program.save_to(directory) if self._program.can_save else None
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, CheckpointError):  # no state can be kept
                self._raised = error  # an `advance` that was sent together with this is not to run
                raise
            problem = f"{directory}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return SavedTurn(name, self._step, time.monotonic() - started, problem)

    def end(self) -> None:
        """What runs of the trial is told to stop; returns when it has."""
        program, self._program, self._raised = self._program, None, None
        if program is not None:
            program.close()
            self._close_what_it_opened()

    def _close_what_it_opened(self) -> None:
        """A trial may open a cluster inside this process, rlplat.init(backend="inproc"): the next one has none."""
        if rlplat.get_runtime_context().client_id != self._client_id:
            say(
                "warning: a trial has not closed the cluster that it opened by rlplat.init(backend='inproc'): "
                "call rlplat.shutdown() in a `finally`"
            )
            rlplat.shutdown()

    def _turn(self, since: float) -> Turn:
        assert self._program is not None
        if self._raised is not None:
            raise self._raised
        try:
            metrics = self._program.step()
        except BaseException as error:
            self._raised = error
            raise
        run_s = time.monotonic() - since
        if metrics is None:
            return Turn(None, run_s, can_save=False)
        self._step += 1
        return Turn(metrics, run_s, self._program.can_save)
