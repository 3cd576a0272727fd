"""A run in a tracker: every row once, after kills, refusals and resumes; the training knows nothing of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplat.catalog import flat
from rlplat.cli import main
from rlplat.errors import ConfigError, UsageError
from rlplat.metrics import forget_after
from rlplat.tracking.copying import Copier, state_of
from rlplat.tracking.sidecar import Sidecar, TrackingFailed, follow, only_one
from rlplat.tracking.tracker import load_tracker
from tests.dashboard.made_runs import learning, make_run
from tests.tracking.fake_tracker import FakeTracker, env_steps_of, told

ROOT = Path(__file__).resolve().parents[2]
FAKE = "tests.tracking.fake_tracker:FakeTracker"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tracker"
    path.mkdir()
    monkeypatch.setenv("FAKE_TRACKER", str(path))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = make_run(tmp_path / "demo", learning(30), stop={"env_steps": 30720})
    (directory / "log.txt").write_text("2026-11-23 00:00:00  done\n")
    return directory


def copy(run: Path, **options: Any) -> Copier:
    copier = Copier(run, FakeTracker, "fake", **options)
    follow(copier, run, print, patience_s=0, sleep=lambda seconds: None)
    return copier


def only(home: Path) -> Path:
    (file,) = home.glob("*.jsonl")
    return file


def append(run: Path, *rows: dict[str, Any]) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


ALL = [1024 * (index + 1) for index in range(30)]


def test_a_run_is_copied_once_with_its_settings_videos_and_end(run: Path, home: Path) -> None:
    (run / "videos").mkdir()
    (run / "videos" / "step_1024.mp4").write_bytes(b"x")
    (run / "videos" / ".half.mp4.new").write_bytes(b"x")
    (run / "checkpoints" / "best").mkdir(parents=True)
    append(run, {**learning(30)[-1], "eval/return_mean": 400.0})
    assert copy(run, checkpoints=True).num_sent == 31
    assert copy(run, checkpoints=True).num_sent == 0
    first, *rest = told(only(home))
    assert first["name"] == "demo" and first["config"]["stop.env_steps"] == 30720
    assert env_steps_of(only(home)) == ALL
    assert [line["values"] for line in rest if line.get("closing")] == [{"eval/return_mean": 400.0}]
    assert [line["file"] for line in rest if "file" in line] == ["step_1024.mp4", "best"]
    assert [line["state"] for line in rest if "state" in line] == ["finished"]


@pytest.mark.process
def test_killed_between_sending_and_noting_it_nothing_is_lost_or_doubled(run: Path, home: Path) -> None:
    (home / "die").touch()
    command = [sys.executable, "-m", "rlplat.cli", "track", str(run), "--to", FAKE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert env_steps_of(only(home)) == ALL
    append(run, {**learning(31)[-1]})
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "1 rows of" in again.stdout and "has finished" in again.stdout
    assert env_steps_of(only(home)) == [*ALL, 31744]


def test_a_network_that_comes_back_gets_every_row_once(run: Path, home: Path) -> None:
    (home / "fail").write_text("4")
    pauses: list[float] = []
    said: list[str] = []
    copier = Copier(run, FakeTracker, "fake")
    follow(copier, run, said.append, patience_s=60, sleep=pauses.append)
    assert env_steps_of(only(home)) == ALL
    assert pauses == [1, 2, 4, 8] and "no route to host; trying again in 8 s" in said[-1]


def test_a_tracker_that_refuses_after_the_end_fails_and_the_rest_comes_later(run: Path, home: Path) -> None:
    (home / "fail").write_text("100")
    with pytest.raises(TrackingFailed, match="no route to host"):
        follow(Copier(run, FakeTracker, "fake"), run, print, patience_s=5, sleep=lambda seconds: None)
    (home / "fail").unlink()
    assert copy(run).num_sent == 30


def test_a_tracker_with_an_older_state_is_given_what_it_has_lost(run: Path, home: Path) -> None:
    copy(run)
    lines = only(home).read_text().splitlines()
    only(home).write_text("\n".join(lines[:11]) + "\n")  # what it said of itself, and ten rows
    append(run, {**learning(31)[-1]})
    assert copy(run).num_sent == 21
    assert env_steps_of(only(home)) == [*ALL, 31744]


def test_a_resume_that_takes_rows_back_begins_another_run_of_the_group(run: Path, home: Path) -> None:
    copy(run)
    forget_after(run, 10 * 1024)
    append(run, *({**row, "second": 1} for row in learning(12)[10:]))
    assert copy(run).num_sent == 12
    first, second = sorted(home.glob("*.jsonl"), key=lambda path: path.name)
    assert env_steps_of(first) == ALL and told(first)[-1] == {"state": "interrupted"}
    assert env_steps_of(second) == ALL[:12] and told(second)[0]["name"] == "demo (2)"
    assert told(first)[0]["group"] == told(second)[0]["group"]


def test_a_resume_that_takes_nothing_back_continues_the_run(run: Path, home: Path) -> None:
    append(run, {**learning(30)[-1], "eval/return_mean": 400.0})
    copy(run)
    forget_after(run, 30 * 1024)  # removes the closing line and writes the file again
    append(run, *learning(32)[30:], {**learning(32)[-1], "eval/return_mean": 410.0})
    copy(run)
    assert env_steps_of(only(home)) == [*ALL, 31744, 32768]
    closing = [line["values"]["eval/return_mean"] for line in told(only(home)) if line.get("closing")]
    assert closing == [400.0, 410.0]


def test_a_removed_run_ends_the_copy(run: Path, home: Path) -> None:
    copier = Copier(run, FakeTracker, "fake")
    assert copier.turn() is False
    shutil.rmtree(run)
    assert follow(copier, run, print, patience_s=0, sleep=lambda seconds: None) == "gone"


def test_a_run_that_never_had_a_row_is_never_in_the_tracker(run: Path, home: Path) -> None:
    (run / "metrics.jsonl").unlink()
    copy(run)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("done", "finished"),
        ("ended by SIGINT", "interrupted"),
        ("failed:\nTraceback", "failed"),
        ("", "failed"),
    ],
)
def test_how_a_run_ended_stands_in_its_log(tmp_path: Path, last: str, state: str) -> None:
    (tmp_path / "log.txt").write_text(f"2026-11-23 00:00:00  {last}\n" if last else "")
    assert state_of(tmp_path) == state


def test_two_copies_to_one_tracker_are_refused(run: Path) -> None:
    with only_one(run, "fake"), pytest.raises(ConfigError, match="is copying"), only_one(run, "fake"):
        pass


def test_wrong_names_are_one_message(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["track", str(run), "--to", "wandbb"]) == 2
    assert "did you mean 'wandb'" in capsys.readouterr().err
    assert main(["track", str(run / "nothing"), "--to", "wandb"]) == 2
    assert "no run in" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install mlflow"):
        load_tracker("mlflow")


@pytest.mark.parametrize("name", ["aim", "mlflow", "trackio", "wandb"])
def test_announced_trackers_load_without_their_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert load_tracker(name).package == name


def test_settings_are_flat() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [1]}, "e": {}}) == {"a.b.c": 1, "a.d": [1], "e": {}}


@pytest.mark.process
def test_train_starts_the_copy_and_a_resume_continues_it(tmp_path: Path, home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    counting = ["--algo", "tests.cli.counting_algorithm:CountingAlgorithm", "--env", "X"]
    out = tmp_path / "run"

    def train(*arguments: str) -> str:
        command = [sys.executable, "-m", "rlplat.cli", "train", *arguments, "--track", FAKE]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "no copy" not in train(*counting, "--stop.env-steps", "50", "--out", str(out))
    assert env_steps_of(only(home)) == [10, 20, 30, 40, 50]
    train("--resume", str(out), "--stop.env-steps", "70")
    assert env_steps_of(only(home)) == [10, 20, 30, 40, 50, 60, 70]
    assert [line["state"] for line in told(only(home)) if "state" in line] == ["finished"] * 2
    params, columns = json.loads((out / "params.json").read_text()), (out / "progress.csv").read_text()
    assert params["env"] == "X" and params["stop"] == {
        "env_steps": 70,
        "episode_return_mean": None,
        "wall_s": None,
    }
    assert columns.startswith("iteration,env_steps")  # what rllab's VisKit reads of a directory


@pytest.mark.process
def test_how_to_copy_again_works_as_it_is(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my run").mkdir()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    Sidecar(tmp_path / "my run", FAKE).wait()
    assert capsys.readouterr().err.endswith(f"again: rlplat track '{tmp_path}/my run' --to {FAKE}\n")


def test_an_unknown_tracker_ends_train_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--track", "wandbb", "--out", out]) == 2
    assert "did you mean 'wandb'" in capsys.readouterr().err and not os.path.exists(out)


@pytest.mark.process
def test_the_pages_own_tracker_works(run: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tracking.md").read_text(), re.DOTALL)
    (tmp_path / "my_tracker.py").write_text(block)
    command = [sys.executable, "-m", "rlplat.cli", "track", str(run), "--to", "./my_tracker.py:CsvTracker"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for rows in (30, 0):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.stdout.startswith(f"{rows} rows of "), done.stderr
        (file,) = tmp_path.glob("*.csv")
        assert [line.partition(",")[0] for line in file.read_text().splitlines()] == [str(each) for each in ALL]
