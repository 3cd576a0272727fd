"""What a trial host runs: every kind of trainable (function, generator, class, algorithm) becomes a `Program`.

program = open_program(trainable, config, context)
if checkpoint: program.load_from(path)
while (metrics := program.step()) is not None: ...          # one report
name = program.save_to(directory)                           # between two steps only
program.close()
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlplat.errors import RlplatError


class StillRunning(RlplatError):
    """`Program.close`: the trainable was told to end and goes on; its process must be thrown away."""


@dataclass(frozen=True)
class TrialContext:
    """What a trainable may know about its trial; the second argument of a class's constructor, and `report`'s
    attributes."""

    number: int
    seed: int
    directory: Path
    """`trials/<number>/` of the experiment: for whatever the trainable wants to keep."""
    attempt: int = 0
    """How often it was begun before."""
    metric: str = "value"
    """The experiment's (first) metric: what a report of a bare number stands for."""
    num_seeds: int = 1
    """How many programs with different seeds run side by side in the trial."""


class Program(Protocol):
    @property
    def can_save(self) -> bool:
        """Whether `save_to` would work now. A class: always or never. A function or generator: whether its last report
        came with a checkpoint."""
        ...

    def step(self) -> dict[str, Any] | None:
        """Run to the next report and return its metrics; None where the trial has come to its own end. Raises what
        the trainable raised."""
        ...

    def save_to(self, directory: Path) -> str:
        """Write a checkpoint of the state right after the last report into a new directory below `directory`
        (`trials/<number>/checkpoints/`), whole or not at all; returns its name. The one before it stays as well."""
        ...

    def load_from(self, path: Path) -> None:
        """Before the first `step`: go on from this checkpoint, maybe another trial's, maybe with another config."""
        ...

    def close(self) -> None:
        """The trial ends here or goes on elsewhere; returns when nothing of it runs any more. Raises StillRunning when
        something does."""
        ...


# -------------------------------------------------------------------------------- what trials report

Metrics = dict[str, float | int | str | bool | None]


def plain_metrics(reported: Any, metric: str) -> Metrics:
    """A report as it is recorded.

    reported: a mapping, maybe nested ({"eval": {"return": 1.0}} becomes "eval/return"), or a number, which stands for
    the experiment's metric. Numpy scalars and tensors with one value become plain numbers; NaN stays NaN, and None (not
    known at this report) None. TypeError for anything else, ValueError for an empty report.
    """
    if not isinstance(reported, Mapping):
        reported = {metric: reported}
    metrics: Metrics = {}
    _flatten(reported, "", metrics)
    if not metrics:
        raise ValueError("an empty report: give it at least one metric, as in report(accuracy=0.5)")
    return metrics


def _flatten(reported: Mapping[Any, Any], prefix: str, metrics: Metrics) -> None:
    for name, value in reported.items():
        if type(name) is not str or not name:
            raise TypeError(f"a metric's name is a text, not {name!r}")
        if type(value) is int:
            metrics[prefix + name] = _within_floats(value)
        elif value is None or type(value) in (float, bool, str):
            metrics[prefix + name] = value
        elif isinstance(value, Mapping):
            _flatten(value, f"{prefix}{name}/", metrics)
        else:
            metrics[prefix + name] = _plain(prefix + name, value)


def _plain(name: str, value: Any) -> float | int | str | bool:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return bool(value)
    if hasattr(value, "item") and _num_values(value) == 1:  # numpy scalars, arrays and tensors of one value
        value = value.item()
        if type(value) in (float, int, bool, str):
            return value
    elif hasattr(value, "__float__") and not hasattr(value, "shape"):  # Decimal, Fraction, subclasses of int and float
        return _within_floats(int(value)) if isinstance(value, int) else float(value)
    raise TypeError(
        f"metric '{name}' is {_kind(value)}; a metric is a number, a text or a bool "
        "(of an array or a tensor report its mean, say)"
    )


def _within_floats(value: int) -> float | int:
    """An integer that is too large for a float is infinite, as a float that grew so large would be."""
    if abs(value) <= sys.float_info.max:
        return value
    return math.inf if value > 0 else -math.inf


def _num_values(value: Any) -> int:
    count = 1
    for length in getattr(value, "shape", ()):
        count *= int(length)
    return count


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = f"a {type(value).__name__}"
    return f"{kind} of shape {tuple(shape)}" if shape is not None else kind
