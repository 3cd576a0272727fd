"""What a report says of its trial: how far it is, its values, whether a stop rule holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.trial import Trial


class BadReport(Exception):
    """The trial has failed with it; the experiment goes on."""


def progress_in(metrics: Mapping[str, Any], unit: str, trial: Trial) -> float:
    """In the trial scheduler's unit. ConfigError: no trial will report such a number."""
    progress = trial.progress + 1 if unit == "step" else metrics.get(unit)
    if progress is None or isinstance(progress, bool) or not isinstance(progress, int | float):
        raise ConfigError(
            f"the trial scheduler counts in '{unit}', and trial {trial.number} reported no number of that name"
            f"{closest(unit, metrics)}; reported: {listed(metrics)}"
        )
    return float(progress)


def values_in(
    metrics: Mapping[str, Any], names: Sequence[str], trial: Trial, *, may_be_late: bool
) -> tuple[float, ...] | None:
    """Of the experiment's metrics; None: they are not known yet. may_be_late: whether one that is missing comes later.
    ConfigError: no trial will report such a metric. BadReport: a value is not finite."""
    values = []
    for name in names:
        if name not in metrics:
            if may_be_late:
                return None
            raise ConfigError(
                f"no metric '{name}' in the first report of trial {trial.number}{closest(name, metrics)}; "
                f"reported: {listed(metrics)} (one that comes later is reported as None until then)"
            )
        value = metrics[name]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"metric '{name}' of trial {trial.number} is {value!r}, not a number")
        if not math.isfinite(value):
            raise BadReport(f"it reported {name} = {value} in its report {trial.step}")
        values.append(float(value))
    return tuple(values)


def rule_reached(trial: Trial, steps: float, stop: Mapping[str, float], signs: Mapping[str, float]) -> str:
    """`accuracy 0.97 >= 0.95` for the first stop rule that holds after the last report, or the empty string.

    steps: what rule `step` counts. signs: by metric; -1 where lower is better.
    """
    for name, limit in stop.items():
        value = {"step": steps, "wall_s": trial.run_s}.get(name, trial.last.get(name))
        if value is None or isinstance(value, bool | str):
            continue
        lower_is_better = signs.get(name, 1.0) < 0
        if value <= limit if lower_is_better else value >= limit:
            return f"{name} {value:,.6g} {'<=' if lower_is_better else '>='} {limit:,.6g}"
    return ""


def listed(metrics: Mapping[str, Any]) -> str:
    return ", ".join(metrics) or "nothing"
