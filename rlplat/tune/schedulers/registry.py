"""Trial schedulers by name: `scheduler: asha` or `scheduler: {name: asha, max_progress: 81}` in an experiment file.

scheduler = make_scheduler(spec.scheduler, default_unit="env_steps", stop=spec.stop)
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.core.verdicts import TrialScheduler
from rlplat.tune.schedulers.settings import Unit, checked

SCHEDULERS = {
    "fifo": "rlplat.tune.schedulers.registry:FIFO",
    "median": "rlplat.tune.schedulers.median:MedianStopping",
    "asha": "rlplat.tune.schedulers.asha:ASHA",
    "hyperband": "rlplat.tune.schedulers.hyperband:HyperBand",
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
        raise ConfigError(
            f"scheduler has no 'name'; write {{name: asha, ...}} with one of {', '.join(SCHEDULERS)}"
        )
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
        what = (
            "is a class, not an instance of it" if isinstance(scheduler, type) else f"has no {missing[0]!r}"
        )
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
