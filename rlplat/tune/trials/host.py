"""`TrialHost`: the actor in which trials run, one at a time; it is used again for the next trial.

    turn = get(host.begin.remote(order, 1))       # opens the trial's program and runs it to its first report
    turn = get(host.advance.remote(7))            # ... to its next one, or to one of its next seven
    saved = get(host.save.remote())               # between two reports only: exactly the state of the last one
    get(host.end.remote())

An actor runs its calls in order, so `save` and `advance` may be sent together.

Where nothing is to be decided on the next reports and they come within fractions of a millisecond, a call is dearer
than a report; so several of them share one. After a slow report some go alone: three at first; where quick ones have
once waited for a slow one, as many as these were. A report that brings a checkpoint after one that did not ends a turn.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import rlplat
from rlplat.errors import CheckpointError
from rlplat.tune.trials.program import Program, TrialContext
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
    reports: list[tuple[dict[str, Any], float]]
    """(metrics, seconds since the report before), one at least unless the trial has ended."""
    can_save: bool
    """After the last of them."""
    has_ended: bool
    """The trial came to its own end."""
    end_s: float
    """Seconds from the last report to that end."""


class SavedTurn(NamedTuple):
    name: str | None
    step: int
    seconds: float
    error: str = ""
    """Why it failed, where it did: a line with the place, then where it was raised."""


SLOW_S = 0.1
"""What came so much earlier than the next report should not have waited for it."""
QUICK_S = 0.001
"""A report that comes so soon after the one before may share a turn with the next ones."""
NUM_QUICK, MAX_QUICK = 3, 100
"""... if as many before it did, too; at first, and at most."""
TURN_S = 0.01
"""A turn that lasts so long ends at its next report."""


class TrialHost:
    def __init__(self, trainable: Any, trials: str, metric: str, seeds_per_trial: int) -> None:
        """trials: the directory with a folder for each trial; metric: the experiment's first."""
        self._trainable = trainable
        self._trials = Path(trials)
        self._metric, self._num_seeds = metric, seeds_per_trial
        self._client_id = rlplat.get_runtime_context().client_id
        self._program: Program | None = None
        self._raised: BaseException | None = None
        """By the trial: each further turn raises it until `end` closes the program. Also after reports that were still
        to be handed over."""
        self._num_quick, self._num_alone = 0, NUM_QUICK
        """Reports in a row that were quick, and how many of these go alone: as many as once were followed by a slow
        one. Of earlier trials, too: they run the same trainable."""
        self._could_save = False
        self._step = 0
        self._directory = self._trials

    def ready(self) -> None:
        """The process is there."""

    def begin(self, order: Order, num_reports: int) -> Turn:
        """num_reports: so many at most; on the last one something may be decided."""
        self.end()
        started = time.monotonic()
        directory = self._directory = self._trials / f"{order.number:05d}"
        context = TrialContext(
            order.number, order.seed, directory, order.attempt, metric=self._metric, num_seeds=self._num_seeds
        )
        self._program = open_program(self._trainable, order.config, context)
        self._step, self._could_save = order.step, False
        if order.checkpoint:
            self._program.load_from(directory / "checkpoints" / order.checkpoint)
        return self._turn(started, num_reports)

    def advance(self, num_reports: int) -> Turn:
        return self._turn(time.monotonic(), num_reports)

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
            print(
                "rlplat: warning: a trial has not closed the cluster that it opened by rlplat.init(backend='inproc'): "
                "call rlplat.shutdown() in a `finally`",
                file=sys.stderr,
                flush=True,
            )
            rlplat.shutdown()

    def _turn(self, began: float, num_reports: int) -> Turn:
        if self._raised is not None:
            raise self._raised
        try:
            return self._run(began, num_reports)
        except BaseException as error:
            self._raised = error
            raise

    def _run(self, began: float, num_reports: int) -> Turn:
        assert self._program is not None
        reports: list[tuple[dict[str, Any], float]] = []
        since = began
        while True:
            try:
                metrics = self._program.step()
            except Exception as error:
                if not reports:
                    raise
                self._raised = error
                return Turn(reports, can_save=False, has_ended=False, end_s=0.0)
            now = time.monotonic()
            run_s, since = now - since, now
            if metrics is None:
                return Turn(reports, can_save=False, has_ended=True, end_s=run_s)
            self._step += 1
            reports.append((metrics, run_s))
            if run_s < QUICK_S:
                self._num_quick = min(self._num_quick + 1, MAX_QUICK + 1)
            else:
                if run_s > SLOW_S and len(reports) > 1:
                    self._num_alone = min(max(self._num_alone, self._num_quick), MAX_QUICK)
                self._num_quick = 0
            could_save, self._could_save = self._could_save, self._program.can_save
            is_offer = self._could_save and not could_save  # of a checkpoint, by one that has not always one
            is_alone = is_offer or self._num_quick <= self._num_alone
            if is_alone or len(reports) >= num_reports or now - began > TURN_S:
                return Turn(reports, self._could_save, has_ended=False, end_s=0.0)
