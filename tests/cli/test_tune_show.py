"""`rlplat tune show` and the experiments in `rlplat runs`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import main
from rlplat.figures import figure
from rlplat.tune.study import Study
from tests.tune.experiments import write_experiment


@pytest.mark.slow
def test_it_prints_the_best_and_writes_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = write_experiment(tmp_path / "demo", 60)
    best = max((t for t in trials if t.state != "failed"), key=lambda trial: trial.values)
    assert main(["tune", "show", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    assert "demo: 60 trials (" in shown and "still going" not in shown
    assert f"best config (trial {best.number}), also in {tmp_path}/demo/best.yaml:\n  learning_rate: " in shown
    assert "the last one (trial 54): ValueError: too hot" in shown
    assert "importance of the parameters: learning_rate" in shown
    rows = [line.split() for line in shown.partition("the best trials:\n")[2].splitlines()[1:11]]
    assert rows[0][0] == str(best.number) and len(rows) == 10
    for name in ("learning_curves", "importance", "slices", "parallel_coordinates"):
        picture = (tmp_path / "demo" / "pictures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_without_matplotlib_the_table_is_there_and_one_line_about_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path / "demo", 12)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["tune", "show", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr()
    assert "the best trials:\n" in out.out and "best config (trial" in out.out
    assert out.err.count("\n") == 1 and out.err.startswith("a picture needs matplotlib: ")


def test_json_of_several_objectives_and_of_a_running_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = write_experiment(tmp_path / "demo", 12, metric=("return", "cost"), mode=("max", "min"), num_running=2)
    study = Study.open(str(tmp_path / "demo" / "study.journal"), "demo", ["max", "min"], resume=True)
    assert main(["tune", "show", str(tmp_path / "demo"), "--json", "--no-pictures"]) == 0, "beside who writes it"
    study.close()
    answer = json.loads(capsys.readouterr().out)
    assert answer["trials"]["running"] == 2 and answer["pictures"] == {} and answer["importance"] == []
    assert answer["metric"] == ["return", "cost"]
    first = answer["best"][0]
    assert first["values"] == list(trials[first["trial"]].values) and first["config"]["seed"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no experiment in nowhere: it has no experiment.yaml"),
        (["demo", "--out", "file/pictures"], "cannot write file/pictures/.*choose another place: --out"),
    ],
)
def test_bad_usage_is_one_message(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(tmp_path / "demo", 3)
    (tmp_path / "file").write_text("")
    assert main(["tune", "show", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_an_experiment_without_results_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path / "demo", 0)
    assert main(["tune", "show", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    assert "demo: 0 trials (none yet)" in shown and "no trial of the experiment demo has a value of 'return'" in shown


def test_runs_lists_experiments_and_not_their_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = write_experiment(tmp_path / "demo", 9)
    best = max(t.values[0] for t in trials if t.state != "failed")
    for place in (tmp_path / "alone", tmp_path / "demo" / "trials" / "00003"):
        place.mkdir(parents=True)
        (place / "config.yaml").write_text("algo: ppo\nenv: CartPole-v1\n")
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == [str(tmp_path / "alone"), "ppo", "CartPole-v1"] and lines[2] == ""
    assert lines[3].split() == [
        "experiment",
        "trainable",
        "searcher",
        "scheduler",
        "trials",
        "metric",
        "best",
        "state",
        "updated",
    ]
    assert lines[4].split()[:8] == [
        str(tmp_path / "demo"),
        "ppo",
        "random",
        "fifo",
        "9/9",
        "return",
        figure(best),
        "ended",
    ]
    assert len(lines) == 5

    assert main(["runs", str(tmp_path), "--json"]) == 0
    rows = {row["kind"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["experiment"]["best"] == best and rows["experiment"]["trials_ended"] == 9
    assert rows["run"]["run"] == str(tmp_path / "alone")

    assert main(["runs", str(tmp_path / "demo"), "--json"]) == 0, "the trials of one experiment"
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [str(tmp_path / "demo" / "trials" / "00003")]


def test_runs_finds_a_metric_with_the_name_of_a_column_and_says_what_is_unfinished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "experiment.yaml").write_text("trainable: x:y\nmetric: error\nmode: min\nnum_samples: 3\n")
    rows = "trial,state,error,metrics/error\n0,complete,,0.5\n1,complete,,0.25\n"
    (tmp_path / "demo" / "results.csv").write_text(rows)
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[4:8] == ["2/3", "error", "0.25", "unfinished"]
