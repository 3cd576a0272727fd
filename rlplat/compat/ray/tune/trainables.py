"""Ray's trainables as rlplat's: `f(config)`, `f(config, reporter)`, `f(config, checkpoint_dir=None)`, `Trainable`.

Each runs in its trial's own directory, and each report gets `training_iteration` and `time_total_s`, as in Ray.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlplat import tune
from rlplat.compat.ray import session
from rlplat.compat.ray.session import Checkpoint
from rlplat.errors import ConfigError

Ends = Callable[[str, dict[str, Any]], bool]
"""stop=function(trial_id, result)."""
_KINDS = {
    "setup": ("setup", "_setup"),
    "step": ("step", "_train"),
    "save": ("save_checkpoint", "_save"),
    "load": ("load_checkpoint", "_restore"),
    "close": ("cleanup", "_stop"),
}


class Trainable:
    """`setup`, `step`, `save_checkpoint`, `load_checkpoint`, `cleanup`, or the same of before 2020, `_setup`, `_train`,
    `_save`, `_restore`, `_stop`."""

    config: dict[str, Any]
    iteration = 0
    logdir = ""
    trial_id = ""

    @property
    def training_iteration(self) -> int:
        return self.iteration

    @property
    def _iteration(self) -> int:
        return self.iteration

    @property
    def trial_name(self) -> str:
        return self.trial_id


def method_of(kind: type, what: str) -> Any:
    """The class's own method for it, by today's name or the old one."""
    return next((found for name in _KINDS[what] if (found := getattr(kind, name, None))), None)


@contextlib.contextmanager
def inside(directory: Path) -> Iterator[None]:
    """The process's folder is this one meanwhile; modules are found from where they were."""
    before = os.getcwd()
    sys.path[:] = [path or before for path in sys.path]
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


class Results:
    """What Ray adds to a trial's results."""

    def __init__(self, iteration: int = 0) -> None:
        self.iteration, self._timesteps, self._began = iteration, 0.0, time.monotonic()

    def completed(self, result: Mapping[str, Any]) -> dict[str, Any]:
        self.iteration += 1
        added: dict[str, Any] = {
            "training_iteration": self.iteration,
            "time_total_s": time.monotonic() - self._began,
        }
        if "timesteps_this_iter" in result:
            self._timesteps += result["timesteps_this_iter"]
            added["timesteps_total"] = self._timesteps
        if "mean_loss" in result:
            added["neg_mean_loss"] = -result["mean_loss"]
        return {**added, **result}


class Reporter:
    """A trial's session, and the second argument of `f(config, reporter)`."""

    rank, world_size = 0, 1

    def __init__(self, report: Any, ends: Ends | None) -> None:
        self._report, self._ends = report, ends
        self.directory: Path = report.directory
        self.trial_id = f"{report.number:05d}"
        self.step, self.seed, self.checkpoint = report.step, report.seed, report.checkpoint
        self._results = Results(report.step)
        self._offered: str | None = None

    def __call__(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        self.report({**(metrics or {}), **named})

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
        result = self._results.completed(metrics)
        state = checkpoint
        if isinstance(checkpoint, Checkpoint):
            state = {"directory": Path(checkpoint.path).resolve()}
        elif self._offered is not None:
            state = {"directory": Path(self._offered)}
        self._offered = None
        here = os.getcwd()
        os.chdir(self._home)  # where the trial waits, other code may run in this process
        try:
            self._report(result, checkpoint=state)
        finally:
            os.chdir(here)
        if result.get("done") or (self._ends is not None and self._ends(self.trial_id, result)):
            raise Done

    @contextlib.contextmanager
    def checkpoint_dir(self, step: int) -> Iterator[str]:
        path = self.directory / f"checkpoint_{step:06d}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        yield str(path)
        self._offered = str(path)

    def get_checkpoint(self) -> Checkpoint | None:
        state = self.checkpoint
        return Checkpoint(state["directory"]) if state else None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._home = os.getcwd()
        with inside(self.directory), session.running(self), contextlib.suppress(Done):
            yield


class Done(BaseException):
    """The trial has come to its end; as `tune.TrialStopped`, not an `Exception`."""


def of_function(function: Callable[..., Any], constants: dict[str, Any], ends: Ends | None) -> Any:
    parameters = inspect.signature(function).parameters
    takes_directory = "checkpoint_dir" in parameters
    required = [one for one in parameters.values() if one.default is one.empty and one.kind in (0, 1)]
    takes_reporter = not takes_directory and len(required) > 1

    def trial(config: dict[str, Any], report: Any) -> None:
        reporter = Reporter(report, ends)
        config = {**config, **constants}
        with reporter.running():
            if takes_directory:
                begun = reporter.get_checkpoint()
                made = function(config, checkpoint_dir=begun.path if begun else None)
            else:
                made = function(config, reporter) if takes_reporter else function(config)
            if inspect.isgenerator(made):
                for value in made:
                    reporter.report(*(value if isinstance(value, tuple) else (value,)))
            elif made is not None:
                reporter.report(dict(made) if isinstance(made, Mapping) else {"_metric": made})

    return trial


def of_class(kind: type, constants: dict[str, Any], ends: Ends | None) -> type:
    if not issubclass(kind, Trainable):
        raise ConfigError(f"{kind.__name__} is not a tune.Trainable: derive it from rlplat.compat.ray.tune.Trainable")
    setup, step, save, load, close = (method_of(kind, what) for what in _KINDS)
    if step is None:
        raise ConfigError(f"{kind.__name__} has neither step() nor _train()")
    takes_config = setup is None or len(inspect.signature(setup).parameters) > 1  # not before 2018

    class Trial:
        def __init__(self, config: dict[str, Any], context: tune.TrialContext) -> None:
            self._directory, self._results = context.directory, Results()
            self._has_ended = False
            self._one = one = kind()
            one.config = {**config, **constants}
            one.logdir, one.trial_id = str(context.directory), f"{context.number:05d}"
            if setup:
                with inside(self._directory):
                    setup(one, one.config) if takes_config else setup(one)

        def step(self) -> dict[str, Any] | None:
            if self._has_ended:
                return None
            with inside(self._directory):
                result = self._results.completed(step(self._one))
            self._one.iteration = self._results.iteration
            self._has_ended = bool(result.get("done") or (ends and ends(self._one.trial_id, result)))
            return result

        def close(self) -> None:
            if close:
                with inside(self._directory):
                    close(self._one)

    def saved(self: Any) -> dict[str, Any]:
        """What `save_checkpoint(directory)` returned (a dict, a path in it, nothing), with the directory."""
        iteration = self._one.iteration
        for old in self._directory.glob("checkpoint_*"):
            shutil.rmtree(old)
        path = self._directory / f"checkpoint_{iteration:06d}"
        path.mkdir(parents=True)
        with inside(self._directory):
            made = save(self._one, str(path))
        if isinstance(made, dict):
            return {"iteration": iteration, "dict": made}
        inner = os.path.relpath(os.path.join(self._directory, made), path) if made else "."
        if inner.startswith(".."):
            raise ConfigError(f"{kind.__name__} saved {made}: return a path below the directory that it was given")
        return {"iteration": iteration, "directory": path, "inner": inner}

    def loaded(self: Any, state: dict[str, Any]) -> None:
        self._results = Results(state["iteration"])
        self._one.iteration = state["iteration"]
        value = state["dict"] if "dict" in state else os.path.normpath(state["directory"] / state["inner"])
        with inside(self._directory):
            load(self._one, value)

    if save and load:
        Trial.save, Trial.load = saved, loaded  # type: ignore[attr-defined]
    return Trial


class Registered:
    by_name: ClassVar[dict[str, Any]] = {}


def register_trainable(name: str, trainable: Any) -> None:
    Registered.by_name[name] = trainable


def resolved(trainable: Any) -> Any:
    """What a name stands for; ConfigError for an algorithm of RLlib's."""
    if not isinstance(trainable, str):
        return trainable
    if trainable in Registered.by_name:
        return Registered.by_name[trainable]
    from rlplat.config import closest

    raise ConfigError(
        f"no trainable is registered as {trainable!r}{closest(trainable, Registered.by_name)}: "
        "tune.register_trainable(name, trainable); for RLlib's see docs/from-rllib.md, rlplat.tune.run('ppo', space)"
    )
