"""`optuna-dashboard EXP/study.journal` opens an experiment, also one that is still going."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlplat.tune.study import Study
from tests.patience import soon
from tests.tune.experiments import write_experiment

pytest.importorskip("optuna_dashboard", reason="needs optuna-dashboard: pip install 'rlplat[dev]'")


@contextmanager
def dashboard(storage: Path) -> Iterator[str]:
    """The command on a free port; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = storage.parent / "dashboard.txt"
    code = "from optuna_dashboard._cli import main; main()"
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", str(port), "--server", "wsgiref", str(storage)],
            stdout=file,
            stderr=file,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        assert soon(lambda: process.poll() is not None or answers(url))
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        ask(f"{url}/api/studies")
    except OSError:
        return False
    return True


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


@pytest.mark.process
@pytest.mark.parametrize("is_running", [False, True])
def test_the_dashboard_shows_an_experiment(tmp_path: Path, is_running: bool) -> None:
    trials = write_experiment(tmp_path / "demo", 12, num_running=2 if is_running else 0)
    journal = tmp_path / "demo" / "study.journal"
    study = Study.open(str(journal), "demo", ["max"], resume=True) if is_running else None
    try:
        with dashboard(journal) as url:
            (summary,) = ask(f"{url}/api/studies")["study_summaries"]
            assert summary["study_name"] == "demo" and summary["directions"] == ["maximize"]
            shown = ask(f"{url}/api/studies/{summary['study_id']}")
    finally:
        if study is not None:
            study.close()
    by_number = {trial["number"]: trial for trial in shown["trials"]}
    assert sorted(by_number) == list(range(12))
    states = {"complete": "Complete", "stopped": "Pruned", "failed": "Fail", "running": "Running"}
    assert [by_number[t.number]["state"] for t in trials] == [states[str(t.state)] for t in trials]
    first = by_number[0]
    assert first["values"] == [trials[0].values[0]]
    params = {param["name"]: param["param_external_value"] for param in first["params"]}
    assert set(params) == set(trials[0].params)
    assert float(params["learning_rate"]) == pytest.approx(trials[0].params["learning_rate"])
    assert params["policy.activation"] == trials[0].params["policy.activation"]
    assert [value["step"] for value in first["intermediate_values"]] == [1, 2, 3, 4, 5, 6]
    assert {space["name"] for space in shown["union_search_space"]} >= {"learning_rate", "num_envs"}
