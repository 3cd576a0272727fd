"""An experiment's directory: what is written, who may write, what a resumed experiment forgets, a full disk."""

from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlplat import metrics as metrics_module
from rlplat.errors import ConfigError
from rlplat.rl.run.run_directory import is_running
from rlplat.tune import directory as directory_module
from rlplat.tune.directory import ExperimentDirectory, take_back
from rlplat.tune.domains import uniform
from rlplat.tune.journal import has_reports
from rlplat.tune.lines import holding, read_reports
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.study import Study
from rlplat.tune.trial import Trial, TrialState
from tests.tune.studies import begin
from tests.tune.studies import report as report_to

SPEC = ExperimentSpec(
    trainable="ppo", config={"alpha": uniform(0, 1)}, metric="accuracy", mode="max", name="an-experiment"
)


def open_directory(path: Path, *, resume: bool = False, say: Any = pytest.fail) -> ExperimentDirectory:
    return ExperimentDirectory.open(path, SPEC, resume=resume, say=say)


def a_trial(number: int, **params: Any) -> Trial:
    return Trial(number, {"alpha": 0.5, **params}, params or {"alpha": 0.5}, seed=number, state=TrialState.RUNNING)


def report(directory: ExperimentDirectory, trial: Trial, step: int, /, **metrics: Any) -> None:
    metrics = metrics or {"accuracy": step / 10}
    trial.step, trial.progress, trial.values, trial.last = step, step, (metrics["accuracy"],), metrics
    trial.run_s = step * 0.5
    directory.record(trial, metrics)


def end(directory: ExperimentDirectory, trial: Trial, state: TrialState = TrialState.COMPLETE) -> None:
    trial.state = state
    directory.end(trial)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def steps(path: Path) -> list[tuple[int, int]]:
    return [(line["trial"], line["step"]) for line in read_reports(path / "results.jsonl")]


def test_reports_and_trials_are_written_at_the_flush(tmp_path: Path) -> None:
    path = tmp_path / "exp"
    directory = open_directory(path)
    trial, other = a_trial(0, alpha=0.5), a_trial(7, beta="x")
    report(directory, trial, 1, accuracy=np.float32(0.25), loss=float("nan"), step=3)
    report(directory, other, 1)
    report(directory, trial, 2)
    assert (path / "results.jsonl").read_text() == "", "nothing before the flush"
    directory.flush()
    lines = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "trial": 0, "step": 1, "progress": 1, "run_s": 0.5, "time": lines[0]["time"], "params": {"alpha": 0.5},
        "metrics": {"accuracy": 0.25, "loss": None, "step": 3},
    }  # fmt: skip
    assert "params" not in lines[2], "only in the first line of a trial"
    trial.params = {"alpha": 0.75}  # PBT
    report(directory, trial, 3, accuracy=0.3, extra=1)
    end(directory, trial)
    other.error = "Traceback ...\nValueError: no"
    end(directory, other, TrialState.FAILED)
    directory.close()
    assert json.loads((path / "results.jsonl").read_text().splitlines()[3])["params"] == {"alpha": 0.75}
    first, second = rows(path / "results.csv")
    assert first["config/alpha"] == "0.75" and first["accuracy"] == "0.3" and first["extra"] == "1"
    assert (second["trial"], second["state"], second["config/beta"]) == ("7", "failed", "x")
    assert second["error"] == "ValueError: no" and second["config/alpha"] == ""


def test_a_metric_named_like_one_of_our_columns_keeps_its_value(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "exp")
    trial = a_trial(0)
    report(directory, trial, 1, accuracy=1, step=99, state="mine")
    end(directory, trial)
    directory.close()
    (row,) = rows(tmp_path / "exp" / "results.csv")
    assert (row["step"], row["metrics/step"], row["state"], row["metrics/state"]) == (
        "1",
        "99",
        "complete",
        "mine",
    )


def test_an_existing_experiment_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "exp"
    path.mkdir()  # an empty directory is as good as none
    open_directory(path).close()
    with pytest.raises(ConfigError, match=r"an experiment is already in .*exp; continue it: --resume.*--out DIRECTORY"):
        open_directory(path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="other already exists; choose another place"):
        open_directory(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"there is no experiment in .*none to continue"):
        open_directory(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_only_one_process_writes(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "exp")
    assert is_running(tmp_path / "exp")
    with pytest.raises(ConfigError, match="is still running in another process"):
        open_directory(tmp_path / "exp", resume=True)
    directory.close()
    assert not is_running(tmp_path / "exp")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to the experiment's directory .*file/exp: Not a directory"):
        open_directory(tmp_path / "file" / "exp")


def test_a_trial_that_goes_on_from_a_checkpoint_has_each_step_once_in_the_end(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    trial, other = a_trial(0), a_trial(1)
    for step in (1, 2, 3):
        report(directory, trial, step)
        report(directory, other, step)
    report(directory, trial, 2, accuracy=0.9)  # it crashed after 3 and goes on from 1
    directory.flush()
    held = holding(read_reports(tmp_path / "results.jsonl"))
    assert [(line["trial"], line["step"]) for line in held] == [(0, 1), (1, 1), (1, 2), (1, 3), (0, 2)]
    assert steps(tmp_path).count((0, 2)) == 2
    directory.close()
    assert steps(tmp_path) == [(0, 1), (1, 1), (1, 2), (1, 3), (0, 2)]
    assert list(read_reports(tmp_path / "results.jsonl"))[-1]["metrics"] == {"accuracy": 0.9}


def test_a_trial_that_begins_anew_keeps_its_params(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    trial = a_trial(0)
    report(directory, trial, 1)
    report(directory, trial, 1)
    directory.close()
    (line,) = read_reports(tmp_path / "results.jsonl")
    assert line["params"] == {"alpha": 0.5}


def test_a_resumed_experiment_forgets_what_the_study_does_not_know(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    ended, live, unknown = a_trial(0), a_trial(1), a_trial(2)
    for step in (1, 2, 3):
        for trial in (ended, live, unknown):
            report(directory, trial, step)
    end(directory, ended)
    end(directory, unknown)
    directory.close()
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"trial": 1, "st')  # killed in mid-write

    directory = open_directory(tmp_path, resume=True)
    live.step = 1
    directory.reconcile([ended, live])
    assert steps(tmp_path) == [(0, 1), (1, 1), (0, 2), (0, 3)]
    assert [row["trial"] for row in rows(tmp_path / "results.csv")] == ["0"]
    report(directory, live, 2)
    end(directory, live)
    directory.close()
    assert steps(tmp_path) == [(0, 1), (1, 1), (0, 2), (0, 3), (1, 2)]
    assert [row["trial"] for row in rows(tmp_path / "results.csv")] == ["0", "1"]


def test_a_trial_that_ends_as_the_experiment_is_resumed_has_one_row(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    trials = [a_trial(number) for number in range(2)]
    for trial in trials:
        report(directory, trial, 1)
    end(directory, trials[0])
    directory.close()

    directory = open_directory(tmp_path, resume=True)
    trials[1].state = TrialState.STOPPED
    directory.reconcile(trials, ending={1})
    end(directory, trials[1], TrialState.STOPPED)
    directory.close()
    assert [(row["trial"], row["state"]) for row in rows(tmp_path / "results.csv")] == [
        ("0", "complete"),
        ("1", "stopped"),
    ]


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    said: list[str] = []
    directory = open_directory(tmp_path, say=said.append)
    trial = a_trial(0)
    report(directory, trial, 1)
    directory.flush()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(metrics_module.os, "pwrite", full)
    report(directory, trial, 2)
    directory.flush()
    report(directory, trial, 3)
    end(directory, trial)
    directory.flush()
    monkeypatch.undo()
    report(directory, a_trial(1), 1)
    directory.close()
    assert steps(tmp_path) == [(0, 1), (1, 1)]
    assert len(said) == 2 and "No space left" in said[0] and "the experiment continues" in said[0]
    assert directory.dropped >= 3 and f"{directory.dropped} writes" in said[1]


def test_a_disk_that_is_full_from_the_first_report_on_stops_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    said: list[str] = []
    directory = open_directory(tmp_path, say=said.append)

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(metrics_module.os, "pwrite", full)
    trials = [a_trial(number) for number in range(3)]
    for step in (1, 2):
        for trial in trials:
            report(directory, trial, step)
        directory._curves._next_write_s = 0.0
        directory.flush()
        assert all(not file.pending for file in directory._curves._open.values()), "nothing piles up in memory"
    directory.best(trials[0])
    monkeypatch.setattr(Path, "write_text", full)
    for trial in trials:
        end(directory, trial)
    directory.close()
    assert len(said) == 2 and "No space left" in said[0]


def test_a_config_is_kept_as_it_is_read() -> None:
    assert directory_module.config_text({"größe": "大"}) == "größe: 大\n"


def test_best_yaml_says_what_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    directory = open_directory(tmp_path)
    trial = a_trial(3, alpha=0.5)
    report(directory, trial, 4, accuracy=0.875)
    directory.best(trial)
    directory.flush()
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith("# the best trial so far of an-experiment: 3, accuracy 0.875 (max) after 4 reports\n")
    assert text.splitlines()[1:] == ["alpha: 0.5"]
    directory.best(trial, "algo: ppo\n")
    directory.flush()
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {"alpha": 0.5}, "every other second is enough"
    monkeypatch.setattr(directory_module, "BEST_PERIOD_S", 0.0)
    directory._next_best_s = 0.0
    directory.flush()
    assert (tmp_path / "best.yaml").read_text().endswith("reports\nalgo: ppo\n")
    directory.best(trial, {"algo": "ppo", "learning_rate": np.float64(1e-3)})
    directory.close()
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {"algo": "ppo", "learning_rate": 1e-3}


def test_another_experiment_is_not_resumed_and_the_lock_is_given_back(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    before = (tmp_path / "experiment.yaml").read_text()
    other = SPEC.model_copy(update={"config": {"alpha": uniform(0, 2)}})
    with pytest.raises(ConfigError, match=r"this is not the experiment in .*'config.alpha' was"):
        ExperimentDirectory.open(tmp_path, other, resume=True)
    assert (tmp_path / "experiment.yaml").read_text() == before and not is_running(tmp_path)
    with open_directory(tmp_path, resume=True) as directory:
        assert directory.storage == str(tmp_path / "study.journal")


def test_one_that_was_killed_at_once_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("")
    open_directory(tmp_path, resume=True).close()
    assert (tmp_path / "experiment.yaml").exists() and not is_running(tmp_path)


def test_what_is_refused_later_than_at_its_first_report_is_not_taken_back(tmp_path: Path) -> None:
    """A full disk may have refused all but the study."""
    path = tmp_path / "e"
    open_directory(path).close()
    study = Study.open(path / "study.journal", "an-experiment", ["max"], resume=False)
    trial = begin(study, 0)
    study.sync()
    assert not has_reports(path / "study.journal")
    report_to(study, trial, 0.5)
    study.close()
    take_back(path)
    assert Study.read(path / "study.journal")[0].history == [(1, 0.5)]
