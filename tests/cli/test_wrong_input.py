"""What the commands answer to wrong input: command line -> message, and an exit code that says who can mend it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlplat
from rlplat.cli import main
from rlplat.errors import ConfigError
from rlplat.rl.run import registry

CARTPOLE = ("train", "--algo", "ppo", "--env", "CartPole-v1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an environment in a folder whose name has a blank, a folder of something else, and an experiment."""
    monkeypatch.chdir(tmp_path)
    for folder in ("my envs", "foreign", "runs/asha/trials/00000", "no trials"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "my envs" / "e.py").write_text(ENVS)
    (tmp_path / "no trials/experiment.yaml").write_text("trainable: ppo\n")
    (tmp_path / "my envs/run.yaml").write_text("algo: ppo\nenv: CartPole-v1\n")
    for file in (
        "foreign/a.txt",
        "empty.py",
        "runs/asha/experiment.yaml",
        "runs/asha/trials/00000/config.yaml",
    ):
        (tmp_path / file).write_text("")
    return tmp_path


ENVS = """
import gymnasium as gym
import numpy as np

class Raises(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=1):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        raise ValueError("three")

class Other(Raises):
    pass
"""


def said(capsys: Any, *arguments: str) -> str:
    """The one message of a command that refuses."""
    assert main(list(arguments)) == 2
    out = capsys.readouterr()
    assert "Traceback" not in out.err and out.err.count("rlplat: ") == 1
    return out.err


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*CARTPOLE, "--learning-rate", "--out", "x"), "--learning-rate needs a value: a number from 0 to 10"),
        ((*CARTPOLE, "--discount"), "--discount needs a value: a number from 0 to 1\n"),
        ((*CARTPOLE, "--num-epochs", "true"), "bad value for 'num_epochs' (from --num-epochs): true (must be a whole"),
        ((*CARTPOLE, "--learning-rate", "-1"), "(from --learning-rate): -1 (must be a number from 0 to 10"),
        ((*CARTPOLE, "--set", "learning_rate=-1"), "(from --set learning_rate): -1 (must be a number from 0 to 10"),
        ((*CARTPOLE, "--epsilon", "0.1"), "'epsilon' (from --epsilon); it is a setting of apex, dqn, pqn, r2d2\n"),
        (("tune", *CARTPOLE[1:], "--set", "double={grid: [true]}"), "'double' (from --set double); it is a setting of"),
        ((*CARTPOLE, "--policy", "mine"), "bad value for 'policy.custom' (from --policy): 'mine' (must be the name of"),
        ((*CARTPOLE, "learning_rate=1e-3"), "'learning_rate=1e-3'; did you mean --set learning_rate=1e-3?"),
        (("train", "ppo/CartPol"), "no config file 'ppo/CartPol'; did you mean 'ppo/CartPole-v1'? (rlplat configs"),
        (("train", "configs/ppo/CartPol.yaml"), "did you mean 'ppo/CartPole-v1'?"),
        (("tune", "tune/ppo-cartpol"), "did you mean 'tune/ppo-cartpole'?"),
        (("train", "--deterministic", "ppo/CartPole-v1", "--discount", "3"), "(from --discount): 3 (must be"),
        (("train", "--deterministic", "configs/ppo/Pong.yaml", "--discount", "3"), "(from --discount): 3 (must be"),
        (("train", "--determinstic", "ppo/CartPole-v1"), "did you mean 'deterministic'?"),
        ((*CARTPOLE, "--out", "foreign"), "foreign already exists and holds something else than a run; choose another"),
        ((*CARTPOLE, "--out", "foreign/a.txt"), "foreign/a.txt is a file; choose another place: --out DIRECTORY"),
        (("train", "--resume", "foreign"), "no run in foreign: it has no config.yaml; `rlplat runs` lists the runs"),
        (("evaluate", "runs/asha"), "runs/asha is an experiment, whose trials are runs: runs/asha/trials/00000, ..."),
        (("evaluate", "no trials"), "none of its trials is a run; rlplat tune show 'no trials'\n"),
        (("train", "no trials/experiment.yaml"), "which is many runs: rlplat tune 'no trials/experiment.yaml'\n"),
        (("tune", "my envs/run.yaml"), "not an experiment: rlplat train 'my envs/run.yaml'\n"),
        (("play", "runs/asha"), "runs/asha is an experiment, whose trials are runs: runs/asha/trials/00000, ..."),
        (("train", "--resume", "runs/asha"), "runs/asha is an experiment, whose trials are runs"),
        (("runs", "NOWHERE"), "there is no directory NOWHERE"),
        (("timeline", "--out", "/nonexistent/x"), "--out /nonexistent/x: there is no directory /nonexistent"),
        (("play", "r", "--out", "/nonexistent/x.mp4"), "--out /nonexistent/x.mp4: there is no directory /nonexistent"),
        (("train", "--algo", "ppo", "--env", "./my envs/e.py"), "is a file: write the class as well; its environments: "
         "./my envs/e.py:Raises, ./my envs/e.py:Other"),
        (("train", "--algo", "ppo", "--env", "./empty.py"), "it defines no gymnasium.Env; a function: ./empty.py:make"),
        (("check-env", "CartPole-v1", "--step-timeout-s", "nan"), "--env-reset-timeout-s are positive numbers"),
        (("train", "ppo", "CartPole-v1"), "are flags: rlplat train --algo ppo --env CartPole-v1\n"),
        (("train", "ppo"), "algorithm and environment are flags: rlplat train --algo ppo --env NAME\n"),
        (("train", "a.yaml", "b.yaml"), "unexpected: b.yaml (rlplat train --help)\n"),
        ((*CARTPOLE, "--stop", "5000"), "(it takes settings by name: --stop.env-steps 5000)"),
        ((*CARTPOLE, "--policy", "MlpPolicy"), "omit it, the network follows the observations"),
        ((*CARTPOLE, "--use-sde"), "unknown key 'use_sde' (from --use-sde); did you mean 'policy.use_sde'?"),
        (("list", "foo"), "objects, nodes, workers, placement-groups, clusters, not 'foo' (rlplat list --help)"),
        (("logs", "lab.yaml", "-f"), "rlplat jobs lab.yaml logs ID (what one printed)"),
        (("stack", "lab.yaml"), "rlplat exec lab.yaml -- rlplat stack (this on its head)"),
        (("configs", "pp"), "no configs of 'pp'; did you mean 'ppo'? (there are a3c, "),
        (("dashboard", "--port", "80x"), "--port takes a whole number, not '80x' (rlplat dashboard --help)\n"),
        (("evaluate",), "missing: RUN (rlplat evaluate --help)\n"),
        (("export", "--out"), "--out needs a value after it (rlplat export --help)\n"),
        (("settings", "pp"), "unknown algorithm 'pp'; did you mean 'ppo'?"),
    ],
)  # fmt: skip
def test_wrong_input_is_answered(capsys: Any, arguments: tuple[str, ...], message: str) -> None:
    assert message in said(capsys, *arguments)


@pytest.mark.process
def test_what_a_file_says_when_it_ends_the_program_is_not_lost(here: Path, capsys: Any) -> None:
    (here / "leaves.py").write_text("raise SystemExit('there is no data in /data')")
    (here / "e.yaml").write_text("trainable: ./leaves.py:train\nmetric: loss\n")
    assert "rlplat: there is no data in /data" in said(capsys, "tune", "e.yaml")


def test_an_argument_of_the_environment_may_be_a_config_file(here: Path, capsys: Any) -> None:
    (here / "maze.yaml").write_text("walls: 3\n")
    error = said(capsys, *CARTPOLE, "--env-kwargs.layout", "maze.yaml")
    assert "'layout': 'maze.yaml'" in error


def test_a_file_of_ones_own_comes_before_a_shipped_config(here: Path) -> None:
    shipped = registry.find_config("ppo/cartpole-v1")
    assert shipped is not None and shipped.name == "CartPole-v1.yaml" and shipped.is_absolute()
    assert registry.find_config("configs/ppo/CartPole-v1.yaml") == shipped
    assert registry.find_config("tune/ppo-cartpole") == shipped.parents[1] / "tune" / "ppo-cartpole.yaml"
    assert registry.find_config("../configs/ppo/CartPole-v1.yaml") is None
    own = here / "configs" / "ppo" / "CartPole-v1.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("env: Pendulum-v1\n")
    assert registry.find_config("configs/ppo/CartPole-v1.yaml") == own.relative_to(here)


def test_configs_lists_what_ships(capsys: Any) -> None:
    assert main(["configs"]) == 0
    out = capsys.readouterr().out
    assert "\nppo/CartPole-v1 " in out and "\ntune/ppo-cartpole " in out and "\ndqn/Pong-rainbow " in out
    assert main(["configs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["dqn/Pong-rainbow"]["env"] == "Pong" and Path(rows["dqn/Pong-rainbow"]["path"]).is_file()
    assert all(registry.find_config(name) == Path(row["path"]) for name, row in rows.items())


@pytest.mark.parametrize("algo", ["ppo", "a3c", "dqn", "es"])
def test_settings_lists_every_setting_with_its_meaning(capsys: Any, algo: str) -> None:
    assert main(["settings", algo, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    config_class = registry.load_algorithm(algo).config_class
    assert {row["key"].partition(".")[0] for row in rows} == config_class.model_fields.keys()
    assert next(row["key"] for row in rows if row["is_required"]) == "env"
    without = {row["key"] for row in rows if not row["meaning"]}
    assert without == set()
    assert main(["settings", algo]) == 0
    assert "\nlearning_rate: " in capsys.readouterr().out


def test_settings_of_an_environment_are_those_of_its_config(capsys: Any) -> None:
    assert main(["settings", "ppo", "--env", "CartPole-v1", "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    path = registry.tuned_config("ppo", "CartPole-v1")
    assert path is not None
    written = yaml.safe_load(path.read_text())
    assert rows["discount"]["value"] == written["discount"] != rows["discount"]["default"]
    assert main(["settings", "ppo", "--env", "CartPole-v1"]) == 0
    assert f"\ndiscount: {written['discount']}   (default 0.99)\n" in capsys.readouterr().out


def test_train_takes_the_name_of_an_algorithm() -> None:
    from rlplat.algorithms.ppo import PPO

    with pytest.raises(
        ConfigError, match=r"algo is the name of an algorithm, such as 'ppo', not <class .*: write 'ppo'"
    ):
        rlplat.train(PPO, env="CartPole-v1")  # type: ignore[arg-type]


@pytest.mark.process
def test_the_hint_of_the_pre_flight_is_the_command_that_fails(here: Path, capsys: Any) -> None:
    env = ("--env", "./my envs/e.py:Raises", "--env-kwargs.size", "3")
    error = said(capsys, "train", "--algo", "ppo", *env)
    [command] = re.findall(r"all checks: rlplat (.*)\)", error)
    assert shlex.split(command)[2:] == ["--env-kwargs.size", "3"]
    assert main(shlex.split(command)) == 1  # the environment is at fault, not the command
    assert f"step() raised ValueError: three (at {here}/my envs/e.py:" in capsys.readouterr().out
    error = said(capsys, "train", "--algo", "ppo", *env[:2], "--env-kwargs.sise", "3")
    assert "got an unexpected keyword argument 'sise'\n" in error  # no line of ours, nor of gymnasium's
    assert "registration.py" not in said(capsys, *CARTPOLE, "--env-kwargs.sise", "3")


def test_ctrl_c_while_a_command_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlplat.cli.command_of", interrupted)
    assert main(["train"]) == 130
