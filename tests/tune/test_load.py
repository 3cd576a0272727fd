"""`tune.load`: a whole experiment as `tune.run` wrote it, after its end and while it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

from rlplat import tune
from rlplat.errors import ConfigError, RlplatError
from rlplat.tune.lines import read_reports
from tests.patience import soon


def train(config: dict[str, Any], report: Any) -> None:
    for step in range(1, 4):
        report(accuracy=config["alpha"] * step, step=100 * step)


def waiting(config: dict[str, Any], report: Any) -> None:
    report(accuracy=config["alpha"])
    assert soon(Path(config["until"]).exists, 50)
    report(accuracy=config["alpha"] + 1)


def test_what_a_run_has_written_can_be_loaded(tmp_path: Path, backend: str) -> None:
    out = tmp_path / "exp"
    space = {"alpha": tune.grid([1, 3, 2]), "constant": 5}
    analysis = tune.run(train, space, metric="accuracy", out=out, progress=False)
    loaded = tune.load(out)
    assert analysis.best_config == loaded.best_config == {"alpha": 3, "constant": 5}
    assert analysis.best_value == loaded.best_value == 9 and loaded.best_checkpoint is None
    pandas.testing.assert_frame_equal(analysis.dataframe(), loaded.dataframe())
    table = pandas.read_csv(out / "results.csv").sort_values("trial", ignore_index=True)
    shown = loaded.dataframe()
    assert table["config/alpha"].tolist() == shown["config/alpha"].tolist() == [1, 3, 2]
    assert table["accuracy"].tolist() == shown["accuracy"].tolist() == [3, 9, 6]
    assert table["metrics/step"].tolist() == [300, 300, 300] and table["step"].tolist() == [3, 3, 3]
    reports = [(report["trial"], report["step"]) for report in read_reports(out / "results.jsonl")]
    assert sorted(reports) == [(trial, step) for trial in range(3) for step in (1, 2, 3)]
    assert len(loaded.history()) == 9
    assert yaml.safe_load((out / "best.yaml").read_text()) == {"alpha": 3, "constant": 5}
    assert [domain.labels for domain in loaded.domains.values()] == [(1, 3, 2)]


def test_a_running_experiment_can_be_looked_at(tmp_path: Path, cluster: None) -> None:
    out, until = tmp_path / "exp", tmp_path / "go on"
    space = {"alpha": tune.grid([1, 2]), "until": str(until)}
    done: list[Any] = []
    runner = threading.Thread(
        target=lambda: done.append(tune.run(waiting, space, metric="accuracy", out=out, progress=False))
    )
    runner.start()
    try:

        def states() -> list[tuple[str, int]]:
            try:
                return [(str(trial.state), trial.step) for trial in tune.load(out).trials]
            except RlplatError:
                return []  # nothing is there yet

        assert soon(lambda: states() == [("running", 1), ("running", 1)])
        assert tune.load(out).best_value == 2
    finally:
        until.write_text("")
        runner.join(50)
    assert done[0].best_value == 3 and states() == [("complete", 2)] * 2


def test_there_has_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no experiment in .*: it has no experiment.yaml"):
        tune.load(tmp_path)
