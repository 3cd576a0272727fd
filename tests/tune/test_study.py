"""The study: whatever an experiment must know again is in the storage, and a resume that changes it is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

import optuna

from rlplat.errors import ConfigError
from rlplat.tune.study import Study
from rlplat.tune.trial import TrialState
from tests.tune.studies import (
    DISTRIBUTIONS,
    SCENARIOS,
    Scenario,
    as_optuna_sees,
    begin,
    new_trial,
    report,
    run_trial,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.journal"


@pytest.fixture
def study(path: Path) -> Iterator[Study]:
    study = Study.open(path, "demo", ["max"], resume=False)
    yield study
    study.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_trial_comes_back_as_it_was(scenario: Scenario, path: Path) -> None:
    study = Study.open(path, "demo", ["max"], resume=False)
    trials = scenario(study)
    study.close()
    assert Study.read(path) == trials
    again = Study.open(path, "demo", ["max"], resume=True)
    assert again.load() == trials
    for trial in trials:
        if not trial.state.has_ended:  # it goes on where it was
            report(again, trial, 7.0, trial.progress + 0.5)
            trial.state = TrialState.COMPLETE
            again.end(trial)
    assert again.load() == trials
    again.name_metrics(["score"])
    seen = as_optuna_sees(again)
    assert [trial.state.name for trial in seen.trials].count("RUNNING") == 0 and seen.metric_names == ["score"]
    again.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_tuner_that_dies_between_any_two_lines_comes_back_with_a_trial_that_was(
    scenario: Scenario, path: Path
) -> None:
    """Every beginning of the file loads, and its trials can be gone on with."""
    study = Study.open(path, "demo", ["max"], resume=False)
    study.settle({"seed": 1})
    scenario(study)
    study.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for length in range(len(lines) + 1):
        path.write_bytes(b"".join(lines[:length]) + (lines[length][:9] if length < len(lines) else b""))
        again = Study.open(path, "demo", ["max"], resume=True)
        again.settle({"seed": 1})
        for trial in again.load():
            assert len(trial.history) <= trial.step
            assert not trial.history or trial.values[0] == trial.history[-1][1]
            if not trial.state.has_ended:
                report(again, trial, 7.0, trial.progress + 1)
                trial.state = TrialState.COMPLETE
                again.end(trial)
            assert again.load()[trial.number] == trial
        assert all(trial.state.is_finished() for trial in as_optuna_sees(again).trials)
        again.close()


def test_min_and_several_objectives(path: Path) -> None:
    study = Study.open(path, "demo", ["min", "max"], resume=False)
    trial = begin(study, 0)
    report(study, trial, 0.3, 1.5, sign=-1)
    trial.values = (0.3, 12.0)
    trial.history[-1] = (1.5, -0.3)
    study.note(trial)
    for progress, values in ((2.25, (0.2, 11.0)), (3.0, (0.1, 13.5))):
        trial.step += 1
        trial.progress, trial.values = progress, values
        trial.history.append((progress, -values[0]))
        study.report(trial)
    study.sync()
    assert Study.read(path)[0].values == (0.1, 13.5)
    trial.state = TrialState.COMPLETE
    study.end(trial)
    study.sync()
    (read,) = Study.read(path)
    assert read.history == [(1.5, -0.3), (2.25, -0.2), (3.0, -0.1)] and read.values == (0.1, 13.5)
    theirs = as_optuna_sees(study)
    assert theirs.best_trials[0].values == [0.1, 13.5]
    assert theirs.trials[0].intermediate_values == {1: 0.3, 2: 0.2, 3: 0.1}
    study.close()


def test_what_optuna_sees(study: Study) -> None:
    run_trial(study, 0)
    run_trial(study, 1, TrialState.STOPPED)
    run_trial(study, 2, TrialState.FAILED)
    running = begin(study, 3)
    nothing = begin(study, 4)
    nothing.state = TrialState.COMPLETE
    study.end(nothing)  # ended without a value
    seen = as_optuna_sees(study).trials
    assert [trial.state.name for trial in seen] == ["COMPLETE", "PRUNED", "FAIL", "RUNNING", "FAIL"]
    assert [trial.value for trial in seen] == [0.0, 1.0, None, None, None]
    assert seen[1].intermediate_values == {1: 0.0, 2: 0.5, 3: 1.0}
    assert seen[1].params == {"alpha": 0.1, "layers": 2} and seen[1].distributions == DISTRIBUTIONS
    assert seen[1].user_attrs == {
        "config": {"alpha": 0.1, "layers": 2, "env": {"size": [8, 8], "name": "Grid"}},
        "metrics": {"score": 1.0, "loss": pytest.approx(0.3)},
    }
    report(study, running, 5.0)
    assert as_optuna_sees(study).trials[3].intermediate_values == {1: 5.0}
    frame = as_optuna_sees(study).trials_dataframe()
    assert list(frame["params_alpha"]) == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_a_sampler_of_optuna_learns_from_it(study: Study) -> None:
    for number in range(30):
        trial = new_trial(number)
        trial.params["alpha"] = trial.config["alpha"] = (number * 7 % 30) / 30
        study.create(trial, DISTRIBUTIONS)
        report(study, trial, -abs(trial.params["alpha"] - 0.5))
        trial.state = TrialState.COMPLETE
        study.end(trial)
    theirs, sampler = as_optuna_sees(study), optuna.samplers.TPESampler(seed=1)
    drawn = [sampler.sample_independent(theirs, theirs.trials[0], "alpha", DISTRIBUTIONS["alpha"]) for _ in range(20)]
    assert sum(0.3 < value < 0.7 for value in drawn) > 15


def test_an_experiment_that_is_there_is_not_overwritten(study: Study, path: Path) -> None:
    run_trial(study, 0)
    study.close()
    with pytest.raises(ConfigError, match=r"experiment 'demo' in .*--resume.*--out"):
        Study.open(path, "demo", ["max"], resume=False)
    with pytest.raises(ConfigError, match=r"mode was max and is min now"):
        Study.open(path, "demo", ["min"], resume=True)
    renamed = Study.open(path, "other", ["max"], resume=True)  # a file holds one: its name is no matter
    assert len(renamed.load()) == len(as_optuna_sees(renamed).trials) == 1
    renamed.close()
    with pytest.raises(ConfigError, match=r"there is no .*nowhere\.journal"):
        Study.read(path.with_name("nowhere.journal"))
    study = Study.open(path, "demo", ["max"], resume=True)
    assert len(study.load()) == 1
    study.close()


def test_settings_are_kept_and_may_change(path: Path) -> None:
    study = Study.open(path, "demo", ["max"], resume=False)
    study.settle({"seed": 1, "space": {"lr": {"loguniform": [1e-4, np.float64(1)]}}})
    study.close()
    size_bytes = path.stat().st_size
    study = Study.open(path, "demo", ["max"], resume=True)
    assert study.settings == {"seed": 1, "space": {"lr": {"loguniform": [1e-4, 1.0]}}}
    study.settle({"seed": 1})
    study.sync()
    assert path.stat().st_size == size_bytes, "what is there already was written again"
    study.settle({"seed": 2})
    with pytest.raises(ConfigError, match=r"space\.n is <object.*JSON"):
        study.settle({"space": {"n": object()}})
    study.close()
    study = Study.open(path, "demo", ["max"], resume=True)
    assert study.settings["seed"] == 2
    study.close()


def test_what_is_not_json_is_refused_by_name_and_numpy_numbers_are_numbers(study: Study, path: Path) -> None:
    trial = new_trial(0)
    trial.config = {"net": {"sizes": [64, object()]}}
    with pytest.raises(ConfigError, match=r"config\.net\.sizes\[1\] is <object object.*JSON"):
        study.create(trial, {})
    trial.config = {"net": {1: 2}}
    with pytest.raises(ConfigError, match=r"config\.net has the key 1, which is not a text"):
        study.create(trial, {})
    trial.config = {"lr": np.float32(0.5), "n": np.int64(3)}
    study.create(trial, {})
    report(study, trial, float("nan"))
    trial.last = {"score": np.float64(2.0)}
    study.note(trial)
    study.sync()
    (read,) = Study.read(path)
    assert read.config == {"lr": 0.5, "n": 3} and read.last == {"score": 2.0}
    assert math.isnan(read.values[0]) and math.isnan(read.history[0][1])


def test_an_ended_trial_takes_some_kilobytes_of_memory(study: Study) -> None:
    """Optuna's journal storage keeps all trials; here with what was drawn, the config, three reports."""
    import tracemalloc

    for number in range(50):
        run_trial(study, number)
    study.sync()
    tracemalloc.start()
    try:
        for number in range(50, 250):
            run_trial(study, number)
        study.sync()
        assert tracemalloc.get_traced_memory()[0] < 200 * 8_000  # bytes
    finally:
        tracemalloc.stop()
