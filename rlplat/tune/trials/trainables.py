"""What a trainable is.

    def trial(config):                      # a function that returns its metrics, or a number, at its end
    def trial(config, report):              # ... that reports as it goes
    def trial(config):                      # a generator that yields metrics, or (metrics, checkpoint)
    def trial(config, report):              #     with `report.checkpoint`, `report.seed` and so on
    class Trial:                            # __init__(config) or (config, context), step(), maybe save, load, close
    "./file.py:trial", "pkg.mod:Trial"      # any of them by name: imported where it runs
    "ppo"                                   # an algorithm

Which of them it is, is settled in the driver, before anything runs; `programs` makes a Program of it in the host.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlplat.errors import ConfigError
from rlplat.rl.class_path import load_class

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
    leaves_gpus: bool = False
    """Whether those of a trial are for actors that it starts."""

    @property
    def is_algorithm(self) -> bool:
        return self.form == "algorithm"

    @property
    def closes(self) -> bool:
        """Whether the end of a trial runs user code that the trial's process cannot limit."""
        return self.form in ("class", "algorithm")

    @property
    def unit(self) -> str:
        """What the progress of its trials is counted in, unless the trial scheduler says otherwise."""
        return "env_steps" if self.is_algorithm else "step"

    def demand(self, resources: Mapping[str, float] | None, config: dict[str, Any]) -> dict[str, float]:
        """What a trial takes of the cluster, by the cluster's names: {"CPU": 1.0}.

        resources: the experiment's, where it says them; else one CPU, or what the algorithm's config comes to."""
        if resources is None and self.is_algorithm:
            from rlplat.tune.trials.rl_config import demand_of

            return demand_of(self.name, config)
        names = {"cpu": "CPU", "gpu": "GPU"}
        given = {"cpu": 1.0} if resources is None else resources
        return {names.get(name, name): float(amount) for name, amount in given.items() if amount}

    def host_gpus(self, demand: Mapping[str, float]) -> float:
        """How many of the trial's GPUs its host uses itself; an algorithm's learner is an actor of its own."""
        return 0.0 if self.is_algorithm or self.leaves_gpus else demand.get("GPU", 0.0)

    def document(self, config: dict[str, Any], seed: int, directory: Path) -> str | None:
        """The text of best.yaml in this directory; None: just the config. Of an algorithm all settings, as config.yaml
        of a run: `rlplat train best.yaml` takes it. seed: the trial's."""
        if not self.is_algorithm:
            return None
        from rlplat.tune.trials.rl_config import plan_trial

        return plan_trial(self.name, config, seed).to_yaml(directory)

    def notes(self, config: dict[str, Any]) -> list[str]:
        """What was decided for the user, a line each; config: of some trial."""
        if not self.is_algorithm:
            return []
        from rlplat.tune.trials.rl_config import plan_trial

        return plan_trial(self.name, config).notes


def check_trainable(trainable: Any) -> TrainableKind:
    """What a trainable is, in the driver; ConfigError where it is none, or cannot travel to another process."""
    found, kind = settled(trainable)
    if not isinstance(trainable, str):
        _check_travels(found)
    return kind


def settled(trainable: Any) -> tuple[Any, TrainableKind]:
    """(the thing itself, what it is)."""
    from rlplat.rl.run import registry

    if not isinstance(trainable, str):
        is_algorithm = registry.is_algorithm(trainable)
        return trainable, _kind_of(trainable, (_algorithm_name if is_algorithm else _name_of)(trainable))

    found = load_class(trainable) if ":" in trainable else registry.load_algorithm(trainable)
    return found, _kind_of(found, trainable)


def _kind_of(found: Any, name: str) -> TrainableKind:
    if inspect.isclass(found):
        return _kind_of_class(found, name)
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise ConfigError(f"{name} is `async def`, which a trial cannot be: {_WHAT_IT_IS}")
    if not callable(found):
        hint = ""
        if callable(getattr(found, "step", None)):
            hint = f" (an instance of {type(found).__name__}: give the class itself, each trial makes its own)"
        raise ConfigError(f"{found!r:.80} is no trainable{hint}: {_WHAT_IT_IS}")
    takes_report = report_argument(found, name) is not None
    if _is_generator(found):
        return TrainableKind("generator", name, None, getattr(found, "leaves_gpus", False))
    return TrainableKind("reporting function", name, None) if takes_report else TrainableKind("function", name, False)


def _kind_of_class(found: type, name: str) -> TrainableKind:
    from rlplat.rl.run.registry import is_algorithm

    if is_algorithm(found):
        return TrainableKind("algorithm", name, True)
    step = getattr(found, "step", None)
    if not callable(step):
        raise ConfigError(f"class {name} has no step(self): {_WHAT_IT_IS}")
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        raise ConfigError(f"{name}.step returns one report; it cannot be `async def` or a generator")
    num_arguments(found, name, "__init__(self, config) or (self, config, context)")
    can_save = callable(getattr(found, "save", None))
    if can_save != callable(getattr(found, "load", None)):
        has, lacks = ("save", "load") if can_save else ("load", "save")
        raise ConfigError(
            f"class {name} has {has} and no {lacks}: save(self) returns a state, load(self, state) takes it"
        )
    return TrainableKind("class", name, can_save)


def _algorithm_name(found: type) -> str:
    """Under which the registry finds this class: config.yaml and best.yaml name it."""
    from rlplat.rl.run.registry import algorithm_homes

    home = f"{found.__module__}:{found.__qualname__}"
    return next((name for name, announced in algorithm_homes().items() if announced == home), home)


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(type(function).__call__)


def report_argument(function: Callable[..., Any], name: str) -> str | None:
    """How a function takes `report`: "by name", "second", or not at all."""
    taken = num_arguments(function, name, "f(config) or f(config, report)")
    parameters = _parameters(function, name)
    if any(one.name == "report" and one.kind is not one.POSITIONAL_ONLY for one in parameters[1:]):
        return "by name"
    return "second" if taken == 2 else None


def num_arguments(function: Callable[..., Any], name: str, forms: str) -> int:
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
