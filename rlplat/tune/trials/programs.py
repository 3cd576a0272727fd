"""Trainables of every kind (see `trainables`) as Programs (see `program`).

function, generator             FunctionProgram: in a thread of its own, see `trials.thread`
class                           ClassProgram
algorithm                       `rl_program`
several seeds of any            `several_seeds`
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError, ConfigError
from rlplat.given.global_random import GlobalRandom, seed_everything
from rlplat.given.say import say, say_traceback
from rlplat.tune.trials import Metrics, Program, StillRunning, TrialContext, plain_metrics
from rlplat.tune.trials.checkpoints import TrialCheckpoints
from rlplat.tune.trials.thread import TrialThread, wrapped
from rlplat.tune.trials.trainables import num_arguments, report_argument, settled

GRACE_S = 5.0
"""How long a function may take to end after TrialStopped."""
CLOSE_S = 30.0
"""How long anything else may take to close; then its process is killed."""


def open_program(trainable: Any, config: dict[str, Any], context: TrialContext) -> Program:
    """The program of one trial. Nothing of the trainable runs before the first `step` or `load_from`."""
    if context.num_seeds > 1:
        return SeveralSeeds(lambda one: open_program(trainable, config, one), context)
    found, kind = settled(trainable)
    config = copy.deepcopy(config)  # the trial may do with it what it likes
    if kind.is_algorithm:
        from rlplat.tune.trials.rl_program import RLProgram

        return RLProgram(kind.name, config, context)
    if kind.form == "class":
        return ClassProgram(found, config, context)
    return FunctionProgram(found, config, context)


class FunctionProgram:
    """A function, or a generator function: in a thread of its own."""

    def __init__(self, function: Callable[..., Any], config: dict[str, Any], context: TrialContext) -> None:
        how = report_argument(function, "")

        def run(report: Any) -> Any:
            seed_everything(context.seed)
            if how == "by name":
                made = function(config, report=report)
            else:
                made = function(config, report) if how else function(config)
            return _reported(made, report) if hasattr(made, "__next__") else made

        self._context = context
        self._thread = TrialThread(run, context)
        self._checkpoints = TrialCheckpoints(context.number)
        self._has_ended = False

    @property
    def can_save(self) -> bool:
        return self._thread.offers_checkpoint

    def step(self) -> Metrics | None:
        if self._has_ended:
            return None
        kind, value = self._thread.next()
        if kind == "report":
            return value
        self._has_ended = True
        return last_report(value, self._thread.report.step > 0, self._context)

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            how = "report(..., checkpoint=state), or yield metrics, state"
            raise _no_checkpoint(self._context, how)
        return self._checkpoints.save(directory, self._thread.checkpoint(), self._thread.report.step)

    def load_from(self, path: Path) -> None:
        self._thread.report.checkpoint, self._thread.report.step = self._checkpoints.load(
            path, self._context.directory / "restored"
        )

    def close(self) -> None:
        self._thread.close(GRACE_S)


def _reported(values: Any, report: Any) -> Any:
    """A generator's values as reports; what it returns."""
    try:
        while True:
            value, checkpoint = next(values), None
            if type(value) is tuple and len(value) == 2:
                value, checkpoint = value
            report.value(value, checkpoint)
    except StopIteration as end:
        return end.value
    finally:
        if close := getattr(values, "close", None):
            close()


class ClassProgram:
    def __init__(self, trainable: type, config: dict[str, Any], context: TrialContext) -> None:
        self._class, self._config, self._context = trainable, config, context
        self.can_save = callable(getattr(trainable, "save", None))
        self._checkpoints = TrialCheckpoints(context.number)
        self._instance: Any = None
        self._num_steps = 0
        self._has_ended = False

    def step(self) -> Metrics | None:
        if self._has_ended:
            return None
        with only_exceptions():
            instance = self._made()
            try:
                value = instance.step()
            except StopIteration:
                value = None
        if value is None:
            self._has_ended = True
            return last_report(None, self._num_steps > 0, self._context)
        self._num_steps += 1
        return plain_metrics(value, self._context.metric)

    def _made(self) -> Any:
        if self._instance is None:
            seed_everything(self._context.seed)
            num = num_arguments(self._class, self._class.__qualname__, "")
            self._instance = self._class(*(self._config, self._context)[:num])
        return self._instance

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            raise _no_checkpoint(self._context, "def save(self) and def load(self, state)")
        with only_exceptions():
            state = self._made().save()
        return self._checkpoints.save(directory, state, self._num_steps)

    def load_from(self, path: Path) -> None:
        state, self._num_steps = self._checkpoints.load(path, self._context.directory / "restored")
        with only_exceptions():
            self._made().load(state)

    def close(self) -> None:
        self._has_ended = True
        _close_quietly(self._instance)


def last_report(value: Any, has_reported: bool, context: TrialContext) -> Metrics | None:
    """What a trainable returned at its end: its last report, or None. ConfigError where that is all, and nothing.

    has_reported: also before the checkpoint that it went on from: it may have been saved at its last report."""
    if value is None and not has_reported:
        raise ConfigError("it returned nothing, and reported nothing: return a dict of metrics, or report them")
    if value is None:
        return None
    try:
        return plain_metrics(value, context.metric)
    except (TypeError, ValueError) as error:
        if not has_reported:
            raise ConfigError(f"trial {context.number} returned {type(value).__name__}: {error}") from None
        say(f"trial {context.number}: its return value is not used: {error}")
        return None


def _no_checkpoint(context: TrialContext, how: str) -> CheckpointError:
    return CheckpointError(f"trial {context.number} cannot be saved at this report: it brought no checkpoint ({how})")


def _close_quietly(thing: Any) -> None:
    close = getattr(thing, "close", None)
    if close is not None:
        try:
            with only_exceptions():
                close()
        except Exception:  # its results are in; nobody waits for it any more
            say_traceback()


@contextmanager
def only_exceptions() -> Iterator[None]:
    """What a trial raises in the process's main thread."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):  # Ctrl-C is the process's, and this is its thread
        raise
    except BaseException as error:
        raise wrapped(error) from error


# -------------------------------------------------------------------------------- several seeds


class SeveralSeeds:
    """One config with several seeds: programs side by side in one trial, report by report.

    A report holds the means over the seeds, and `<metric>_std` (the sample standard deviation) of every number. A seed
    that ends before the others counts on with its last report, so that means of different reports are means over the
    same seeds; the trial ends when all have ended.
    """

    def __init__(self, open_one: Callable[[TrialContext], Program], context: TrialContext) -> None:
        """open_one: makes the program of one seed."""
        self._context = context
        self._checkpoints = TrialCheckpoints(context.number)
        self._seeds = [
            _OneSeed(open_one(replace(context, seed=seed, directory=context.directory / f"seed_{index}", num_seeds=1)))
            for index, seed in enumerate(seeds_of(context.seed, context.num_seeds))
        ]
        self._step = 0

    @property
    def can_save(self) -> bool:
        return all(seed.has_ended or seed.program.can_save for seed in self._seeds)

    def step(self) -> dict[str, Any] | None:
        for seed in self._seeds:
            seed.advance()
        if all(seed.has_ended for seed in self._seeds):
            return None
        self._step += 1
        return means([seed.last for seed in self._seeds])

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            raise CheckpointError(f"trial {self._context.number} cannot be saved: not every seed brought a checkpoint")

        def save_each(beside: Path) -> dict[str, Any]:
            names = [
                "" if seed.has_ended else seed.program.save_to(beside / f"seed_{index}")
                for index, seed in enumerate(self._seeds)
            ]
            return {"names": names, "last": [seed.last for seed in self._seeds]}

        return self._checkpoints.save(directory, save_each, self._step)

    def load_from(self, path: Path) -> None:
        state, self._step = self._checkpoints.load(path, self._context.directory / "restored")
        num_saved = len(state["names"])
        if num_saved != len(self._seeds):
            raise CheckpointError(f"checkpoint {path} has {num_saved} seeds, and the trial {len(self._seeds)}")
        for index, (seed, name, last) in enumerate(zip(self._seeds, state["names"], state["last"], strict=True)):
            seed.last, seed.has_ended = last, not name
            if name:
                seed.load_from(path / f"seed_{index}" / name)

    def close(self) -> None:
        still_running: StillRunning | None = None
        for seed in self._seeds:
            try:
                seed.program.close()
            except StillRunning as error:
                still_running = error
        if still_running:
            raise still_running


class _OneSeed:
    """A program and the state of the global random number generators as it left it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.last: dict[str, Any] = {}
        self.has_ended = False
        self._random: GlobalRandom | None = None

    def advance(self) -> None:
        if self.has_ended:
            return
        if self._random is not None:
            self._random.install()
        metrics = self.program.step()
        self._random = GlobalRandom()
        if metrics is None:
            self.has_ended = True
        else:
            self.last = metrics

    def load_from(self, path: Path) -> None:
        self.program.load_from(path)  # a class is made and seeded here
        self._random = GlobalRandom()


def seeds_of(seed: int, num_seeds: int) -> list[int]:
    """The first is the trial's own."""
    children = np.random.SeedSequence(seed).spawn(num_seeds - 1)
    return [seed, *(int(child.generate_state(1)[0]) for child in children)]


def means(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the numbers, over those that report them; of texts the first."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        values = [value for report in reports if (value := report.get(name)) is not None]
        if not values:
            merged[name] = None
            continue
        if any(isinstance(value, str) for value in values):
            merged[name] = values[0]
            continue
        mean = merged[name] = sum(values) / len(values)
        if len(values) > 1:
            merged[f"{name}_std"] = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return merged
