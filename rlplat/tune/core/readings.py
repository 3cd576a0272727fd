"""What a report says of its trial: how far it is, its values, whether a stop rule holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.core.trial import Trial
from rlplat.tune.settings.spec import ExperimentSpec


class BadReport(Exception):
    """The trial has failed with it; the experiment continues."""


def progress_in(metrics: Mapping[str, Any], unit: str, trial: Trial) -> float:
    """In the trial scheduler's unit. ConfigError: no trial will report such a number."""
    progress = trial.progress + 1 if unit == "step" else metrics.get(unit)
    if progress is None or isinstance(progress, bool) or not isinstance(progress, int | float):
        raise ConfigError(
            f"the trial scheduler counts in '{unit}', and trial {trial.number} reported no number of that name"
            f"{closest(unit, metrics)}\nreported: {listed(metrics)}"
        )
    return float(progress)


def check_names(metrics: Mapping[str, Any], spec: ExperimentSpec, trial: Trial, is_algorithm: bool) -> None:
    """Of a first report. ConfigError: the experiment asks for what nobody reports, so trials would run for nothing, or
    without end. Metrics in groups (eval/return_mean) of an algorithm may come later."""
    for key, names in (("metric", spec.metric), ("stop", spec.stop)):
        always = ("step", "wall_s") if key == "stop" else ()
        for name in names:
            if name in metrics or name in always or (is_algorithm and "/" in name):
                continue
            where = spec.where(key if key == "metric" else f"stop.{name}")
            raise ConfigError(
                f"{key}{where}: no metric '{name}' in the first report of trial {trial.number}"
                f"{closest(name, [*metrics, *always])}\nreported: {listed(metrics)} (one that comes later is "
                "reported as None until then)"
            )


def values_in(metrics: Mapping[str, Any], names: Sequence[str], trial: Trial) -> tuple[float, ...] | None:
    """Of the experiment's metrics; None: they are not known yet. ConfigError: one is no number. BadReport: a value is
    not finite."""
    values = []
    for name in names:
        value = metrics.get(name)
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
