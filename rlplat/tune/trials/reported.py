"""What trials report, made plain: numbers, texts and booleans by name."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

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
    elif hasattr(value, "__float__") and not hasattr(
        value, "shape"
    ):  # Decimal, Fraction, subclasses of int and float
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
