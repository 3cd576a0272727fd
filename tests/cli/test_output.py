"""`--json`: one JSON value on stdout, whatever the code that is run prints; hints are spelled as the command was."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplat.cli import COMMANDS, main
from rlplat.cli.output import only_json, print_json
from rlplat.given.spelling import CALLED_AS, spelled

TALKS = """
import ctypes, os
import gymnasium as gym, numpy as np
print("imported")
class Talks(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        print("python")
        os.write(1, b"descriptor\\n")
        ctypes.CDLL(None).printf(b"library\\n")
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 10, False, {}
"""


def test_json_is_all_that_stdout_gets(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", "./talks.py:Talks", "--steps", "30", "--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["is_sound"]
    assert all(word in printed.err for word in ("imported", "python", "descriptor", "library"))
    print("stdout is back")
    ctypes.CDLL(None).printf(b"of C too\n")
    ctypes.CDLL(None).fflush(None)
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "of C too", "stdout is back"]


def test_what_is_no_number_in_json_is_null(capsys: Any) -> None:
    with only_json():
        print("noise")
        print_json({"nan": float("nan"), "list": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"nan": None, "list": [None, 1.5]}


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ("rlplat", "rlplat"),
        ("./scripts/rlplat", "./scripts/rlplat"),
        ("my env/bin/rlplat", "'my env/bin/rlplat'"),
        ("/somewhere/rlplat/cli/__main__.py", "rlplat"),
        ("train.py", "rlplat"),
    ],
)
def test_a_hint_is_spelled_as_the_command_was(monkeypatch: Any, called: str, expected: str) -> None:
    monkeypatch.delenv(CALLED_AS, raising=False)
    monkeypatch.setattr(sys, "argv", [called])
    assert (
        spelled("rlplat: resume it: rlplat train --resume a (`rlplat runs`); rlplat has it in /x/rlplat train")
        == f"rlplat: resume it: {expected} train --resume a (`{expected} runs`); rlplat has it in /x/rlplat train"
    )


def test_a_script_around_the_command_says_its_name(monkeypatch: Any) -> None:
    monkeypatch.setenv(CALLED_AS, "./scripts/rlplat")
    assert spelled("rlplat tune show runs/a") == "./scripts/rlplat tune show runs/a"
    wrapper = Path(__file__).resolve().parents[2] / "scripts" / "rlplat"
    assert f'{CALLED_AS}="$0"' in wrapper.read_text()


def test_every_command_is_a_hint(monkeypatch: Any) -> None:
    monkeypatch.setenv(CALLED_AS, f".{os.sep}rlplat")
    monkeypatch.setattr("shutil.which", lambda name: None)
    words = [command for command in COMMANDS if command != "join"]
    assert [word for word in words if spelled(f"rlplat {word}") == f"rlplat {word}"] == []


@pytest.mark.process
def test_a_command_whose_streams_are_closed_works(tmp_path: Path) -> None:
    """As of a service: its cluster's processes have them open, and files do not take their numbers."""
    (tmp_path / "tuned.py").write_text("def f(config):\n    return {'a': config['x']}\n")
    (tmp_path / "e.yaml").write_text("trainable: ./tuned.py:f\nmetric: a\nconfig: {x: {grid: [1, 2]}}\n")
    command = f"exec {sys.executable} -m rlplat.cli tune e.yaml --out out <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False).returncode == 0
    assert "x: 2" in (tmp_path / "out" / "best.yaml").read_text()
