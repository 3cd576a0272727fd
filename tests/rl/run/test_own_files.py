"""A run knows its own files: found from any folder, in a project that was moved, and told where they have changed."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.cli import main
from rlplat.config import parse_yaml

ENV = """
import gymnasium as gym, numpy as np
class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), REWARD, self.t == 4, False, {}
class Twice(gym.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest
"""
SMALL: dict[str, Any] = {
    "num_rollout_workers": 0, "num_envs_per_worker": 2, "rollout_length": 16, "minibatch_size": 16,
    "stop": {"env_steps": 32}, "evaluation": {"episodes": 0},
}  # fmt: skip


def make_project(folder: Path, reward: float) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "my_env.py").write_text(ENV.replace("REWARD", str(reward)))
    (folder / "pkg" / "base.py").write_text(f"REWARD = {reward}\n")
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "envs.py").write_text(f"from .base import REWARD\n{ENV}")
    (folder / "neighbour.py").write_text(f"REWARD = {reward}\n")
    (folder / "beside.py").write_text(f"from neighbour import REWARD\n{ENV}")
    (folder / "my_ppo.py").write_text("from rlplat.algorithms.ppo import PPO as Shipped\nclass PPO(Shipped): ...\n")
    return folder


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("pkg", "neighbour"):
            del sys.modules[name]


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    return make_project(tmp_path / "ours", 1.0), make_project(tmp_path / "theirs", -7.0)


def returns(run: Path) -> list[float]:
    return [episode.episode_return for episode in rlplat.load(run).evaluate(1)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"env": "./my_env.py:MyEnv"}, 4.0),
        ({"env": "pkg.envs:MyEnv"}, 4.0),
        ({"env": "./pkg/envs.py:MyEnv"}, 4.0),
        ({"env": "./beside.py:MyEnv"}, 4.0),
        ({"env": "./my_env.py:MyEnv", "env_kwargs": {"wrappers": ["./my_env.py:Twice"]}}, 8.0),
    ],
)
def test_a_run_is_loaded_and_resumed_where_another_file_of_that_name_lies(
    projects: tuple[Path, Path], monkeypatch: Any, settings: dict[str, Any], expected: float, caplog: Any
) -> None:
    ours, theirs = projects
    monkeypatch.chdir(ours)
    rlplat.train("./my_ppo.py:PPO", out="runs/a", **settings, **SMALL)
    monkeypatch.chdir(theirs)
    assert returns(ours / "runs/a") == [expected]
    resumed = rlplat.train(resume="../ours/runs/a", stop={"env_steps": 64})
    assert resumed.result is not None and resumed.result.episode_return_mean == expected
    assert caplog.records == []


def test_a_project_that_was_moved_still_works(projects: tuple[Path, Path], monkeypatch: Any, caplog: Any) -> None:
    ours, theirs = projects
    monkeypatch.chdir(ours)
    rlplat.train("./my_ppo.py:PPO", env="./my_env.py:MyEnv", out="runs/a", **SMALL)
    moved = ours.rename(ours.with_name("moved"))
    monkeypatch.chdir(theirs)
    assert returns(moved / "runs/a") == [4.0]
    rlplat.train(resume=moved / "runs/a", env=f"{moved}/my_env.py:MyEnv", stop={"env_steps": 64})
    assert caplog.records == []
    written = parse_yaml((moved / "runs/a/config.yaml").read_text(), "").values
    assert written["algo"] == f"{moved}/my_ppo.py:PPO" and written["env"] == f"{moved}/my_env.py:MyEnv"
    assert written["code"][f"{moved}/my_env.py"]["from_run"] == "../../my_env.py"


def test_what_has_changed_or_lies_elsewhere_is_announced(
    projects: tuple[Path, Path], monkeypatch: Any, caplog: Any
) -> None:
    ours, theirs = projects
    monkeypatch.chdir(ours)
    rlplat.train("ppo", env="./my_env.py:MyEnv", out="runs/a", **SMALL)
    shutil.copytree(ours / "runs", theirs / "runs")  # beside another file of that name
    assert returns(theirs / "runs/a") == [4.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"warning: the run's file {ours}/my_env.py is used; {theirs}/my_env.py is another one"
    ]
    caplog.clear()
    (ours / "my_env.py").write_text(ENV.replace("REWARD", "2.0"))
    assert returns(ours / "runs/a") == [8.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"warning: {ours}/my_env.py has changed since the run began"
    ]


def test_a_module_that_the_program_has_already_is_announced(
    projects: tuple[Path, Path], monkeypatch: Any, caplog: Any
) -> None:
    ours, theirs = projects
    monkeypatch.chdir(ours)
    rlplat.train("ppo", env="pkg.envs:MyEnv", out="runs/a", **SMALL)
    sys.path.remove(str(ours))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(theirs)
    caplog.set_level(logging.WARNING)
    assert returns(ours / "runs/a") == [4.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"warning: pkg.envs is {ours}/pkg/envs.py of the run, not {theirs}/pkg/envs.py"
    ]


def test_a_run_of_before_says_where_it_looks(projects: tuple[Path, Path], monkeypatch: Any, caplog: Any) -> None:
    ours, theirs = projects
    monkeypatch.chdir(ours)
    rlplat.train("ppo", env="./my_env.py:MyEnv", out="runs/a", **SMALL)
    config = ours / "runs/a/config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith(("code:", "  /", "    "))]
    config.write_text("\n".join(lines).replace(f"{ours}/my_env.py", "./my_env.py"))
    monkeypatch.chdir(theirs.parent)
    assert returns(ours / "runs/a") == [4.0]
    assert [record.getMessage() for record in caplog.records] == [
        f"warning: the run does not say where ./my_env.py lies: {ours}/my_env.py is used"
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env", "./none.py:MyEnv"], "there is no file none.py"),
        (["--env", "./my_env.py:MyEnw"], "has no 'MyEnw'; did you mean 'MyEnv'"),
        (["--env", "pkg.none:MyEnv"], "there is no module 'pkg.none'"),
        (["--env-kwargs.wrappers", "[./none.py:W]"], "env_kwargs.wrappers: there is no file none.py"),
        (["--policy", "./my_env.py:Net"], "policy: my_env.py has no 'Net'"),
        (["--policy.encoder", "./none.py:Net"], "policy: there is no file none.py"),
        (
            ["--set", "multi_agent={policies: {a: {policy: {custom: ./none.py:N}}}}"],
            "multi_agent: there is no file",
        ),
        (["--callback", "./none.py:C"], "callbacks: there is no file none.py"),
        (["--track", "./none.py:T"], "there is no file none.py"),
        (["--algo", "./none.py:A"], "there is no file none.py"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(
    projects: tuple[Path, Path], monkeypatch: Any, capsys: Any, flags: list[str], said: str
) -> None:
    monkeypatch.chdir(projects[0])
    before = sorted(Path().iterdir())
    assert main(["train", "--algo", "ppo", "--env", "./my_env.py:MyEnv", "--num-rollout-workers", "0", *flags]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path for path in Path().iterdir() if path.name != "__pycache__") == before


def test_a_home_folder_is_a_tilde_from_python_too(tmp_path: Path, monkeypatch: Any) -> None:
    make_project(tmp_path / "home", 1.0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = rlplat.train("ppo", env="~/my_env.py:MyEnv", out="~/runs/a", **SMALL)
    assert run.directory == tmp_path / "home/runs/a"
    assert returns(Path("~/runs/a")) == [4.0]
    rlplat.train("ppo", env="~/my_env.py:MyEnv", init_from="~/runs/a", out="~/b", **SMALL)
    assert main(["evaluate", "~/b", "--episodes", "1"]) == main(["runs", "~/runs"]) == 0
    assert not list(Path().iterdir())
