"""Trainables of every kind as Programs.

    def trial(config):                      # a function that returns its metrics, or a number, at its end
    def trial(config, report):              # ... that reports as it goes
    def trial(config):                      # a generator that yields metrics, or (metrics, checkpoint)
    def trial(config, report):              #     with `report.checkpoint`, `report.seed` and so on
    class Trial:                            # __init__(config) or (config, context), step(), maybe save, load, close
    "./file.py:trial", "pkg.mod:Trial"      # any of them by name: imported where it runs
    "ppo"                                   # an algorithm

Which of them it is, is settled in the driver by `check_trainable`, before anything runs.
"""

from __future__ import annotations

import copy
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlplat.errors import CheckpointError, ConfigError
from rlplat.tune.global_random import seed_everything
from rlplat.tune.program import Program, TrialContext
from rlplat.tune.reported import Metrics, plain_metrics
from rlplat.tune.trial_checkpoints import TrialCheckpoints
from rlplat.tune.trial_thread import Progress, TrialThread, wrapped

GRACE_S = 5.0
"""How long a function may take to end after TrialStopped."""

_WHAT_IT_IS = (
    "a trainable is a function f(config) that returns a dict of metrics, a function f(config, report), a generator "
    "function that yields them, a class with __init__(self, config) and step(self), an algorithm's name, or one of "
    "these by name, as in ./file.py:train"
)


@dataclass(frozen=True)
class TrainableKind:
    form: Literal["function", "reporting function", "generator", "class", "algorithm"]
    name: str
    """For the user's eyes; of an algorithm: by which it is loaded."""
    can_save: bool | None
    """Whether its trials can be saved; None: that shows in their reports."""

    @property
    def is_algorithm(self) -> bool:
        return self.form == "algorithm"

    @property
    def unit(self) -> str:
        """What the progress of its trials is counted in, unless the trial scheduler says otherwise."""
        return "env_steps" if self.is_algorithm else "step"

    def demand(self, resources: Mapping[str, float] | None, config: dict[str, Any]) -> dict[str, float]:
        """What a trial takes of the cluster, by the cluster's names: {"CPU": 1.0}.

        resources: the experiment's, where it says them; else one CPU, or what the algorithm's config comes to."""
        if resources is None and self.is_algorithm:
            from rlplat.tune.rl_config import demand_of

            return demand_of(self.name, config)
        names = {"cpu": "CPU", "gpu": "GPU"}
        given = {"cpu": 1.0} if resources is None else resources
        return {names.get(name, name): float(amount) for name, amount in given.items() if amount}

    def host_gpus(self, demand: Mapping[str, float]) -> float:
        """How many of the trial's GPUs its host uses itself; an algorithm's learner is an actor of its own."""
        return 0.0 if self.is_algorithm else demand.get("GPU", 0.0)

    def document(self, config: dict[str, Any], seed: int) -> str | None:
        """The text of best.yaml; None: just the config. seed: the trial's."""
        if not self.is_algorithm:
            return None
        from rlplat.tune.rl_config import document_of

        return document_of(self.name, config, seed)

    def notes(self, config: dict[str, Any]) -> list[str]:
        """What was decided for the user, a line each; config: of some trial."""
        if not self.is_algorithm:
            return []
        from rlplat.tune.rl_config import plan_trial

        return plan_trial(self.name, config).notes


def check_trainable(trainable: Any) -> TrainableKind:
    """What a trainable is, in the driver; ConfigError where it is none, or cannot travel to another process."""
    found, kind = _settled(trainable)
    if not isinstance(trainable, str):
        _check_travels(found)
    return kind


def open_program(trainable: Any, config: dict[str, Any], context: TrialContext) -> Program:
    """The program of one trial. Nothing of the trainable runs before the first `step` or `load_from`."""
    if context.num_seeds > 1:
        from rlplat.tune.several_seeds import SeveralSeeds

        return SeveralSeeds(lambda one: open_program(trainable, config, one), context)
    found, kind = _settled(trainable)
    config = copy.deepcopy(config)  # the trial may do with it what it likes
    if kind.is_algorithm:
        from rlplat.tune.rl_program import open_rl_program

        program: Program = open_rl_program(kind.name, config, context)
        return program
    if kind.form == "class":
        return ClassProgram(found, config, context)
    if kind.form == "reporting function":
        return FunctionProgram(found, config, context)
    return GeneratorProgram(found, config, context)


# ---------------------------------------------------------------- what it is


def _settled(trainable: Any) -> tuple[Any, TrainableKind]:
    """(the thing itself, what it is)."""
    if not isinstance(trainable, str):
        return trainable, _kind_of(trainable, _name_of(trainable))
    from rlplat.rl import registry

    found = registry.load_class(trainable) if ":" in trainable else registry.load_algorithm(trainable)
    return found, _kind_of(found, trainable)


def _kind_of(found: Any, name: str) -> TrainableKind:
    if inspect.isclass(found):
        return _kind_of_class(found, name)
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise ConfigError(f"{name} is `async def`, which a trial cannot be: {_WHAT_IT_IS}")
    if not callable(found):
        hint = ""
        if callable(getattr(found, "step", None)):
            hint = (
                f" (an instance of {type(found).__name__}: give the class itself, each trial makes its own)"
            )
        raise ConfigError(f"{found!r:.80} is no trainable{hint}: {_WHAT_IT_IS}")
    takes_report = _report_argument(found, name) is not None
    if _is_generator(found):
        return TrainableKind("generator", name, None)
    return (
        TrainableKind("reporting function", name, None)
        if takes_report
        else TrainableKind("function", name, False)
    )


def _kind_of_class(found: type, name: str) -> TrainableKind:
    if hasattr(found, "config_class"):
        return TrainableKind(
            "algorithm", _algorithm_name(found) if found.__qualname__ == name else name, True
        )
    step = getattr(found, "step", None)
    if not callable(step):
        raise ConfigError(f"class {name} has no step(self): {_WHAT_IT_IS}")
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        raise ConfigError(f"{name}.step returns one report; it cannot be `async def` or a generator")
    _num_arguments(found, name, "__init__(self, config) or (self, config, context)")
    can_save = callable(getattr(found, "save", None))
    if can_save != callable(getattr(found, "load", None)):
        has, lacks = ("save", "load") if can_save else ("load", "save")
        raise ConfigError(
            f"class {name} has {has} and no {lacks}: save(self) returns a state, load(self, state) takes it"
        )
    return TrainableKind("class", name, can_save)


def _algorithm_name(found: type) -> str:
    """Under which the registry finds this class: config.yaml and best.yaml name it."""
    from rlplat.rl.registry import algorithm_homes

    home = f"{found.__module__}:{found.__qualname__}"
    return next((name for name, announced in algorithm_homes().items() if announced == home), home)


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(type(function).__call__)


def _report_argument(function: Callable[..., Any], name: str) -> str | None:
    """How a function takes `report`: "by name", "second", or not at all."""
    parameters = _parameters(function, name)
    if any(one.name == "report" and one.kind is not one.POSITIONAL_ONLY for one in parameters[1:]):
        return "by name"
    return "second" if _num_arguments(function, name, "f(config) or f(config, report)") == 2 else None


def _num_arguments(function: Callable[..., Any], name: str, forms: str) -> int:
    """How many of (config, the second) it takes."""
    parameters = _parameters(function, name)
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    required = [one for one in positional if one.default is one.empty]
    by_name = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if not (positional or takes_any) or len(required) > 2 or any(one.name != "report" for one in by_name):
        signature = f"({', '.join(map(str, parameters))})"
        raise ConfigError(f"{name} takes {signature}, and a trial calls {forms}: {_WHAT_IT_IS}")
    is_second_meant = len(positional) > 1 and positional[1].name in ("report", "context")
    return 2 if len(required) == 2 or is_second_meant else 1


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{name} does not say which arguments it takes: {_WHAT_IT_IS}") from None


def _name_of(found: Any) -> str:
    if hasattr(found, "config_class"):  # an algorithm's class: the name by which it can be loaded
        return f"{found.__module__}:{found.__qualname__}"
    inner = getattr(found, "func", found)  # functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def _check_travels(found: Any) -> None:
    import cloudpickle

    try:
        cloudpickle.dumps(found)
    except Exception as error:  # whatever the __reduce__ of what it holds raises
        raise ConfigError(
            f"{_name_of(found)} cannot be sent to the processes of its trials: {type(error).__name__}: {error}\n"
            "make what it holds inside the trial, or name it instead, as in ./file.py:train"
        ) from None


@contextmanager
def only_exceptions() -> Iterator[None]:
    """What a trial raises in the process's main thread."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit):  # Ctrl-C is the process's, and this is its thread
        raise
    except BaseException as error:
        raise wrapped(error) from error


# ---------------------------------------------------------------- the programs


class FunctionProgram:
    """`f(config, report)`."""

    def __init__(self, function: Callable[..., Any], config: dict[str, Any], context: TrialContext) -> None:
        how = _report_argument(function, "")

        def run(report: Any) -> Any:
            seed_everything(context.seed)
            return function(config, report=report) if how == "by name" else function(config, report)

        self._context = context
        self._thread = TrialThread(run, context)
        self._checkpoints = TrialCheckpoints(context.number)
        self._has_reported = self._has_ended = False

    @property
    def can_save(self) -> bool:
        return self._thread.offers_checkpoint

    def step(self) -> Metrics | None:
        if self._has_ended:
            return None
        kind, value = self._thread.next()
        if kind == "report":
            self._has_reported = True
            return value
        self._has_ended = True
        return last_report(value, self._has_reported, self._context)

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            raise _no_checkpoint(self._context, "report(..., checkpoint=state)")
        return self._checkpoints.save(directory, self._thread.checkpoint(), self._thread.report.step)

    def load_from(self, path: Path) -> None:
        self._thread.report.checkpoint, self._thread.report.step = self._checkpoints.load(
            path, self._context.directory / "restored"
        )

    def close(self) -> None:
        self._thread.close(GRACE_S)


class GeneratorProgram:
    """A generator function, or a function that returns its metrics at its end."""

    def __init__(self, function: Callable[..., Any], config: dict[str, Any], context: TrialContext) -> None:
        self._function, self._config, self._context = function, config, context
        self._how = _report_argument(function, "")
        self._progress = Progress(context)
        self._checkpoints = TrialCheckpoints(context.number)
        self._values: Iterator[Any] | None = None
        self._offered: Any = None
        self._has_reported = self._has_ended = False

    @property
    def can_save(self) -> bool:
        return self._offered is not None

    def step(self) -> Metrics | None:
        if self._has_ended:
            return None
        self._offered = None
        try:
            if self._values is None:
                made = self._begin()
                if not hasattr(made, "__next__"):
                    self._has_ended = True
                    return last_report(made, False, self._context)
                self._values = made
            value = next(self._values)
        except StopIteration as end:
            self._has_ended = True
            return last_report(end.value, self._has_reported, self._context)
        except (Exception, KeyboardInterrupt):  # Ctrl-C is the process's, and this is its thread
            raise
        except BaseException as error:
            raise RuntimeError(
                f"the trial raised {type(error).__name__}({error}); return to end it"
            ) from error
        if type(value) is tuple and len(value) == 2:
            value, self._offered = value
        metrics = plain_metrics(value, self._context.metric)
        self._progress.step += 1
        self._has_reported = True
        return metrics

    def _begin(self) -> Any:
        seed_everything(self._context.seed)
        if self._how == "by name":
            return self._function(self._config, report=self._progress)
        return self._function(self._config, self._progress) if self._how else self._function(self._config)

    def save_to(self, directory: Path) -> str:
        if not self.can_save:
            raise _no_checkpoint(self._context, "yield metrics, state")
        with only_exceptions():
            state = self._offered() if callable(self._offered) else self._offered
        return self._checkpoints.save(directory, state, self._progress.step)

    def load_from(self, path: Path) -> None:
        self._progress.checkpoint, self._progress.step = self._checkpoints.load(
            path, self._context.directory / "restored"
        )

    def close(self) -> None:
        self._has_ended = True
        _close_quietly(self._values)


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
            num_arguments = _num_arguments(self._class, self._class.__qualname__, "")
            self._instance = self._class(*(self._config, self._context)[:num_arguments])
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
    """What a trainable returned at its end: its last report, or None. ConfigError where that is all, and nothing."""
    if value is None and not has_reported:
        raise ConfigError(
            f"trial {context.number} returned nothing, and reported nothing: return a dict of metrics, or report them"
        )
    if value is None:
        return None
    try:
        return plain_metrics(value, context.metric)
    except (TypeError, ValueError) as error:
        if not has_reported:
            raise ConfigError(f"trial {context.number} returned {type(value).__name__}: {error}") from None
        print(f"trial {context.number}: its return value is not used: {error}", file=sys.stderr)
        return None


def _no_checkpoint(context: TrialContext, how: str) -> CheckpointError:
    return CheckpointError(
        f"trial {context.number} cannot be saved at this report: it brought no checkpoint ({how})"
    )


def _close_quietly(thing: Any) -> None:
    close = getattr(thing, "close", None)
    if close is not None:
        try:
            with only_exceptions():
                close()
        except Exception:  # its results are in; nobody waits for it any more
            traceback.print_exc()
