"""What TensorBoard reads of an experiment: each trial's scalars, and what its HPARAMS page asks the server for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.domains import choice, grid, loguniform
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import Trial, TrialState
from tests.patience import soon

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


_SERVER = """import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # without TensorFlow
from tensorboard.main import run_main
run_main()
"""


@pytest.fixture
def server(experiment: Path) -> Iterator[str]:
    """TensorBoard on a free port; its address."""
    arguments = [
        "--logdir",
        str(experiment),
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--load_fast",
        "false",
        "--reload_interval",
        "1",
    ]
    log = experiment.parent / "server.txt"
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, *arguments],
            stdout=file,
            stderr=file,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
    try:
        assert soon(lambda: "http://127.0.0.1:" in log.read_text() or process.poll() is not None)
        text = log.read_text()
        assert process.poll() is None, text
        yield "http://127.0.0.1:" + text.split("http://127.0.0.1:")[1].split("/")[0]
    finally:
        process.terminate()
        process.wait(60)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@pytest.mark.process
def test_the_hparams_page_of_tensorboard_shows_the_experiment(server: str) -> None:
    plugin = f"{server}/data/plugin/hparams"
    session_groups = {
        "startIndex": 0,
        "sliceSize": 100,
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"],
    }
    assert soon(lambda: len(ask(f"{server}/data/runs")) == 3), "a run for each trial"

    experiment = ask(f"{plugin}/experiment", {"experimentName": ""})
    parameters = {info["name"]: info for info in experiment["hparamInfos"]}
    assert parameters["lr"]["type"] == "DATA_TYPE_FLOAT64"
    assert {"optimizer", "layers", "amount", "is_fast"} < parameters.keys()
    metrics = [info["name"]["tag"] for info in experiment["metricInfos"]]
    assert sorted(metrics) == ["accuracy", "loss"]

    columns = [{"metric": {"group": "", "tag": tag}} for tag in metrics]
    columns += [{"hparam": name} for name in parameters]
    groups = ask(f"{plugin}/session_groups", {**session_groups, "colParams": columns})["sessionGroups"]
    by_name = {group["name"]: group for group in groups}
    assert sorted(by_name) == ["00000", "00001", "00002"]
    assert by_name["00001"]["hparams"] == {
        "lr": 0.1, "optimizer": "adam", "layers": "[64]", "amount": "auto", "is_fast": False,
    }  # fmt: skip
    values = {value["name"]["tag"]: value["value"] for value in by_name["00001"]["metricValues"]}
    assert values == {"accuracy": 1.5, "loss": 0.5}
    status = {name: group["sessions"][0]["status"] for name, group in by_name.items()}
    assert status == {"00000": "STATUS_SUCCESS", "00001": "STATUS_FAILURE", "00002": "STATUS_UNKNOWN"}, (
        "it has not ended"
    )
