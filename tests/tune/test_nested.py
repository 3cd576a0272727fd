"""An experiment inside a trial of another one, or inside a task."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat import tune
from rlplat.errors import ConfigError
from tests.patience import soon
from tests.tune.running import run


def inner(config: dict[str, Any], report: Any) -> None:
    report(x=config["y"])


def outer(config: dict[str, Any], report: Any) -> None:
    found = tune.run(
        inner,
        {"y": tune.grid([1, 2, 3])},
        metric="x",
        resources={"cpu": config.get("cpu", 1)},
        out=report.directory / "inner",
        progress=False,
    )
    report(x=config["a"] * found.best_value)


def test_trials_that_hold_everything_lend_it_to_the_experiments_inside(cluster: None, tmp_path: Path) -> None:
    analysis = run(outer, {"a": tune.grid([1, 2])}, tmp_path)
    assert [trial.values for trial in analysis.trials] == [(3,), (6,)]


def test_an_experiment_inside_that_asks_for_more_is_refused_in_words(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs cpu 2, and the trial .* lends it CPU 1.*resources=\{'cpu': 2\}"):
        run(outer, {"a": 1, "cpu": 2}, tmp_path)


def test_a_task_lends_its_cpu_to_an_experiment(cluster: None, tmp_path: Path) -> None:
    @rlplat.remote
    def search(number: int) -> float:
        return run(inner, {"y": tune.grid([1, 2])}, tmp_path / str(number)).best_value

    assert rlplat.get([search.remote(number) for number in range(2)]) == [2, 2]


SCRIPT = """
import sys, threading
from pathlib import Path
from rlplat import tune
from rlplat.tune import tuner

def silent(config):
    Path(config["notes"]).touch()
    threading.Event().wait()

def outer(config):
    tune.run(silent, config, metric="x", out=config["notes"] + "-inner")

if __name__ == "__main__":
    tuner.INTERRUPTED_S = 0.2
    try:
        tune.run(outer, {"notes": sys.argv[1]}, metric="x", out=sys.argv[1] + "-outer")
    except KeyboardInterrupt as interrupted:
        sys.exit(interrupted.exit_code)
"""


@pytest.mark.process
def test_one_sigterm_ends_trials_that_never_report(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path / "notes")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert soon((tmp_path / "notes").exists)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143, said
    assert "no report within 0.2 s of the signal from trial 0" in said
