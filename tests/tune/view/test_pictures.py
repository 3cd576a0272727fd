"""Pictures: each kind is drawn where there is something to see, with scales that fit, of few and of many trials."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.results.analysis import Analysis
from rlplat.tune.results.importance import Axis
from rlplat.tune.space.space import normal, qnormal
from rlplat.tune.view.picture_axes import set_scale, without_outliers
from rlplat.tune.view.pictures import draw_all
from tests.tune.experiments import write_experiment


def draw(analysis: Analysis) -> dict[str, Any]:
    figures = dict(draw_all(analysis))
    for figure in figures.values():
        figure.canvas.draw()  # finds what only fails when it is drawn
    return figures


def an_analysis(
    path: Path, num: int, metric: Any = ("return",), mode: Any = ("max",), **more: Any
) -> Analysis:
    return Analysis(write_experiment(path, num, metric=metric, mode=mode, **more), metric, mode, path)


def axes_by_label(figure: Any) -> dict[str, Any]:
    return {axes.get_xlabel(): axes for axes in figure.axes}


@pytest.mark.parametrize("num", [10, 300])
def test_every_kind_for_few_and_many(tmp_path: Path, num: int) -> None:
    figures = draw(an_analysis(tmp_path / "exp", num))
    expected = {"learning_curves", "slices", "parallel_coordinates"} | (
        {"importance"} if num >= 30 else set()
    )
    assert set(figures) == expected
    curves = figures["learning_curves"].axes[0]
    assert curves.get_xlabel() == "env_steps" and curves.get_ylabel() == "return"
    assert len(curves.collections[0].get_segments()) == num - 1, "the best one is a line of its own"


def test_the_scales_are_those_of_the_domains(tmp_path: Path) -> None:
    slices = axes_by_label(draw(an_analysis(tmp_path / "exp", 40))["slices"])
    assert slices["learning_rate"].get_xscale() == "log" and slices["discount"].get_xscale() == "linear"
    assert [text.get_text() for text in slices["activation"].get_xticklabels()] == ["tanh", "relu"]
    assert [text.get_text() for text in slices["num_envs"].get_xticklabels()] == ["4", "8", "16", "32"]
    has_size = slices["size"].collections[0].get_offsets()
    assert 0 < len(has_size) < len(slices["discount"].collections[0].get_offsets()), "those that have it"


def test_a_normal_parameter_has_an_axis_of_three_deviations_to_each_side(tmp_path: Path) -> None:
    space = {"learning_rate": normal(1e-3, 2e-4), "horizon": qnormal(100, 50, 25)}
    analysis = an_analysis(tmp_path / "exp", 40, space=space)
    assert {one.name for one in analysis.importances} == {"learning_rate", "horizon"}
    figures = draw(analysis)
    texts = [text.get_text() for text in figures["parallel_coordinates"].axes[0].texts]
    assert {"0.0004", "0.0016"} <= set(texts), "the ends of its axis"
    assert axes_by_label(figures["slices"])["learning_rate"].get_xscale() == "linear"


def test_the_important_parameter_stands_next_to_the_metric(tmp_path: Path) -> None:
    figures = draw(an_analysis(tmp_path / "exp", 200))
    labels = [text.get_text() for text in figures["parallel_coordinates"].axes[0].get_xticklabels()]
    assert labels[-2:] == ["learning_rate", "return"]
    assert figures["importance"].axes[0].get_yticklabels()[0].get_text() == "learning_rate"


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    figures = draw(an_analysis(tmp_path / "exp", 20, ("return", "cost"), ("max", "min")))
    axes = figures["pareto_front"].axes[0]
    assert axes.get_xlabel() == "return (higher is better)" and axes.get_ylabel() == "cost (lower is better)"


def test_schedules_show_what_changed() -> None:
    trials = []
    for number in range(4):
        trial = Trial(
            number,
            {},
            {"lr": 0.1, "fixed": 3 + number},
            number,
            TrialState.COMPLETE,
            step=9,
            progress=9,
            values=(1.0,),
        )
        trial.history = [(float(step), float(step)) for step in range(1, 10)]
        params = [{"lr": 0.1 * 1.2**k, "fixed": 3 + number} for k in range(3)]
        trial.notes["schedule"] = [[3 * k, of_then] for k, of_then in enumerate(params)]
        trials.append(trial)
    figure = draw(Analysis(trials, ["x"], ["max"], None, "e"))["schedules"]
    (axes,) = figure.axes
    assert axes.get_ylabel() == "lr" and len(axes.lines) == 4
    assert axes.lines[0].get_ydata() == pytest.approx([0.1, 0.12, 0.144, 0.144])


def test_a_curve_is_broken_where_a_trial_went_on_from_another() -> None:
    trials = []
    for number in range(2):
        trial = Trial(
            number, {}, {"lr": number}, number, TrialState.COMPLETE, step=6, progress=9, values=(number,)
        )
        trial.history = [
            (1.0, 1.0),
            (2.0, math.nan),
            (3.0, 1.0),
            (7.0, 5.0),
            (8.0, 6.0),
            (9.0, float(number)),
        ]
        trial.notes["exploits"] = [{"reports": 3}, {"reports": 6}]
        trials.append(trial)
    axes = draw(Analysis(trials, ["x"], ["max"], None, "e"))["learning_curves"].axes[0]
    (best,) = axes.lines
    assert np.array_equal(best.get_xdata(), [1, 3, math.nan, 7, 8, 9], equal_nan=True)
    assert axes.get_xlim()[0] < 1 and axes.get_xlim()[1] > 9


def test_nothing_to_see_is_no_picture() -> None:
    assert draw(Analysis([], ["x"], ["max"], None, "e")) == {}
    alone = Trial(
        0, {}, {"a": 1}, 0, TrialState.COMPLETE, step=1, progress=1, values=(1.0,), history=[(1, 1.0)]
    )
    assert draw(Analysis([alone], ["x"], ["max"], None, "e")) == {}


def test_values_that_are_all_the_same_and_parameters_that_are_nothing() -> None:
    trials = [
        Trial(n, {}, {"a": None if n % 2 else "x", "b": True, "c": 10.0**n}, n, TrialState.COMPLETE, step=2, progress=2,
              values=(1.0,), history=[(1, 1.0), (2, 1.0)])
        for n in range(30)
    ]  # fmt: skip
    assert set(draw(Analysis(trials, ["x"], ["max"], None, "e"))) == {
        "learning_curves", "importance", "slices", "parallel_coordinates",
    }  # fmt: skip


def test_a_few_far_values_do_not_flatten_all_others() -> None:
    values = np.concatenate([np.linspace(0, 1, 99), [-1e9]])
    low, high = without_outliers(values)
    assert -2 < low < 0 and 1 < high < 2
    assert without_outliers(np.array([0.0, 10.0])) == (-0.4, 10.4)


@pytest.mark.parametrize(
    ("low", "high"), [(1e-4, 3e-3), (2e-4, 8e-4), (2.1e-4, 2.9e-4), (1e-6, 1.0), (1e-12, 1e12)]
)
def test_marks_of_a_logarithmic_axis_do_not_overlap(low: float, high: float) -> None:
    """As wide as one of the slices, drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((2.4, 2.0))
    axes = figure.subplots()
    axes.plot([low, high], [0, 1])
    set_scale(axes, Axis(low=low, high=high, is_log=True), "x")
    axes.set_xlim(low, high)
    FigureCanvasAgg(figure).draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
    assert 2 <= len(boxes) <= 4
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
