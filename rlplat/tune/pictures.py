"""Pictures of an experiment: Optuna's, by matplotlib, of the same trials; and what Optuna has none of.

    for name, figure in draw_all(analysis): figure.savefig(directory / f"{name}.png")

schedules: how population-based training changed the parameters; importance: also of conditional ones.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlplat.errors import MissingExtra
from rlplat.tune.analysis import Analysis
from rlplat.tune.roster import short_names
from rlplat.tune.samplers import as_study
from rlplat.tune.trial import Trial

_DPI = 130
_MOST_AXES = 14
"""Parameters in one picture: the most important ones."""
_MOST_IN_LEGEND = 12


def draw_all(analysis: Analysis) -> Iterator[tuple[str, Any]]:
    """(name, matplotlib Figure) of each picture for which there is something to see."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "a picture") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "experimental"; glyphs that the font has not
        for name, draw in (*_optunas(analysis), ("importance", _importance), ("schedules", _schedules)):
            if (figure := draw(analysis)) is not None:
                figure.set_dpi(_DPI)
                yield name, figure
                plt.close(figure)


def _optunas(analysis: Analysis) -> Iterator[tuple[str, Callable[[Analysis], Any]]]:
    from optuna.visualization import matplotlib as theirs

    target, metric = (lambda trial: trial.values[0]), analysis.metric[0] if analysis.metric else ""
    names = _important_names(analysis)

    def curves(analysis: Analysis) -> Any:
        axes = theirs.plot_intermediate_values(as_study(analysis.trials, analysis.mode, analysis.domains))
        axes.set(xlabel=_unit_of(analysis.trials), ylabel=metric, title=analysis.name)
        if len(analysis.trials) > _MOST_IN_LEGEND:
            axes.legend([]).remove()
            for line in axes.lines:
                line.set(alpha=max(0.1, 12 / len(axes.lines)), linewidth=1, marker="")
        return axes.figure

    def judged(draw: Callable[..., Any], *of: str, **options: Any) -> Callable[[Analysis], Any]:
        def figure(analysis: Analysis) -> Any:
            axes = draw(as_study(analysis.judged, analysis.mode, analysis.domains), *map(list, of), **options)
            made = getattr(axes, "flat", [axes])[0].figure
            made.set_size_inches(max(7.0, 2.2 * len(names)), 4.8)
            return made

        return figure

    if any(len(trial.history) > 1 for trial in analysis.trials):
        yield "learning_curves", curves
    if len(analysis.metric) in (2, 3) and analysis.judged:
        yield "pareto_front", judged(theirs.plot_pareto_front, target_names=list(analysis.metric))
    if len(analysis.judged) > 1 and names:
        told = {"params": names, "target": target, "target_name": metric}
        yield "slices", judged(theirs.plot_slice, **told)
        if len(names) > 1:
            yield "parallel_coordinates", judged(theirs.plot_parallel_coordinate, **told)


def _importance(analysis: Analysis) -> Any:
    """How much each parameter matters."""
    from matplotlib import pyplot

    found = dict(itertools.islice(analysis.importances.items(), 2 * _MOST_AXES))
    if not found:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 1.3 + 0.3 * len(found)), layout="constrained")
    axes.bar_label(axes.barh([*short_names([*found]).values()], [*found.values()]), fmt="{:.0%}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_title(f"Importance for {analysis.metric[0]} (PED-ANOVA, {len(analysis.judged):,} trials)")
    return figure


def _schedules(analysis: Analysis) -> Any:
    """Population-based training: how parameters changed on the way to each trial's present weights."""
    from matplotlib import pyplot

    stories = [
        (trial, [*trial.notes["schedule"], [trial.progress, trial.notes["schedule"][-1][1]]])
        for trial in sorted(analysis.trials, key=lambda trial: (analysis.counts(trial), trial.values))
        if len(trial.notes.get("schedule", ())) > 1
    ]  # the best is drawn last, on top
    changed = {
        name: None
        for _, story in stories
        for (_, before), (_, after) in itertools.pairwise(story)
        for name in after
        if before.get(name) != after[name]
    }
    names = list(changed)[:_MOST_AXES]
    if not names:
        return None
    figure, grid = pyplot.subplots(
        len(names), sharex=True, squeeze=False, figsize=(8, 2.3 * len(names) + 0.7), layout="constrained"
    )
    for axes, name in zip(grid[:, 0], names, strict=True):
        for trial, story in stories:
            style = {"label": f"best: trial {trial.number}", "color": "k", "linewidth": 2}
            if trial is not stories[-1][0]:
                style = {"color": "tab:blue", "alpha": max(0.2, 1 / len(stories))}
            points = [(progress, params[name]) for progress, params in story if name in params]
            axes.step(*zip(*points, strict=True), where="post", **style)
        if getattr(analysis.domains.get(name), "is_log", False):
            axes.set_yscale("log")
        axes.set_ylabel(short_names(names)[name])
    grid[-1, 0].set_xlabel(_unit_of([trial for trial, _ in stories]))
    grid[0, 0].set_title(f"{analysis.name}: schedules of the weights that {len(stories)} trials ended with")
    grid[0, 0].legend()
    return figure


def _important_names(analysis: Analysis) -> list[str]:
    """Of the parameters that differ between trials; the most important first, as far as that is known."""
    ranks = {name: rank for rank, name in enumerate(analysis.importances)}
    tried = {name for trial in analysis.judged for name in trial.params}
    names = [name for name in analysis.domains if name in tried]
    varying = [name for name in names if len({str(trial.params.get(name)) for trial in analysis.judged}) > 1]
    return sorted(varying, key=lambda name: ranks.get(name, len(ranks)))[:_MOST_AXES]


def _unit_of(trials: Sequence[Trial]) -> str:
    """What the progress of these trials counts."""
    if all(trial.progress == trial.step for trial in trials):
        return "reports"
    for name in trials[0].last:
        if all(trial.last.get(name) == trial.progress for trial in trials if trial.last):
            return name
    return "progress"
