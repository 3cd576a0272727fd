"""What the pictures of an experiment share: scales and ticks of parameters, colours by rank, limits, titles."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlplat.tune.core.trial import Trial
from rlplat.tune.results.analysis import Analysis
from rlplat.tune.results.importance import Axis
from rlplat.tune.view.texts import params_text, value_text


def worst_first(trials: Sequence[Trial], analysis: Analysis) -> list[Trial]:
    """Those without a value before all others; the best comes last and is drawn on top."""
    return sorted(
        trials,
        key=lambda trial: (analysis.counts(trial), analysis.score(trial) if analysis.counts(trial) else 0),
    )


def colours_by_rank(order: Sequence[Trial]) -> Mapping[int, Any]:
    """By rank: a metric with outliers would leave all others in one colour."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0, 0.92, max(2, len(order))))
    return {trial.number: shade for trial, shade in zip(order, shades, strict=False)}


def blues() -> Any:
    """Without the palest third, which cannot be seen on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"](np.linspace(0.3, 1, 256)))


def line_style(num: int) -> tuple[float, float]:
    """(opacity, width) with which so many lines can be told apart."""
    return max(0.18, min(0.9, 12 / num**0.62)), 1.4 if num <= 30 else 0.9 if num <= 200 else 0.5


def places_of(axis: Axis, values: Sequence[Any], *, jitter: float) -> list[float]:
    """Where values are on an axis of a plot; options side by side would hide each other, so they are jittered."""
    if not axis.options:
        return [
            float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            for value in values
        ]
    shifts = np.random.default_rng(0).uniform(-jitter, jitter, len(values))
    return [axis.position(value) + float(shift) for value, shift in zip(values, shifts, strict=True)]


def set_scale(axes: Any, axis: Axis, which: str) -> None:
    set_ticks, set_limits = getattr(axes, f"set_{which}ticks"), getattr(axes, f"set_{which}lim")
    if axis.options:
        texts = [shortened(value_text(option)) for option in axis.options]
        is_crowded = which == "x" and sum(map(len, texts)) > 24
        turned = {"rotation": 30, "ha": "right"} if is_crowded else {}
        set_ticks(range(len(texts)), texts, fontsize="small", **turned)
        set_limits(-0.5, len(texts) - 0.5)
        return
    if axis.is_log:
        getattr(axes, f"set_{which}scale")("log")
    elif axis.is_integer:
        getattr(axes, f"{which}axis").get_major_locator().set_params(integer=True)
    if axis.marks and len(axis.marks) <= 8:
        set_ticks(axis.marks, [f"{mark:.4g}" for mark in axis.marks])
        set_ticks([], minor=True)
    elif axis.is_log:
        set_ticks(*few_marks(axis.low, axis.high), fontsize="small")
        set_ticks([], minor=True)


def few_marks(low: float, high: float, most: int = 4) -> tuple[list[float], list[str]]:
    """Round numbers for a narrow logarithmic axis and their texts: matplotlib's own labels overlap."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        marks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
        marks = [mark for mark in marks if low <= mark * (1 + 1e-9) and mark <= high * (1 + 1e-9)]
        if len(marks) >= 2:
            break
    else:
        marks = [low, high]
    marks = marks[:: math.ceil(len(marks) / most)]
    return marks, [f"{mark:.3g}" for mark in marks]


def spread(axis: Axis, position: float) -> float:
    """0 to 1; a single option in the middle."""
    if not axis.options:
        return position
    return position / (len(axis.options) - 1) if len(axis.options) > 1 else 0.5


def ticks_of(axis: Axis) -> list[tuple[float, str]]:
    """(height from 0 to 1, text) on an axis of parallel coordinates."""
    if axis.options:
        return [
            (spread(axis, float(i)), shortened(value_text(option))) for i, option in enumerate(axis.options)
        ]
    if axis.marks:
        values = list(axis.marks)
    elif axis.is_log:
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        values = [10.0**exponent for exponent in range(first, last + 1, max(1, (last - first) // 6))]
    else:
        values = round_numbers(axis.low, axis.high, only_integers=axis.is_integer)
    inner = [value for value in values if 0.08 < axis.position(value) < 0.92]
    return [(axis.position(value), f"{value:.4g}") for value in [axis.low, *inner, axis.high]]


def round_numbers(low: float, high: float, *, only_integers: bool = False) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [
        float(value)
        for value in MaxNLocator(6, integer=only_integers).tick_values(low, high)
        if low <= value <= high
    ]


def shortened(text: str, most: int = 18) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def without_outliers(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis: of all values, unless a few lie so far away that the others could not be told apart."""
    low, high = float(np.min(values)), float(np.max(values))
    inner_low, inner_high = (float(number) for number in np.quantile(values, (0.05, 0.95)))
    reach = max(inner_high - inner_low, 1e-12 * max(1.0, abs(inner_high)))
    if inner_low - low > 4 * reach:
        low = inner_low - 0.5 * reach
    if high - inner_high > 4 * reach:
        high = inner_high + 0.5 * reach
    return padded([low, high])


def padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = float(min(values)), float(max(values))
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def unit_of(trials: Sequence[Trial]) -> str:
    """What the progress of these trials counts."""
    if all(trial.progress == trial.step for trial in trials):
        return "reports"
    for name in trials[0].last:
        if all(trial.last.get(name) == trial.progress for trial in trials if trial.last):
            return name
    return "progress"


def label_of(trial: Trial, analysis: Analysis) -> str:
    return (
        f"best: trial {trial.number}, {value_text(float(trial.values[0]))}" if trial.values else "best: none"
    )


def put_title(figure: Any, text: str, best: Trial | None) -> None:
    """With the parameters of the best trial."""
    width = int(11.5 * figure.get_size_inches()[0])
    params = (
        textwrap.fill(f"best: {params_text(best.params, 3 * width)}", width) if best and best.params else ""
    )
    figure.suptitle(text, fontsize="large")
    if params:
        figure.axes[0].set_title(params, fontsize="small", color="0.3")


def num_trials(num: int) -> str:
    return "1 trial" if num == 1 else f"{num:,} trials"


def thousands(axis: Any) -> None:
    """100,000 rather than 100000; fractions as they are."""
    axis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if float(value).is_integer() else f"{value:.6g}"
    )


def tidy(axes: Any) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
