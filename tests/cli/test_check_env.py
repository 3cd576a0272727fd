"""`rlplat check-env` as a command; what the checks find is tested with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import main

BAD_ENV = """
import gymnasium, numpy as np

class Liar(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=3):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.size, np.float32), {}

    def step(self, action):
        return np.zeros(self.size, np.float32), 0.0, False, True, {}
"""


def test_a_sound_environment(capsys: Any) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "50"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1: ")


def test_an_environment_whose_space_lies_and_the_argument_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "liar.py").write_text(BAD_ENV)
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", "./liar.py:Liar", "--steps", "50", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["is_sound"] is False
    assert any("shape (3,)" in finding["text"] for finding in report["findings"])
    assert main(["check-env", "./liar.py:Liar", "--steps", "50", "--env-kwargs.size", "4"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (["CartPole-v1", "--stepz", "4"], "unknown flag '--stepz'"),
        (["CartPole-v1", "--steps", "0"], "positive numbers"),
        ([], "missing: ENV"),
    ],
)
def test_bad_usage(capsys: Any, arguments: list[str], said: str) -> None:
    assert main(["check-env", *arguments]) == 2
    assert said in capsys.readouterr().err
