"""Trial schedulers: who goes on, who stops, who waits, who starts again from whom. Pure judgements on recorded scores.

    scheduler.add(trial)                                    # a trial was suggested
    scheduler.record(trial, progress, score)                # it reported
    verdict = scheduler.judge(trial)                        # Continue | Stop | Pause | Exploit
    scheduler.end(trial)                                    # it ended, one way or another
    for number, verdict in scheduler.due(): ...             # Resume | Stop | Exploit for paused ones, at every change

A score is higher where the trial is better: the experiment turns the sign for `mode: min`. There is no clock, no file
and no random number that does not come from (seed, trial, progress). What a scheduler must remember of a trial that
cannot be computed from the scores is in `trial.notes`. So an experiment that goes on after a crash makes a new
scheduler, gives it `add`, the recorded scores and `end` of every trial again, and has the state it had; where a verdict
was not carried out any more, `judge` is asked once more.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, create_model

from rlplat.config import Layer, closest, resolve
from rlplat.errors import ConfigError
from rlplat.section import Section
from rlplat.tune.trial import Trial


@dataclass(frozen=True)
class Continue:
    """Go on. save: write a checkpoint first (somebody may be told to go on from it)."""

    save: bool = False


@dataclass(frozen=True)
class Stop:
    """It is not worth going on; counts as a result at the progress it has."""

    reason: str
    """One line for the user: `below the best third of 9 at 4 steps (0.31 < 0.55)`."""
    is_complete: bool = False
    """It has had all the budget there is: it ends as COMPLETE."""


@dataclass(frozen=True)
class Pause:
    """Write a checkpoint and free the process; `due` will say whether it goes on."""


@dataclass(frozen=True)
class Resume:
    """A paused trial goes on from its checkpoint."""


@dataclass(frozen=True)
class Exploit:
    """Go on from the newest checkpoint of trial `source`, with `config` (and its flat `params`).

    The experiment writes it into `trial.notes["exploits"]` and `trial.notes["schedule"]` (see `exploits.py`).
    """

    source: int
    config: dict[str, Any]
    params: dict[str, Any]
    reason: str


Verdict = Continue | Stop | Pause | Exploit
Due = Resume | Stop | Exploit


class TrialScheduler:
    """One per experiment. Constructor arguments are the settings of `scheduler:` in an experiment file. As it stands
    here, every trial runs to its end.

    `unit` is what progress is counted in: "step" (reports) or the name of a metric that grows, such as env_steps.
    """

    name: ClassVar[str]
    unit: str
    needs_checkpoints = False
    """Whether a trainable that cannot save is refused before anything runs (Pause and Exploit need `save`)."""

    def open(self, seed: int, space: Any) -> None:
        """Before the first `add`. seed: the experiment's; space: the `Space`, for those who change configs."""

    def add(self, trial: Trial) -> None:
        """A new trial, or one of the storage: then `trial.notes` is what it was. May write to `trial.notes`."""

    def record(self, trial: Trial, progress: float, score: float) -> None:
        """It reported."""

    def judge(self, trial: Trial) -> Verdict:
        """On its last record. A trial that repeats reports after a crash goes on until it is where it was; what was
        said there, and carried out, is not said again. Where levels lie between two reports, the first report beyond
        a level counts for it."""
        return Continue()

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended; a failed trial must not make others wait for it."""

    def due(self) -> list[tuple[int, Due]]:
        """Verdicts on paused trials that can be given now; each is given once."""
        return []

    def no_more_trials(self) -> None:
        """No further `add` will come: what waits for a bracket to fill is judged with what is there."""


# -------------------------------------------------------------------------------- settings

Progress = Annotated[float, Field(gt=0)]
Factor = Annotated[float, Field(gt=1)]
Unit = Annotated[str, Field(min_length=1)]
"""`step`, or the name of a metric."""
Init = typing.TypeVar("Init", bound=Callable[..., None])


def checked(init: Init) -> Init:
    """Decorator of `__init__`. ConfigError: all that is wrong, with the name of the scheduler."""
    names = list(inspect.signature(init).parameters)[1:]

    @functools.cache
    def section() -> type[Section]:
        hints = typing.get_type_hints(init, include_extras=True)
        parameters = inspect.signature(init).parameters
        fields: dict[str, Any] = {name: (hints[name], parameters[name].default) for name in names}
        return create_model("Settings", __base__=Section, **fields)

    @functools.wraps(init)
    def with_checks(self: Any, *args: Any, **settings: Any) -> None:
        try:
            found = resolve(section(), [Layer(dict(zip(names, args, strict=False)) | settings)])
        except ConfigError as error:
            raise ConfigError(f"trial scheduler '{self.name}': {error}") from None
        init(self, **dict(found))

    return with_checks  # type: ignore[return-value]


# -------------------------------------------------------------------------------- by name

SCHEDULERS = {
    "fifo": "rlplat.tune.schedulers:FIFO",
    "median": "rlplat.tune.schedulers.median:MedianStopping",
    "asha": "rlplat.tune.schedulers.halving:ASHA",
    "hyperband": "rlplat.tune.schedulers.halving:HyperBand",
    "pbt": "rlplat.tune.schedulers.pbt:PBT",
    "pb2": "rlplat.tune.schedulers.pb2:PB2",
}
"""Imported when it is asked for."""

_VERBS = ("open", "add", "record", "judge", "end", "due", "no_more_trials")


def make_scheduler(
    settings: str | Mapping[str, Any] | TrialScheduler,
    default_unit: str = "step",
    stop: Mapping[str, float] | None = None,
) -> TrialScheduler:
    """The trial scheduler of an experiment, its settings checked.

    settings: a name, a name with settings, or the scheduler itself (then it is returned as it is).
    default_unit: what progress is counted in where the settings do not say `unit`.
    stop: the experiment's stop rules: the one on the unit is `max_progress` where the settings do not say it, because
    no trial gets further than that.
    """
    if not isinstance(settings, str | Mapping):
        return _checked_object(settings)
    given: dict[str, Any] = {"name": settings} if isinstance(settings, str) else dict(settings)
    name = given.pop("name", None)
    if name is None:
        raise ConfigError(f"scheduler has no 'name'; write {{name: asha, ...}} with one of {', '.join(SCHEDULERS)}")
    if not isinstance(name, str) or name not in SCHEDULERS:
        hint = closest(str(name), SCHEDULERS)
        raise ConfigError(f"unknown trial scheduler {name!r}{hint or '; there are ' + ', '.join(SCHEDULERS)}")
    module, class_name = SCHEDULERS[name].split(":")
    kind = getattr(importlib.import_module(module), class_name)
    unit = given.setdefault("unit", default_unit)
    limit = next((limit for key, limit in (stop or {}).items() if key == unit), None)
    if given.get("max_progress") is None and "max_progress" in inspect.signature(kind).parameters:
        given["max_progress"] = limit
    scheduler: TrialScheduler = kind(**given)
    return scheduler


def _checked_object(scheduler: Any) -> TrialScheduler:
    missing = [verb for verb in _VERBS if not callable(getattr(scheduler, verb, None))]
    missing += [name for name in ("name", "unit", "needs_checkpoints") if not hasattr(scheduler, name)]
    if missing or isinstance(scheduler, type):
        what = "is a class, not an instance of it" if isinstance(scheduler, type) else f"has no {missing[0]!r}"
        raise ConfigError(
            f"scheduler must be a name ({', '.join(SCHEDULERS)}), a mapping with a name and settings, or a "
            f"TrialScheduler; {scheduler!r} {what}"
        )
    found: TrialScheduler = scheduler
    return found


class FIFO(TrialScheduler):
    """Every trial runs to its end."""

    name = "fifo"

    @checked
    def __init__(self, unit: Unit = "step") -> None:
        self.unit = unit
