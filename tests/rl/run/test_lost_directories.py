"""Environments that change or remove the working directory; run directories that are removed, moved or replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.checkpoints import latest_valid
from rlplat.rl.run.run_directory import RunDirectoryLost

ENV = """
import os, shutil
import gymnasium as gym, numpy as np
class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    num_steps = 0
    def __init__(self, do, folder):
        self.do, self.folder = do, folder
        if do == "change at once":
            os.chdir(folder)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.do == "change":
            os.chdir(self.folder)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        MyEnv.num_steps += 1
        if MyEnv.num_steps == 120:  # after the first 50 of the pre-flight and a round
            if self.do == "remove":
                shutil.rmtree(self.folder)
            if self.do == "move":
                os.rename(self.folder, self.folder + "-elsewhere")
            if self.do == "replace":
                shutil.rmtree(self.folder)
                os.makedirs(self.folder)
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 4, False, {}
"""


def train(do: str, folder: Path, out: str | None = "runs/a") -> Any:
    return rlplat.train(
        "ppo", env="./my_env.py:MyEnv", env_kwargs={"do": do, "folder": str(folder)}, out=out, num_rollout_workers=0,
        num_envs_per_worker=2, rollout_length=16, minibatch_size=16, stop={"env_steps": 320},
        checkpoint_period=32, evaluation={"episodes": 1},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "my_env.py").write_text(ENV)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.parametrize("out", ["runs/a", None])
@pytest.mark.parametrize("do", ["change at once", "change"])
def test_an_environment_that_changes_the_working_directory_moves_nothing(
    project: Path, do: str, out: str | None
) -> None:
    run = train(do, project.parent / "elsewhere", out)
    assert run.directory.parent == project / "runs"
    assert not list((project.parent / "elsewhere").iterdir())
    checkpoint, _ = latest_valid(run.directory)
    assert checkpoint is not None and checkpoint.info.env_steps == 320


def test_one_that_removes_the_working_directory_ends_nothing(project: Path, monkeypatch: Any) -> None:
    here = project / "here"
    here.mkdir()
    (here / "my_env.py").write_text(ENV)
    monkeypatch.chdir(here)
    try:
        assert train("remove", here, str(project / "a")).result.env_steps == 320
    finally:
        os.chdir(project)


@pytest.mark.parametrize(("do", "saved"), [("remove", "a-saved"), ("replace", "a-saved"), ("move", "a-elsewhere")])
def test_a_run_whose_directory_is_lost_fails_and_saves_what_was_learnt(project: Path, do: str, saved: str) -> None:
    with pytest.raises(RunDirectoryLost) as caught:
        train(do, project / "runs" / "a")
    assert "runs/a was " in str(caught.value)
    assert f"--resume runs/{saved}" in caught.value.__dict__["advice"][0]
    place = project / "runs" / saved
    checkpoint, _ = latest_valid(place)
    assert checkpoint is not None and checkpoint.info.env_steps >= 64
    assert rlplat.load(place).evaluate(1)[0].length == 4
