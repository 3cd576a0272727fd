"""`rlplat new`: every kind of file runs as it was written; the algorithm learns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main

SHORT = [
    "--num-rollout-workers",
    "0",
    "--evaluation.episodes",
    "0",
    "--stop.env-steps",
    "600",
    "--out",
    "run",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
        del sys.modules[name]


def written(kind: str, name: str) -> str:
    assert main(["new", kind, name]) == 0
    [file] = Path().glob("*.py")
    return f"./{file}:{name}"


@pytest.mark.slow
@pytest.mark.process
def test_the_algorithm_learns_with_worker_processes_and_is_resumed() -> None:
    algorithm = written("algorithm", "MyReinforce")
    assert algorithm == "./my_reinforce.py:MyReinforce"
    common = ["--num-rollout-workers", "2", "--num-envs-per-worker", "4", "--seed", "1", "--out", "run"]
    stop = ["--stop.env-steps", "60000"]
    assert main(["train", "--algo", algorithm, "--env", "CartPole-v1", *common, *stop]) == 0
    agent = rlplat.load("run")
    assert np.mean([episode.episode_return for episode in agent.evaluate(10)]) > 120, "9.4 to begin with"
    assert main(["train", "--resume", "run", "--stop.env-steps", "61000"]) == 0


def test_the_environment_is_sound(capsys: Any) -> None:
    assert main(["check-env", written("env", "Corridor"), "--env-kwargs.size", "8"]) == 0
    assert "no problems found" in capsys.readouterr().out


def test_the_network_trains() -> None:
    policy = written("policy", "MyPolicy")
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--policy", policy, *SHORT]) == 0


def test_the_callback_ends_the_run_at_its_threshold() -> None:
    callback = f"[{{{written('callback', 'Enough')}: {{threshold: 1}}}}]"
    settings = ["--callbacks", callback, "--stop.env-steps", "100000", "--rollout-length", "512"]
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", *SHORT, *settings]) == 0
    assert "ended by Enough: a mean return of" in Path("run/log.txt").read_text()


def test_what_cannot_be_written_is_said(capsys: Any) -> None:
    assert main(["new", "env", "my_env"]) == 2
    assert "'my_env' is no name of a class: write it like MyEnv" in capsys.readouterr().err
    Path("my_env.py").write_text("mine")
    assert main(["new", "env", "MyEnv"]) == 2
    assert "my_env.py is there already" in capsys.readouterr().err
    assert Path("my_env.py").read_text() == "mine"
