"""`rlplat plot`: one curve for runs that differ by their seed, as a picture or as numbers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.cli import main
from rlplat.dashboard.bands import curve_of, interval
from rlplat.tensorboard_events import TensorboardWriter
from rlplat.tracking.history import Row


def numbers(path: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    with open(path) as file:
        for row in csv.DictReader(file):
            found.setdefault(row["label"], []).append(row)
    return found


@pytest.mark.parametrize("given", [["runs"], ["runs/*"], ["runs/a-1", "runs/a-2", "runs/b-1", "runs/b-2"]])
def test_runs_that_differ_by_their_seed_are_one_curve(runs: Path, given: list[str], capsys: Any) -> None:
    assert main(["plot", *given, "--out", "curve.csv"]) == 0
    found = numbers("curve.csv")
    assert list(found) == ["learning_rate=0.001", "learning_rate=0.0001"]
    last = found["learning_rate=0.001"][-1]
    assert [float(last[key]) for key in ("env_steps", "middle", "low", "high", "num_runs")] == [
        1000,
        11.5,
        11,
        12,
        2,
    ]
    assert "2 seeds: the interval says little" in capsys.readouterr().out


def test_names_make_curves_and_every_picture_is_one(runs: Path) -> None:
    for name, head in (("c.pdf", b"%PDF"), ("c.png", b"\x89PNG"), ("c.svg", b"<?xml")):
        assert main(["plot", "old=runs/a-*", "new=runs/b-*", "--x", "wall_s", "--title", "T", "--out", name]) == 0
        assert (runs / name).read_bytes().startswith(head)
    drawn = (runs / "c.svg").read_text()
    for text in (
        "old (n = 2)",
        "wall time (s)",
        "return (mean of 100 episodes)",
        "interquartile mean, 95 % interval",
    ):
        assert text in drawn


def test_an_evaluation_is_where_its_weights_were(runs: Path) -> None:
    assert main(["plot", "runs/a-*", "--metric", "eval/return_mean", "--middle", "mean", "--out", "e.csv"]) == 0
    [row] = numbers("e.csv")["ppo X"]
    assert (float(row["env_steps"]), float(row["middle"])) == (250, 10.5)
    rows = [json.loads(line) for line in (runs / "runs/a-1/metrics.jsonl").read_text().splitlines()]
    x, _ = curve_of(rows, "eval/return_mean", "wall_s")
    assert x.tolist() == [2.5]
    row = Row(500, 5.0, {"eval/return_mean": 7.0, "eval/env_steps": 250, "loss": 1.0})
    assert (row.step_of("eval/return_mean"), row.step_of("loss")) == (250, 500)


def test_tensorboard_has_evaluations_at_their_env_steps(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = TensorboardWriter(tmp_path)
    writer.write({"env_steps": 500, "loss": 1.0, "eval/return_mean": 7.0, "eval/env_steps": 250})
    writer.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [events.Scalars(name)[0].step for name in ("loss", "eval/return_mean")] == [500, 250]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs/a-1", "--out", "c.gif"], "--out takes a file that ends in .pdf, .png, .svg, .csv"),
        (["runs/a-1", "--out", "none/c.pdf"], "there is no directory none"),
        (["runs/z-*", "--out", "c.pdf"], "no run with metrics in 'runs/z-*'"),
        (["runs/a-1", "--metric", "eval/retrn_mean", "--out", "c.pdf"], "did you mean 'eval/return_mean'"),
    ],
)
def test_what_cannot_be_drawn_is_named(runs: Path, arguments: list[str], said: str, capsys: Any) -> None:
    assert main(["plot", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(runs.glob("c.*"))


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("events.out.tfevents.1.host.1.0", "TensorBoard's"),
        ("progress.csv", "SB3's"),
        ("0.monitor.csv", "SB3's"),
        ("evaluations.npz", "SB3's"),
    ],
)
@pytest.mark.parametrize("command", [["plot", "--out", "c.csv"], ["compare"]])
def test_files_of_others_are_named_with_what_can_be_read(
    runs: Path, file: str, whose: str, command: list[str], capsys: Any
) -> None:
    (runs / "theirs" / "logs").mkdir(parents=True)
    (runs / "theirs" / "logs" / file).touch()
    for given in ("theirs", f"theirs/logs/{file}", "x=theirs"):
        assert main([*command, given]) == 2
        said = capsys.readouterr().err
        assert f"{file} is {whose}" in said and "metrics.jsonl" in said and "config.yaml" in said
    rows = "".join(json.dumps({"env_steps": step, "episode_return_mean": 1.0}) + "\n" for step in (0, 10))
    (runs / "theirs" / "metrics.jsonl").write_text(rows)  # what is said is enough
    (runs / "theirs" / "config.yaml").write_text("algo: their-ppo\nenv: CartPole-v1\nseed: 1\n")
    assert main([*command, "theirs"]) == 0
    assert "their-ppo" in capsys.readouterr().out


def test_an_interval_of_numbers() -> None:
    assert interval([3.0]) == (3.0, 3.0, 3.0)
    middle, low, high = interval([1.0, 2.0, 3.0, 4.0, 100.0], "iqm")
    assert middle == 3.0 and low < 3.0 < high
    assert interval([1.0, 2.0, 3.0, 4.0, 100.0], "mean")[0] == np.mean([1, 2, 3, 4, 100])
