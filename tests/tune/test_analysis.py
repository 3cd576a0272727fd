"""What came out of an experiment: the best trial, several objectives, tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rlplat.errors import ConfigError, MissingExtra, RlplatError
from rlplat.tune.analysis import Analysis
from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import CheckpointMark, Trial, TrialState


def a_trial(number: int, *values: float, state: TrialState = TrialState.COMPLETE, **params: Any) -> Trial:
    last = dict(zip(("loss", "time_s"), values, strict=False))
    return Trial(number, {**params, "constant": 1}, params, number, state, step=1, progress=1, values=values, last=last)


def test_the_best_trial_is_the_largest_or_the_smallest() -> None:
    trials = [a_trial(2, 0.5), a_trial(0, 0.25, alpha=7), a_trial(1, 0.75)]
    smallest = Analysis(trials, ["loss"], ["min"])
    assert (smallest.best_trial.number, smallest.best_value) == (0, 0.25)
    assert smallest.best_config == {"alpha": 7, "constant": 1}
    assert [trial.number for trial in smallest.trials] == [0, 1, 2]
    assert [trial.number for trial in smallest.ranked] == [0, 2, 1]
    assert Analysis(trials, ["loss"], ["max"]).best_trial.number == 1
    assert repr(smallest) == "<Analysis of the experiment: 3 trials, best loss 0.25 of trial 0>"


def test_failed_trials_and_values_that_are_no_numbers_do_not_count() -> None:
    trials = [a_trial(0, math.nan), a_trial(1, 9.0, state=TrialState.FAILED), a_trial(2), a_trial(3, 1.0)]
    assert [trial.number for trial in Analysis(trials, ["loss"], ["max"]).ranked] == [3]
    trials[1].error = "Traceback\nValueError: too hot"
    with pytest.raises(
        RlplatError, match=r"no trial of .* has a value of 'loss': 3 trials, 1 failed.*ValueError: too hot"
    ):
        Analysis(trials[:3], ["loss"], ["max"]).best_trial


def test_several_objectives_have_a_front_and_no_best() -> None:
    points = [(1, 9), (2, 5), (3, 5), (4, 1), (4, 2), (2, 5), (0, 9)]
    analysis = Analysis(
        [a_trial(i, *map(float, point)) for i, point in enumerate(points)], ["loss", "time_s"], ["min", "max"]
    )
    assert {trial.number for trial in analysis.pareto_front} == {6}
    analysis = Analysis(analysis.trials, ["loss", "time_s"], ["min", "min"])
    assert [(trial.number, trial.values) for trial in analysis.pareto_front] == [
        (6, (0, 9)), (1, (2, 5)), (5, (2, 5)), (3, (4, 1)),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"2 objectives.*pareto_front"):
        analysis.best_trial


def test_the_checkpoint_of_the_best(tmp_path: Path) -> None:
    trial = a_trial(12, 1.0)
    analysis = Analysis([trial], ["loss"], ["min"], tmp_path)
    assert analysis.best_checkpoint is None
    trial.checkpoint = CheckpointMark(3, "step_3")
    assert analysis.best_checkpoint == tmp_path / "trials" / "00012" / "checkpoints" / "step_3"


def test_trials_are_read_when_they_are_asked_for() -> None:
    calls: list[int] = []

    def read() -> list[Trial]:
        calls.append(1)
        return [a_trial(0, 1.0)]

    analysis = Analysis(read, ["loss"], ["min"])
    assert not calls
    assert analysis.best_value == 1.0 and analysis.trials and len(calls) == 1


def test_the_table_of_trials() -> None:
    frame = Analysis([a_trial(1, 0.5, beta="x"), a_trial(0, 0.25, alpha=7)], ["loss"], ["min"]).dataframe()
    assert list(frame.columns) == [
        "trial", "state", "step", "progress", "run_s", "failures", "error", "config/alpha", "config/beta", "loss",
    ]  # fmt: skip
    assert frame["trial"].tolist() == [0, 1] and frame["loss"].tolist() == [0.25, 0.5]
    assert frame["config/beta"].tolist()[1] == "x"
    assert len(Analysis([], ["loss"], ["min"]).dataframe()) == 0


def test_the_table_of_reports_follows_the_parameters(tmp_path: Path) -> None:
    spec = ExperimentSpec(trainable="ppo", metric="loss", mode="min", name="e")
    directory = ExperimentDirectory.open(tmp_path / "e", spec, resume=False)
    trial = a_trial(0, alpha=1, state=TrialState.RUNNING)
    for step, alpha in ((1, 1), (2, 1), (3, 5)):
        trial.step, trial.params = step, {"alpha": alpha}
        directory.record(trial, {"loss": 9, "time": 3})
        directory.record(trial, {"loss": 1 / step, "time": 3})  # again, from a checkpoint
    directory.flush()  # not closed: it is still going
    frame = Analysis([trial], ["loss"], ["min"], tmp_path / "e").history()
    assert frame["config/alpha"].tolist() == [1, 1, 5] and frame["step"].tolist() == [1, 2, 3]
    assert frame["loss"].tolist() == [1, 0.5, 1 / 3] and frame["metrics/time"].tolist() == [3, 3, 3]
    assert str(frame["time"].dtype).endswith("UTC]")
    directory.close()


def test_without_pandas_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"needs pandas: .*scripts/install plots$"):
        Analysis([], ["loss"], ["min"]).dataframe()
