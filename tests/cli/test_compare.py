"""`rlplat compare`: groups of seeds beside each other, and beside published values."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplat.cli import main
from rlplat.dashboard.bands import interval, performance_profile, probability_of_improvement
from tests.cli.conftest import write_run

ZOO = """
Final performance:

|algo |          env_id           |mean_reward|std_reward|n_timesteps|
|-----|---------------------------|----------:|---------:|-----------|
|a2c  |X-v0                       |     99.000|     1.000|500k       |
|ppo  |X-v2                       |     20.500|     1.250|100k       |
|ppo  |Y                          |      3.000|     0.000|100k       |
"""


def compared(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert main(["compare", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_probability_of_improvement_counts_pairs_and_ties_half() -> None:
    one, other = np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0])
    assert probability_of_improvement(one, other)[0] == (1 + 1.5 + 2) / 6
    share, low, high = probability_of_improvement(other, one)
    assert share == pytest.approx(1 - 4.5 / 6) and low <= share <= high
    assert probability_of_improvement(one + 10, other) == (1.0, 1.0, 1.0)


def test_a_profile_is_the_share_of_runs_above() -> None:
    tau, share, low, high = performance_profile(np.array([1.0, 3.0, 3.0, 5.0]))
    assert tau[1:].tolist() == [1.0, 3.0, 5.0] and tau[0] < 1.0
    assert share.tolist() == [1.0, 0.75, 0.25, 0.0]
    assert (low <= share).all() and (share <= high).all() and (low[0], high[-1]) == (1.0, 0.0)


def test_the_figures_of_groups(runs: Path, capsys: Any) -> None:
    """Runs of seed s have returns s + offset + 1..10 at steps 100..1,000, one line a second."""
    found = compared(capsys, "a=runs/a-*", "b=runs/b-*", "--metric", "episode_return_mean", "--threshold", "12")
    a, b = found["envs"]["X"]["groups"]
    assert (a["name"], a["runs"], a["mean"], a["worst"], a["best"]) == ("a", 2, 11.5, 11, 12)
    assert [a["iqm"], *a["iqm_interval"]] == list(interval([11.0, 12.0]))
    assert a["over_run_iqm"] == pytest.approx(1.5 + 5.5)
    assert (a["reached"], a["steps_to_threshold"], a["seconds_to_threshold"]) == (1, 1000, 10)
    assert (b["reached"], b["steps_to_threshold"]) == (2, 100)
    assert found["envs"]["X"]["better"] == [{"a": "a", "b": "b", "p": 0.0, "interval": [0.0, 0.0]}]


def test_an_evaluation_is_compared_where_every_run_has_one(runs: Path, capsys: Any) -> None:
    assert compared(capsys, "runs")["metric"] == "eval/return_mean"
    path = runs / "runs" / "a-1" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"eval/return_mean": None}) + "\n" for row in rows))
    assert compared(capsys, "runs")["metric"] == "episode_return_mean"


def test_environments_are_apart_and_published_values_are_those_of_the_same_task(
    runs: Path,
    capsys: Any,
) -> None:
    write_run(runs / "runs" / "y", 1)
    config = runs / "runs" / "y" / "config.yaml"
    config.write_text(config.read_text().replace("env: X", "env: Y"))
    (runs / "zoo.md").write_text(ZOO)
    (runs / "own.csv").write_text("env,algo,mean\nX,ppo,7\n")
    found = compared(capsys, "runs", "--against", "zoo.md")["envs"]
    assert [(each["env"], each["mean"], each["std"]) for each in found["X"]["published"]] == [("X-v2", 20.5, 1.25)]
    assert [each["mean"] for each in found["Y"]["published"]] == [3.0]
    own = compared(capsys, "runs", "--against", "own.csv")["envs"]
    assert [(each["mean"], each["std"]) for each in own["X"]["published"]] == [(7.0, None)]


def test_the_table_and_its_files(runs: Path, capsys: Any) -> None:
    (runs / "zoo.md").write_text(ZOO)
    assert main(["compare", "a=runs/a-*", "b=runs/b-*", "--against", "zoo.md", "--out", "scores.csv"]) == 0
    said = capsys.readouterr().out
    assert "P(a > b) = 0.50" in said and "published: ppo X-v2" in said
    assert "fewer than 5 runs say little: a (2), b (2)" in said
    with open("scores.csv") as file:
        assert [row["score"] for row in csv.DictReader(file)] == ["7", "14", "7", "14"]
    pytest.importorskip("matplotlib")
    assert main(["compare", "runs", "--out", "profile.svg"]) == 0
    assert "share of runs" in (runs / "profile.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no run with metrics in 'nothing'"),
        (["runs", "--metric", "learner/loss"], "has no value of 'learner/loss'"),
        (["runs", "--out", "x.doc"], "--out takes a file that ends in"),
        (["runs", "--against", "none.md"], "--against none.md:"),
        (["runs", "--against", "runs/a-1/config.yaml"], "has no table with the columns algo, env, mean"),
    ],
)
def test_wrong_words(runs: Path, arguments: list[str], said: str, capsys: Any) -> None:
    assert main(["compare", *arguments]) == 2
    assert said in capsys.readouterr().err
