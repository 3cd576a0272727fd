"""What TensorBoard reads of an experiment: each trial's scalars, and what its HPARAMS page asks the server for."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.domains import choice, grid, loguniform
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import Trial, TrialState

sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))  # TensorFlow takes ten seconds to load
accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra rlplat[log]"
)

SPACE = {
    "lr": loguniform(1e-4, 1),
    "optimizer": choice(["sgd", "adam"]),
    "layers": choice([[64], [64, 64]]),
    "amount": choice([1, "auto"]),
    "is_fast": grid([True, False]),
}
SPEC = ExperimentSpec(trainable="ppo", config=SPACE, metric="accuracy", mode="max", name="an-experiment")


def a_trial(number: int, **params: Any) -> Trial:
    params = {"lr": 0.01, "optimizer": "sgd", "layers": "[64]", "amount": 1, "is_fast": True, **params}
    return Trial(number, {}, params, seed=number, state=TrialState.RUNNING)


def report(directory: ExperimentDirectory, trial: Trial, step: int, **metrics: float) -> None:
    trial.step, trial.last, trial.values = step, metrics, (metrics["accuracy"],)
    directory.record(trial, metrics)


def end(directory: ExperimentDirectory, trial: Trial, state: TrialState = TrialState.COMPLETE) -> None:
    trial.state = state
    directory.end(trial)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Three trials: complete, failed, running; the third one has TensorBoard files of its own."""
    with ExperimentDirectory.open(tmp_path / "exp", SPEC, resume=False) as directory:
        trials = [a_trial(0), a_trial(1, optimizer="adam", amount="auto", lr=0.1, is_fast=False), a_trial(2)]
        (tmp_path / "exp" / "trials" / "00002" / "tensorboard").mkdir(parents=True)
        for step in (1, 2):
            for trial in trials:
                report(directory, trial, step, accuracy=step / 4 + trial.number, loss=1 / step)
        end(directory, trials[0])
        end(directory, trials[1], TrialState.FAILED)
    return tmp_path / "exp"


def scalars(path: Path, name: str) -> list[tuple[int, float]]:
    events = accumulators.EventAccumulator(str(path)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_each_trial_has_its_curves(experiment: Path) -> None:
    assert scalars(experiment / "tensorboard" / "00001", "accuracy") == [(1, 1.25), (2, 1.5)]
    events = accumulators.EventAccumulator(str(experiment / "tensorboard" / "00001")).Reload()
    assert events.Tags()["scalars"] == ["accuracy", "loss"]


def test_what_a_trial_writes_itself_is_not_written_twice(experiment: Path) -> None:
    events = accumulators.EventAccumulator(str(experiment / "tensorboard" / "00002")).Reload()
    assert events.Tags()["scalars"] == ["accuracy"], "the objective alone, for the table of HPARAMS"


def test_steps_that_are_repeated_replace_the_earlier_ones(tmp_path: Path) -> None:
    with ExperimentDirectory.open(tmp_path, SPEC, resume=False) as directory:
        trial = a_trial(0)
        for step in (1, 2, 3):
            report(directory, trial, step, accuracy=step)
        report(directory, trial, 2, accuracy=20)  # crashed, and went on from 1
    assert scalars(tmp_path / "tensorboard" / "00000", "accuracy") == [(1, 1), (2, 20)]
    with ExperimentDirectory.open(tmp_path, SPEC, resume=True) as directory:
        trial.step = 1
        directory.reconcile([trial])
        report(directory, trial, 2, accuracy=200)
        end(directory, trial)
    assert scalars(tmp_path / "tensorboard" / "00000", "accuracy") == [(1, 1), (2, 200)]


def test_the_hparams_page_of_tensorboard_finds_each_trials_parameters_and_its_end(experiment: Path) -> None:
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")

    def told(number: int) -> tuple[dict[str, Any], int | None]:
        """As the page reads it: the parameters, how the trial ended."""
        events = accumulators.EventAccumulator(str(experiment / "tensorboard" / f"{number:05d}")).Reload()
        tags = events.PluginTagToContent(metadata.PLUGIN_NAME)
        start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
        assert start.group_name == f"{number:05d}" and start.start_time_secs > 0
        params = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
        if metadata.SESSION_END_INFO_TAG not in tags:
            return params, None
        return params, metadata.parse_session_end_info_plugin_data(tags[metadata.SESSION_END_INFO_TAG]).status

    success, failure = 1, 2  # tensorboard/plugins/hparams/api.proto
    first = {"lr": 0.01, "optimizer": "sgd", "layers": "[64]", "amount": 1, "is_fast": True}
    assert told(0) == (first, success) and told(2) == (first, None)
    assert told(1) == ({**first, "lr": 0.1, "optimizer": "adam", "amount": "auto", "is_fast": False}, failure)
