"""Pictures of an experiment, by matplotlib.

    for name, figure in draw_all(analysis): figure.savefig(directory / f"{name}.png")

Each picture is for ten trials as for thousands: lines get thinner and fainter with their number, good trials lie above
bad ones and have the brighter colour, the best one is black. Parameters with a logarithmic domain have a logarithmic
axis, options a tick each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlplat.errors import MissingExtra
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.results.analysis import Analysis
from rlplat.tune.results.importance import Axis
from rlplat.tune.view.picture_axes import (
    blues,
    colours_by_rank,
    label_of,
    line_style,
    num_trials,
    padded,
    places_of,
    put_title,
    round_numbers,
    set_scale,
    spread,
    thousands,
    ticks_of,
    tidy,
    unit_of,
    without_outliers,
    worst_first,
)
from rlplat.tune.view.texts import short_names, value_text

_DPI = 130
_BEST = "#111111"
_NOT_THERE = -0.09
"""The height at which lines pass an axis that they have no value on."""
_READABLE = {"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
_MOST_AXES = 14
"""Of a parallel-coordinates picture, and slices in one picture: the most important parameters."""


def draw_all(analysis: Analysis) -> Iterator[tuple[str, Any]]:
    """(name, matplotlib Figure) of each picture for which there is something to see."""
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "a picture") from None
    pictures = {
        "learning_curves": learning_curves,
        "pareto_front": pareto_front,
        "importance": importance,
        "slices": slices,
        "parallel_coordinates": parallel_coordinates,
        "schedules": schedules,
    }
    for name, draw in pictures.items():
        figure = Figure(dpi=_DPI, layout="constrained")
        if draw(figure, analysis):
            yield name, figure


def learning_curves(figure: Any, analysis: Analysis) -> bool:
    """Every trial's metric over its progress; a dot where a trial was stopped, a cross where it failed."""
    from matplotlib.collections import LineCollection

    curves = [(trial, _curve(trial, analysis)) for trial in analysis.trials]
    curves = [(trial, points) for trial, points in curves if len(points)]
    if not curves or max(len(points) for _, points in curves) < 2:
        return False
    figure.set_size_inches(8, 4.6)
    axes = figure.add_subplot()
    order = worst_first([trial for trial, _ in curves], analysis)
    points_by_number = {trial.number: points for trial, points in curves}
    colours = colours_by_rank(order)
    faint, width = line_style(len(order))
    best = order[-1] if order[-1].values else None
    lines = [points_by_number[trial.number] for trial in order if trial is not best]
    shades = [(*colours[trial.number][:3], faint) for trial in order if trial is not best]
    axes.add_collection(LineCollection(lines, colors=shades, linewidths=width, zorder=2))
    for state, marker in ((TrialState.STOPPED, "."), (TrialState.FAILED, "x")):
        ends = [points_by_number[trial.number][-1] for trial in order if trial.state is state]
        if ends:
            x, y = np.array(ends).T
            size = 30 if len(ends) < 100 else 10
            colour = "tab:red" if state is TrialState.FAILED else "0.35"
            axes.scatter(x, y, s=size, marker=marker, color=colour, linewidths=1, zorder=3, label=str(state))
    if best is not None:
        x, y = points_by_number[best.number].T
        axes.plot(x, y, color=_BEST, linewidth=2, zorder=4, label=label_of(best, analysis))
    everything = np.concatenate(list(points_by_number.values()))
    everything = everything[~np.isnan(everything[:, 0])]
    axes.set_xlim(*padded(everything[:, 0].tolist()))
    axes.set_ylim(*without_outliers(everything[:, 1]))
    axes.set_xlabel(unit_of([trial for trial, _ in curves]))
    axes.set_ylabel(analysis.metric[0])
    thousands(axes.xaxis)
    put_title(figure, f"{analysis.name}: {num_trials(len(curves))}", best)
    tidy(axes)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small", ncols=3)
    return True


def pareto_front(figure: Any, analysis: Analysis) -> bool:
    """The first two objectives of every trial, and the front."""
    trials = [trial for trial in analysis.trials if analysis.counts(trial)]
    if len(analysis.metric) < 2 or not trials:
        return False
    figure.set_size_inches(6.4, 4.8)
    axes = figure.add_subplot()
    values = np.array([trial.values[:2] for trial in trials])
    axes.scatter(values[:, 0], values[:, 1], s=18, color="0.65", linewidths=0, label="trials")
    steps = "steps-pre" if analysis.mode[0] == "max" else "steps-post"  # what can be had at least, or at most
    front = np.array(sorted(trial.values[:2] for trial in analysis.pareto_front))
    axes.plot(
        front[:, 0],
        front[:, 1],
        "o-",
        color="tab:blue",
        markersize=5,
        label="Pareto front",
        drawstyle=steps,
    )
    for axis, name, mode in zip("xy", analysis.metric, analysis.mode, strict=False):
        getattr(axes, f"set_{axis}label")(f"{name} ({'higher' if mode == 'max' else 'lower'} is better)")
    axes.set_title(f"{analysis.name}: {num_trials(len(trials))}")
    tidy(axes)
    axes.legend(frameon=False)
    return True


def importance(figure: Any, analysis: Analysis) -> bool:
    """How much each parameter matters."""
    found = analysis.importances[: 2 * _MOST_AXES]
    if not found:
        return False
    figure.set_size_inches(7, 1.3 + 0.3 * len(found))
    axes = figure.add_subplot()
    names = short_names([one.name for one in found])
    shares = [one.share for one in found]
    colours = ["0.75" if one.may_be_chance else "tab:blue" for one in found]
    axes.barh(range(len(found)), shares, color=colours)
    for row, one in enumerate(found):
        text = f" {one.share:.0%}" + ("  (may be chance)" if one.may_be_chance else "")
        axes.text(one.share, row, text, va="center", fontsize="small")
    axes.set_yticks(range(len(found)), [names[one.name] for one in found])
    axes.invert_yaxis()
    axes.set_xlim(0, max([*shares, 0.01]) * 1.3)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}" if share <= 1 else "")
    axes.set_title(f"Importance for {analysis.metric[0]} (PED-ANOVA, {num_trials(len(analysis.judged))})")
    tidy(axes)
    axes.grid(axis="y", visible=False)
    return True


def slices(figure: Any, analysis: Analysis) -> bool:
    """The metric against each parameter; later trials are darker, the best is a star."""
    trials, names = analysis.judged, _important_names(analysis)
    if len(trials) < 2 or not names:
        return False
    columns = 3 if len(names) in (5, 6, 9) else min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(3.0 * columns + 0.9, 2.6 * rows + 0.3)
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    short = short_names(names)
    limits = without_outliers(np.array([trial.values[0] for trial in trials]))
    size = 26 if len(trials) <= 50 else 14 if len(trials) <= 300 else 6
    best = max(trials, key=analysis.score)
    dots = None
    for place, axes in enumerate(grid.flat):
        if place >= len(names):
            axes.set_visible(False)
            continue
        name, axis = names[place], analysis.axes[names[place]]
        has = [trial for trial in trials if name in trial.params]
        x = places_of(axis, [trial.params[name] for trial in has], jitter=0.18)
        y = [trial.values[0] for trial in has]
        numbers = [trial.number for trial in has]
        dots = axes.scatter(
            x, y, c=numbers, s=size, cmap=blues(), vmin=0, vmax=max(1, len(analysis.trials) - 1),
            linewidths=0.3, edgecolors="0.3",
        )  # fmt: skip
        if best in has:
            at = places_of(axis, [best.params[name]], jitter=0)
            axes.scatter(
                at, [best.values[0]], marker="*", s=150, color="tab:orange", edgecolors="k", linewidths=0.6
            )
        set_scale(axes, axis, "x")
        axes.set_xlabel(short[name])
        axes.set_ylim(*limits)
        if place % columns == 0:
            axes.set_ylabel(analysis.metric[0])
        tidy(axes)
    bar = figure.colorbar(dots, ax=grid, shrink=0.8, pad=0.01)
    bar.set_label("trial")
    return True


def parallel_coordinates(figure: Any, analysis: Analysis) -> bool:
    """A line per trial through its parameters to its metric; bright is good. A parameter that a trial does not have
    is passed below the axis."""
    from matplotlib.collections import LineCollection

    names = _important_names(analysis)[: _MOST_AXES - 1][::-1]
    trials = worst_first(analysis.judged, analysis)
    if len(trials) < 2 or len(names) < 2:
        return False
    figure.set_size_inches(max(7.0, 1.5 * (len(names) + 1)), 4.8)
    axes = figure.add_subplot()
    low, high = without_outliers(np.array([trial.values[0] for trial in trials]))
    short = short_names(names)
    heights = np.empty((len(trials), len(names) + 1))
    rng = np.random.default_rng(0)
    for column, name in enumerate(names):
        axis = analysis.axes[name]
        places = [
            spread(axis, axis.position(trial.params[name])) if name in trial.params else math.nan
            for trial in trials
        ]
        heights[:, column] = np.nan_to_num(places, nan=_NOT_THERE)
        if (axis.options or axis.marks) and len(
            trials
        ) > 20:  # lines side by side: how many there are can be seen
            heights[:-1, column] += rng.uniform(-0.02, 0.02, len(trials) - 1)
    values = np.array([trial.values[0] for trial in trials])
    heights[:, -1] = np.clip((values - low) / (high - low), -0.02, 1.02)
    colours, (faint, width) = colours_by_rank(trials), line_style(len(trials))
    lines = [np.column_stack([np.arange(len(names) + 1), row]) for row in heights]
    shades = [(*colours[trial.number][:3], faint) for trial in trials]
    axes.add_collection(LineCollection(lines[:-1], colors=shades[:-1], linewidths=width, zorder=2))
    axes.plot(*lines[-1].T, color=_BEST, linewidth=2, zorder=3, label=label_of(trials[-1], analysis))
    beside = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 7, "va": "center", "zorder": 5}
    for column, name in enumerate(names):
        axes.axvline(column, color="0.4", linewidth=0.8, zorder=1)
        for height, text in ticks_of(analysis.axes[name]):
            axes.annotate(text, (column, height), **beside, bbox=_READABLE)
        if any(name not in trial.params for trial in trials):
            axes.annotate("not there", (column, _NOT_THERE), color="0.4", **beside)
    axes.axvline(len(names), color="0.4", linewidth=0.8, zorder=1)
    for value in round_numbers(low, high):
        axes.annotate(value_text(value), (len(names), (value - low) / (high - low)), **beside)
    axes.set_xticks(
        range(len(names) + 1), [*(short[name] for name in names), analysis.metric[0]], rotation=20, ha="right"
    )
    axes.set_xlim(-0.1, len(names) + 0.3)
    axes.set_ylim(-0.12, 1.05)
    axes.set_yticks([])
    title = f"{analysis.name}: {num_trials(len(trials))}"
    put_title(
        figure,
        f"{title}, parameters that matter most on the right" if analysis.importances else title,
        trials[-1],
    )
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return True


def schedules(figure: Any, analysis: Analysis) -> bool:
    """Population-based training: how parameters changed on the way to each trial's present weights."""
    schedule_by_number = {
        trial.number: trial.notes["schedule"]
        for trial in analysis.trials
        if len(trial.notes.get("schedule", ())) > 1
    }
    if not schedule_by_number:
        return False
    trials = [trial for trial in analysis.trials if trial.number in schedule_by_number]
    changed = {
        name
        for story in schedule_by_number.values()
        for (_, before), (_, after) in itertools.pairwise(story)
        for name in after
        if before.get(name) != after[name]
    }
    names = [name for name in analysis.axes if name in changed][:_MOST_AXES]
    if not names:
        return False
    figure.set_size_inches(8, 2.3 * len(names) + 0.7)
    grid = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    order = worst_first(trials, analysis)
    colours, (faint, width) = colours_by_rank(order), line_style(len(order))
    for axes, name in zip(grid, names, strict=True):
        axis = analysis.axes.get(name) or Axis()
        for trial in order:
            is_best = trial is order[-1]
            story = [
                *schedule_by_number[trial.number],
                [trial.progress, schedule_by_number[trial.number][-1][1]],
            ]
            y = places_of(axis, [params.get(name) for _, params in story], jitter=0)
            style = {
                "color": _BEST,
                "linewidth": 2,
                "zorder": 3,
                "label": label_of(trial, analysis),
            }
            if not is_best:
                style = {"color": (*colours[trial.number][:3], faint), "linewidth": width, "zorder": 2}
            axes.step([progress for progress, _ in story], y, where="post", **style)
        set_scale(axes, axis, "y")
        axes.set_ylabel(short_names(names)[name])
        tidy(axes)
    grid[-1].set_xlabel(unit_of(trials))
    grid[0].set_title(f"{analysis.name}: schedules of the weights that {num_trials(len(trials))} ended with")
    thousands(grid[-1].xaxis)
    figure.legend(
        *grid[-1].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize="small"
    )
    return True


def _important_names(analysis: Analysis) -> list[str]:
    """Of the parameters that differ between trials; the most important first, as far as that is known."""
    ranks = {one.name: rank for rank, one in enumerate(analysis.importances)}
    varying = [
        name for name in analysis.axes if len({str(trial.params.get(name)) for trial in analysis.judged}) > 1
    ]
    return sorted(varying, key=lambda name: ranks.get(name, len(ranks)))[:_MOST_AXES]


def _curve(trial: Trial, analysis: Analysis) -> np.ndarray:
    """float[reports, 2]: progress and the metric, finite ones; NaN, so that the line is broken, where the trial went on
    from another one's checkpoint."""
    sign = 1.0 if analysis.mode[0] == "max" else -1.0
    points = np.array([(progress, sign * score) for progress, score in trial.history], dtype=float).reshape(
        -1, 2
    )
    breaks = [exploit["reports"] for exploit in trial.notes.get("exploits", ())]
    points[~np.isfinite(points).all(axis=1)] = np.inf
    points = np.insert(points, [at for at in breaks if 0 < at < len(points)], np.nan, axis=0)
    return points[~np.isinf(points).any(axis=1)]
