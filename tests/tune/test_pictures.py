"""Pictures: each kind is drawn where there is something to see, of few and of many trials."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlplat.tune.analysis import Analysis
from rlplat.tune.domains import normal, qnormal
from rlplat.tune.pictures import draw_all
from rlplat.tune.trial import Trial, TrialState
from tests.tune.experiments import write_experiment


def draw(analysis: Analysis) -> dict[str, Any]:
    figures = {}
    for name, figure in draw_all(analysis):
        figure.canvas.draw()  # finds what only fails when it is drawn
        figures[name] = figure
    return figures


def an_analysis(path: Path, num: int, metric: Any = ("return",), mode: Any = ("max",), **more: Any) -> Analysis:
    return Analysis(write_experiment(path, num, metric=metric, mode=mode, **more), metric, mode, path)


def test_every_kind(tmp_path: Path) -> None:
    figures = draw(an_analysis(tmp_path / "exp", 40))
    assert set(figures) == {"learning_curves", "slices", "parallel_coordinates", "importance"}
    curves = figures["learning_curves"].axes[0]
    assert curves.get_xlabel() == "env_steps" and curves.get_ylabel() == "return"
    assert len(curves.lines) == 40
    slices = {axes.get_xlabel(): axes for axes in figures["slices"].axes}
    assert slices["learning_rate"].get_xscale() == "log" and slices["discount"].get_xscale() == "linear"
    labels = [text.get_text() for text in figures["importance"].axes[0].get_yticklabels()]
    assert labels[0] == "learning_rate" and slices.keys() >= {"policy.core.size"}


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    figures = draw(an_analysis(tmp_path / "exp", 8, ("return", "cost"), ("max", "min")))
    axes = figures["pareto_front"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("return", "cost")


def test_schedules_show_what_changed() -> None:
    trials = []
    for number in range(4):
        trial = Trial(number, {}, {"lr": 0.1, "fixed": 3 + number}, number, TrialState.COMPLETE)
        trial.step, trial.progress, trial.values = 9, 9, (1.0,)
        trial.history = [(float(step), float(step)) for step in range(1, 10)]
        params = [{"lr": 0.1 * 1.2**k, "fixed": 3 + number} for k in range(3)]
        trial.notes["schedule"] = [[3 * k, of_then] for k, of_then in enumerate(params)]
        trials.append(trial)
    figure = draw(Analysis(trials, ["x"], ["max"], None, "e"))["schedules"]
    (axes,) = figure.axes
    assert axes.get_ylabel() == "lr" and len(axes.lines) == 4
    assert axes.lines[0].get_ydata() == pytest.approx([0.1, 0.12, 0.144, 0.144])


def test_nothing_to_see_is_no_picture() -> None:
    assert draw(Analysis([], ["x"], ["max"], None, "e")) == {}
    alone = Trial(0, {}, {"a": 1}, 0, TrialState.COMPLETE, step=1, progress=1, values=(1.0,), history=[(1, 1.0)])
    assert draw(Analysis([alone], ["x"], ["max"], None, "e")) == {}


def test_odd_values_are_drawn(tmp_path: Path) -> None:
    space = {"learning_rate": normal(1e-3, 2e-4), "horizon": qnormal(100, 50, 25)}
    analysis = an_analysis(tmp_path / "exp", 6, space=space)
    for trial in analysis.trials:
        trial.params["learning_rate"] = 7.0  # PBT has left the range
        trial.history = [(1.0, math.nan), (2.0, -1e9), (2.2, 1.0)]
    assert draw(analysis)
