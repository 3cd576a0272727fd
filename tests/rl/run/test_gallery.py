"""`gallery/NAME`: agents that come with rlplat are runs wherever one is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from rlplat.errors import CheckpointError, ConfigError
from rlplat.paths import GALLERY

AGENTS = sorted(folder.name for folder in GALLERY.iterdir() if folder.is_dir())
PAGE = Path(__file__).resolve().parents[3] / "docs" / "gallery.md"


@pytest.mark.process  # a process of its own looks at MuJoCo's first
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_acts_and_has_a_card_and_a_row_on_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it is
    mujoco = dict.fromkeys(("halfcheetah", "hopper", "walker2d"), "mujoco")
    package = {**mujoco, "lunarlander": "Box2D", "pong": "ale_py"}.get(name)
    if package is not None:
        pytest.importorskip(package)
    agent = rlplat.load(f"gallery/{name}", seed=5)
    assert len(agent.evaluate(1)) == 1
    card = (GALLERY / name / "README.md").read_text()
    assert f"{agent.checkpoint.info.env_steps:,} env steps" in card
    assert f"| `gallery/{name}` | " in PAGE.read_text()


def test_the_card_of_cartpole_is_true() -> None:
    assert [episode.episode_return for episode in rlplat.load("gallery/cartpole", seed=9).evaluate(3)] == [500.0] * 3


def test_a_folder_of_the_users_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GALLERY / "cartpole", tmp_path / "gallery" / "cartpole")
    assert rlplat.load("gallery/cartpole").directory == tmp_path / "gallery" / "cartpole"
    assert rlplat.load("gallery/acrobot").directory == GALLERY / "acrobot"


@pytest.mark.parametrize("name", ["gallery/cartpol", "gallery/../cartpole", "gallery/", "gallery/cartpole/none"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises((ConfigError, CheckpointError)):
        rlplat.load(name)


def test_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "gallery/cartpole", "--episodes", "2"]) == 0
    assert "return 500 ± 0" in capsys.readouterr().out
    assert main(["evaluate", "gallery/nothing"]) == 2
    assert "the agents that come with rlplat are gallery/... " in capsys.readouterr().err
    agent = rlplat.load("gallery/cartpole")
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
    pytest.importorskip("av")
    assert main(["play", "gallery/cartpole"]) == 0
    assert (tmp_path / "cartpole-videos" / "play_best.mp4").exists()  # nothing is written into the package
