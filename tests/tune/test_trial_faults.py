"""Trials that crash, hang, spoil things or cannot be loaded: what becomes of them, and of the others."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import tune
from rlplat.errors import CheckpointError, ConfigError
from rlplat.tune.directory import ExperimentDirectory
from rlplat.tune.study import Study
from rlplat.tune.trial import Trial, TrialState
from tests.tune.running import lines, run, states


def walk_with_fault(config: dict[str, Any], report: Any) -> None:
    """Six steps, each noted in a file; where `fault` is due, once."""
    notes, done = Path(config["notes"]), report.checkpoint or 0
    for step in range(done + 1, 7):
        with notes.open("a") as file:
            file.write(f"{step}\n")
        if step == 5 and len(lines(notes)) == 5:
            if config["fault"] == "raise":
                raise ValueError("at the fifth step")
            if config["fault"] == "exit":
                os._exit(3)
            if config["fault"] == "hang":
                time.sleep(600)
        report(x=step, checkpoint=step)


@pytest.mark.parametrize("fault", ["raise", "exit", "hang"])
def test_a_trial_that_crashes_goes_on_from_its_checkpoint(fault: str, cluster: None, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    silence = {"max_silence_s": 4} if fault == "hang" else {}
    (only,) = run(
        walk_with_fault, {"fault": fault, "notes": str(notes)}, tmp_path, checkpoint_period=3, **silence
    ).trials
    assert lines(notes) == ["1", "2", "3", "4", "5", "4", "5", "6"]  # from the checkpoint at 3
    assert (only.state, only.step, only.values, only.failures) == (TrialState.COMPLETE, 6, (6,), 1)
    assert [score for _, score in only.history] == [1, 2, 3, 4, 5, 6]
    reports = [json.loads(line) for line in lines(tmp_path / "e" / "results.jsonl")]
    assert [report["step"] for report in reports] == [1, 2, 3, 4, 5, 6]
    expected = {
        "raise": "ValueError: at the fifth step",
        "exit": "its process died: pid ",
        "hang": "no report for 4 s",
    }[fault]
    assert expected in only.error


def test_a_crash_in_the_debugger_backend_is_retried_too(tmp_path: Path) -> None:
    rlplat.init(num_cpus=2, backend="inproc")
    notes = tmp_path / "notes"
    try:
        (only,) = run(walk_with_fault, {"fault": "raise", "notes": str(notes)}, tmp_path, checkpoint_period=2).trials
    finally:
        rlplat.shutdown()
    assert lines(notes) == ["1", "2", "3", "4", "5", "5", "6"]
    assert (only.state, only.step, only.failures) == (TrialState.COMPLETE, 6, 1)


def test_a_trial_that_fails_for_good_does_not_stop_the_others(cluster: None, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        report(x=config["a"])
        if config["a"] == 2:
            raise OSError("it cannot be done")
        report(x=2 * config["a"])

    analysis = run(trial, {"a": tune.grid([1, 2, 3])}, tmp_path, max_failures=1)
    assert states(analysis) == ["complete", "failed", "complete"]
    failed = analysis.trials[1]
    assert failed.failures == 2 and "OSError: it cannot be done" in failed.error
    assert 'raise OSError("it cannot be done")' in failed.error  # the traceback shows the line
    assert analysis.best_config == {"a": 3}


def test_trials_that_always_hang_fail_and_others_go_on(cluster: None, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        if config["a"] == 1:
            threading.Event().wait()
        for _ in range(3):
            report(x=config["a"])

    analysis = run(trial, {"a": tune.grid([1, 2, 3])}, tmp_path, max_silence_s=2, max_failures=1)
    assert states(analysis) == ["failed", "complete", "complete"]
    assert "no report for 2 s" in analysis.trials[0].error


def test_a_tuner_that_was_held_up_takes_nobody_for_hung(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its storage was away for longer than a trial may be silent: all have answered meanwhile, and it takes one answer
    a turn."""
    syncs, sync = itertools.count(), Study.sync

    def slow(self: Study) -> None:
        if next(syncs) == 8:
            time.sleep(4)  # the fault itself
        sync(self)

    monkeypatch.setattr(Study, "sync", slow)

    def trial(config: dict[str, Any], report: Any) -> None:
        for _ in range(10):
            report(x=config["a"])

    analysis = run(trial, {"a": tune.grid([1, 2])}, tmp_path, max_silence_s=3, max_failures=0)
    assert states(analysis) == ["complete"] * 2


def test_a_trial_that_reports_nan_fails_and_others_go_on(backend: str, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        report(x=1.0)
        report(x=math.nan if config["a"] == 1 else 2.0)

    analysis = run(trial, {"a": tune.grid([1, 2])}, tmp_path)
    assert states(analysis) == ["failed", "complete"] and "x = nan" in analysis.trials[0].error


def test_an_unknown_metric_names_those_that_were_reported(backend: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no metric 'accuracy'.*reported: loss, x"):
        run(
            lambda config, report: report(loss=1.0, x=2),
            {"a": tune.grid([1, 2])},
            tmp_path,
            metric="accuracy",
        )


def test_a_trial_that_returns_nothing(backend: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="returned nothing, and reported nothing"):
        run(lambda config: None, {"a": tune.grid([1, 2])}, tmp_path)


def broken(config: dict[str, Any], report: Any) -> None:
    raise KeyError("learning_rate")


def test_an_experiment_whose_first_trials_all_fail_ends_with_the_error(backend: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)KeyError: 'learning_rate'.*in .*test_trial_faults.py:\d+, broken"
    ) as caught:
        run(broken, {"a": tune.uniform(0, 1)}, tmp_path, num_samples=1000)
    assert len(str(caught.value).splitlines()) < 40
    assert len(lines(tmp_path / "e" / "log.txt")) < 40


def explode() -> None:
    raise ImportError("there is no such package on this node")


class Explosive:
    """Pickles well, and cannot be loaded."""

    def __call__(self, config: dict[str, Any]) -> float:
        return 1.0

    def __reduce__(self) -> Any:
        return explode, ()


def has_a_typo(config: dict[str, Any], report: Any) -> None:
    with open(config["notes"], "a") as file:
        file.write(f"{config['step']}\n")
    for step in range(1, 4):
        if step == config["step"]:
            config.no_such_method()  # type: ignore[attr-defined]
        report(x=step)


@pytest.mark.parametrize(("step", "runs"), [(1, 1), (2, 3)])
def test_a_typo_before_the_first_report_is_not_tried_again(step: int, runs: int, backend: str, tmp_path: Path) -> None:
    """(Later ones may have other causes: the trial goes on from its checkpoint as after any crash.)"""
    notes = tmp_path / "notes"
    config = {"notes": str(notes), "step": step}
    hopeless = pytest.raises(ConfigError, match="has no attribute 'no_such_method'")
    with hopeless if step == 1 else contextlib.nullcontext():
        run(has_a_typo, config, tmp_path, num_samples=1)
    assert len(lines(notes)) == runs


def test_a_trainable_that_cannot_be_loaded_ends_the_experiment(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"(?s)no trial has come to its first report; trial \d: ImportError: there is no such package",
    ):
        run(Explosive(), {"a": tune.uniform(0, 1)}, tmp_path, num_samples=1000)


class ClosesBadly:
    def __init__(self, config: dict[str, Any]) -> None: ...

    def step(self) -> dict[str, Any]:
        return {"x": 1.0}

    def close(self) -> None:
        raise OSError("in close")


def test_an_error_in_close_loses_nothing(backend: str, tmp_path: Path) -> None:
    assert states(run(ClosesBadly, {"a": tune.grid([1, 2])}, tmp_path, stop={"step": 2})) == ["complete"] * 2


def test_a_function_that_ignores_the_stop_costs_its_process_and_not_its_result(cluster: None, tmp_path: Path) -> None:
    def obstinate(config: dict[str, Any], report: Any) -> None:
        import rlplat.tune.trials.programs

        rlplat.tune.trials.programs.GRACE_S = 0.2
        try:
            report(x=config["a"])
            report(x=0)
        finally:
            threading.Event().wait()

    analysis = run(obstinate, {"a": tune.grid([1, 2, 3, 4])}, tmp_path, stop={"step": 1}, max_concurrent=1)
    assert states(analysis) == ["complete"] * 4
    assert [trial.failures for trial in analysis.trials] == [0] * 4


def test_a_config_that_is_refused_fails_its_trial_at_once(backend: str, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"

    def trial(config: dict[str, Any], report: Any) -> None:
        with attempts.open("a") as file:
            file.write(f"{config['a']}\n")
        if config["a"] == 1:
            raise ConfigError("a = 1 is out of the question")
        report(x=config["a"])

    analysis = run(trial, {"a": tune.grid([1, 2, 3])}, tmp_path, max_concurrent=1)
    assert states(analysis) == ["failed", "complete", "complete"] and lines(attempts) == ["1", "2", "3"]
    assert analysis.trials[0].error.startswith("a = 1 is out of the question")


def test_a_damaged_checkpoint_fails_its_trial_and_no_other(backend: str, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        report(x=1, checkpoint={"step": 1})
        report(x=2)
        if config["a"] == 1 and report.step == 2:
            (saved,) = report.directory.glob("checkpoints/step_1/state.json")
            saved.write_text("{}")
            raise OSError("and then it crashed")

    analysis = run(trial, {"a": tune.grid([1, 2])}, tmp_path, checkpoint_period=1)
    assert states(analysis) == ["failed", "complete"]
    assert "state.json" in analysis.trials[0].error and "cannot be used" in analysis.trials[0].error


def test_a_state_that_cannot_be_kept_ends_the_experiment(backend: str, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"cannot checkpoint the state of trial 0: 'state.lock' is a _thread.lock"
    ):
        run(
            lambda config, report: report(x=1, checkpoint={"lock": threading.Lock()}),
            {"a": 1},
            tmp_path,
            checkpoint_period=1,
        )


def test_a_stopped_trial_cleans_up_and_may_spoil_its_config(backend: str, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        a, config["a"] = config["a"], {"spoilt": True}
        try:
            while True:
                report(x=a)
        finally:
            (tmp_path / f"cleaned-{a}").touch()

    analysis = run(trial, {"a": tune.grid([1, 2, 3])}, tmp_path, stop={"step": 2}, seeds_per_trial=2)
    assert sorted(path.name for path in tmp_path.glob("cleaned-*")) == ["cleaned-1", "cleaned-2", "cleaned-3"]
    assert [trial.config for trial in analysis.trials] == [{"a": 1}, {"a": 2}, {"a": 3}]


def unlucky(config: dict[str, Any], report: Any) -> None:
    """Twelve steps; in some attempts at some of them it raises, exits, is killed or hangs: the same in every run."""
    state = report.checkpoint or {"step": 0, "trace": []}
    for step in range(state["step"] + 1, 13):
        state = {"step": step, "trace": [*state["trace"], step]}
        luck = zlib.crc32(repr((report.number, report.attempt, step)).encode()) % 1000
        if luck < 25:
            raise ValueError("out of luck")
        if luck < 40:
            os._exit(7)
        if luck < 55:
            os.kill(os.getpid(), signal.SIGKILL)
        if luck < 65:
            threading.Event().wait()
        report(x=float(sum(state["trace"])), checkpoint=state)


@pytest.mark.process
@pytest.mark.parametrize("scheduler", ["fifo", "hyperband"])
def test_many_trials_with_many_faults(scheduler: str, tmp_path: Path) -> None:
    rlplat.init(num_cpus=3, num_gpus=0)
    try:
        settings = {"max_failures": 20, "max_silence_s": 1.0, "checkpoint_period": 2, "stop": {"step": 12}}
        analysis = run(unlucky, {"a": 1}, tmp_path, num_samples=9, scheduler=scheduler, **settings)
    finally:
        rlplat.shutdown()
    assert sum(trial.failures for trial in analysis.trials) > 3
    for trial in analysis.trials:
        assert trial.state is (TrialState.COMPLETE if trial.step == 12 else TrialState.STOPPED), trial.error
        assert trial.history == [(step, sum(range(step + 1))) for step in range(1, trial.step + 1)]
        kept = list((tmp_path / "e" / "trials" / trial.directory_name / "checkpoints").glob("step_*"))
        assert len(kept) <= 2
    reports = [json.loads(line) for line in lines(tmp_path / "e" / "results.jsonl")]
    assert len(reports) == len({(one["trial"], one["step"]) for one in reports})
    assert len(reports) == sum(trial.step for trial in analysis.trials)


def test_a_trial_that_fails_after_a_restart_keeps_all_metrics_of_its_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuner dies between two reports that nothing else was recorded with; then the trial never comes to another."""
    killed = tmp_path / "killed"

    def trial(config: dict[str, Any], report: Any) -> None:
        if killed.exists():
            raise OSError("it is broken now")
        for step in range(1, 10):
            report(x=step, loss=10 - step, stop=0)

    record = ExperimentDirectory.record

    def die(self: ExperimentDirectory, one: Trial, metrics: Any) -> None:
        record(self, one, metrics)
        if one.step == 3:
            killed.touch()
            raise MemoryError("as good as kill -9")

    monkeypatch.setattr(ExperimentDirectory, "record", die)
    rlplat.init(num_cpus=1, num_gpus=0, backend="inproc")
    try:
        settings = {"max_failures": 0, "stop": {"stop": 1}}
        with pytest.raises(MemoryError):
            run(trial, {"a": 1}, tmp_path, **settings)
        monkeypatch.undo()
        (only,) = run(trial, {"a": 1}, tmp_path, resume=True, **settings).trials
    finally:
        rlplat.shutdown()
    assert only.state is TrialState.FAILED and only.last == {"x": 3, "loss": 7, "stop": 0}
    assert "7" in (tmp_path / "e" / "results.csv").read_text().splitlines()[1].split(",")
