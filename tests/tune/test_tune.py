"""`tune.run` from end to end: the seed example, every kind of trainable, limits, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import rlplat
from rlplat import tune
from rlplat.errors import ConfigError
from tests.patience import soon
from tests.tune.running import lines, run, states

# ---------------------------------------------------------------- the seed example


def train(config: dict[str, Any], report: Any) -> None:
    for step in range(100):
        report(mean_accuracy=config["alpha"] * step + config["beta"])


def test_the_seed_example(backend: str, tmp_path: Path) -> None:
    analysis = tune.run(
        train,
        {"alpha": tune.grid([0.2, 0.4, 0.6]), "beta": tune.grid([1, 2])},
        metric="mean_accuracy",
        stop={"mean_accuracy": 10},
        resources={"cpu": 1},
        out=tmp_path / "seed",
    )
    assert analysis.best_config == {"alpha": 0.6, "beta": 2}
    assert analysis.dataframe()["step"].tolist() == [46, 41, 24, 21, 16, 15]
    assert states(analysis) == ["complete"] * 6
    file = JournalFileBackend(str(tmp_path / "seed" / "study.journal"))
    study = optuna.load_study(study_name=None, storage=JournalStorage(file))
    assert study.metric_names == ["mean_accuracy"] and study.best_params == {"alpha": 0.6, "beta": 2}


# ---------------------------------------------------------------- every kind


def reporting(config: dict[str, Any], report: Any) -> None:
    for index in range(3):
        report(x=config["a"] * index)


def returning(config: dict[str, Any]) -> dict[str, Any]:
    return {"x": config["a"] * 2}


def a_number(config: dict[str, Any]) -> float:
    return config["a"] * 2.0


def generating(config: dict[str, Any]) -> Any:
    for index in range(3):
        yield {"x": config["a"] * index}


class Stepping:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.index = config, -1

    def step(self) -> dict[str, Any] | None:
        self.index += 1
        return {"x": self.config["a"] * self.index} if self.index < 3 else None


@pytest.mark.parametrize("trainable", [reporting, returning, a_number, generating, Stepping])
def test_every_kind_of_trainable(trainable: Any, backend: str, tmp_path: Path) -> None:
    analysis = run(trainable, {"a": tune.grid([1, 2, 3])}, tmp_path)
    assert [trial.values for trial in analysis.trials] == [(2,), (4,), (6,)]
    assert {trial.step for trial in analysis.trials} == {1 if trainable in (returning, a_number) else 3}
    assert states(analysis) == ["complete"] * 3 and analysis.best_config == {"a": 3}


def test_by_name_in_a_file(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def train(config, report):\n    for i in range(3):\n        report(x=config['a'] * i)\n")
    analysis = run(f"{file}:train", {"a": tune.grid([1, 2])}, tmp_path)
    assert [trial.values for trial in analysis.trials] == [(2,), (4,)]


def test_tasks_inside_trials(backend: str, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        square = rlplat.remote(num_cpus=0)(lambda x: x * x)
        for index in range(2):
            report(x=sum(rlplat.get([square.remote(config["a"] + index) for _ in range(3)])))

    analysis = run(trial, {"a": tune.grid([1, 2])}, tmp_path)
    assert [trial.values for trial in analysis.trials] == [(12,), (27,)]


def test_several_seeds_per_trial(backend: str, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        for _ in range(2):
            report(x=report.seed)

    (only,) = run(trial, {"a": 1}, tmp_path, seeds_per_trial=3).trials
    assert only.step == 2 and only.last["x_std"] > 0


def test_trials_that_print_and_log(cluster: None, tmp_path: Path) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        print("hello from", config["a"])
        report(x=config["a"])

    assert states(run(trial, {"a": tune.grid([1, 2])}, tmp_path)) == ["complete"] * 2


# ---------------------------------------------------------------- limits


def test_max_concurrent(cluster: None, tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()

    def trial(config: dict[str, Any], report: Any) -> None:
        mine = running / str(config["a"])
        mine.touch()
        for _ in range(5):
            report(x=len(list(running.iterdir())))
            assert len(list(running.iterdir())) == 1
        mine.unlink()

    analysis = run(trial, {"a": tune.grid([1, 2, 3, 4])}, tmp_path, max_concurrent=1, resources={"cpu": 0.5})
    assert states(analysis) == ["complete"] * 4


def test_the_time_budget_ends_what_runs_at_its_next_report(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second every 20 reports, so that some come in time."""
    notes = tmp_path / "notes"
    notes.touch()

    def endless(config: dict[str, Any], report: Any) -> None:
        while True:
            report(x=config["a"], checkpoint=0)
            with notes.open("a") as file:
                file.write("x")

    clock = SimpleNamespace(monotonic=lambda: notes.stat().st_size / 20, sleep=time.sleep)
    monkeypatch.setattr("rlplat.tune.tuner.time", clock)
    budget: dict[str, Any] = {"num_samples": 100, "max_concurrent": 1, "time_budget_s": 1.0}
    analysis = run(endless, {"a": tune.uniform(0, 1)}, tmp_path, **budget)
    assert analysis.trials and len(analysis.trials) < 100
    assert analysis.best_trial.step >= 20
    again = run(endless, {"a": tune.uniform(0, 1)}, tmp_path, **budget, resume=True)
    assert again.trials[0].step > analysis.trials[0].step  # from its checkpoint


def test_a_finished_experiment_has_nothing_to_go_on_with(backend: str, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"

    def trial(config: dict[str, Any]) -> float:
        with attempts.open("a") as file:
            file.write("begun\n")
        return float(config["a"])

    space = {"a": tune.grid([1, 2, 3])}
    first = run(trial, space, tmp_path)
    with pytest.raises(ConfigError, match="resume"):
        run(trial, space, tmp_path)
    second = run(trial, space, tmp_path, resume=True)
    assert lines(attempts) == ["begun"] * 3
    assert [trial.values for trial in second.trials] == [trial.values for trial in first.trials] == [(1,), (2,), (3,)]
    assert second.best_config == {"a": 3}


SCRIPT = """
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from rlplat import tune

def endless(config, report):
    step = report.checkpoint or 0
    notes = Path(config["notes"])
    while step < 400:
        step += 1
        with notes.open("a") as file:
            file.write(f"{config['a']} {step}\\n")
        report(x=step, checkpoint=step)
        if not Path(config["gate"]).exists():
            import time
            time.sleep(0.05)

if __name__ == "__main__":
    out = Path(sys.argv[1])
    space = {"a": tune.grid([1, 2, 3]), "notes": str(out / "notes"), "gate": str(out / "gate")}
    try:
        analysis = tune.run(endless, space, metric="x", out=out / "e", resume="resume" in sys.argv, max_concurrent=2)
    except KeyboardInterrupt as interrupted:
        sys.exit(interrupted.exit_code)
    print([trial.step for trial in analysis.trials], [str(trial.state) for trial in analysis.trials])
"""


def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        start_new_session=True,
    )


@pytest.mark.process
def test_ctrl_c_saves_what_runs_and_the_experiment_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = start(script, str(tmp_path))
    try:
        assert soon(lambda: len(lines(tmp_path / "notes")) > 20)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, text
    before = lines(tmp_path / "notes")
    (tmp_path / "gate").touch()
    second = start(script, str(tmp_path), "resume")
    try:
        text, _ = second.communicate(timeout=100)
    finally:
        second.kill()
    assert second.returncode == 0, text
    assert "[400, 400, 400] ['complete', 'complete', 'complete']" in text
    after = lines(tmp_path / "notes")
    for a in (1, 2, 3):  # every step once: they were saved at the report at which they ended
        assert [line for line in after if line.startswith(f"{a} ")] == [f"{a} {step}" for step in range(1, 401)]
    assert len(after) == 1200 > len(before)
    records = [json.loads(line) for line in lines(tmp_path / "e" / "results.jsonl")]
    assert len(records) == 1200


@pytest.mark.process
def test_ctrl_c_twice_leaves_at_once_and_nothing_runs_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    hanging = "while step < 400:\n        notes.touch(), threading.Event().wait()"
    script.write_text("import threading\n" + SCRIPT.replace("while step < 400:", hanging))
    process = start(script, str(tmp_path))
    try:
        assert soon(lambda: (tmp_path / "notes").exists())
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert any("once more: leave at once" in line for line in process.stdout)  # it waits for a report
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130, process.stdout.read()
    finally:
        process.kill()
        process.communicate()
