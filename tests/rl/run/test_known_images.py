"""Known environments of images, or ones of their shapes, trained for a moment: what is taken for what, and a run that
evaluates, loads and resumes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces

pytest.importorskip("torch")

import rlplat
from tests.export.test_policy_export import as_exported

pytestmark = [pytest.mark.slow, pytest.mark.process]
BYTES = {"low": 0, "high": 255, "dtype": np.uint8}
SPACES: dict[str, spaces.Space[Any]] = {
    "dm_control": spaces.Dict(
        {"pixels": spaces.Box(shape=(84, 84, 3), **BYTES), "velocity": spaces.Box(-9, 9, (3,))}  # type: ignore[arg-type]
    ),
    "depth": spaces.Box(0.0, np.tile([1.0, 1.0, 1.0, 9.0], (20, 24, 1)).astype(np.float32)),  # type: ignore[arg-type]
    "board": spaces.Tuple([spaces.Box(-1, 1, (9, 9), np.int8), spaces.Box(0, 1, (9, 9), np.int8)]),
    "small stack": spaces.Box(shape=(2, 12, 10, 3), **BYTES),  # type: ignore[arg-type]
}


class Noise(Env[Any, Any]):
    """Observations of the space of that name."""

    def __init__(self, name: str) -> None:
        self.observation_space = SPACES[name]
        self.action_space = spaces.Box(-1, 1, (2,)) if name == "dm_control" else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 5, {}


def run(algo: str, env: str, out: Path, **settings: Any) -> None:
    small = {
        "dqn": {"learning_starts": 8, "replay_capacity": 200},
        "ppo": {"rollout_length": 8, "num_epochs": 1},
    }
    rlplat.train(
        algo,
        env=env,
        out=out,
        num_rollout_workers=0,
        num_envs_per_worker=2,
        stop={"env_steps": 32},
        evaluation={"episodes": 1, "num_envs": 1, "max_episode_steps": 6},
        policy={"hidden_sizes": [8]},
        **small[algo],
        **settings,
    )


@pytest.mark.parametrize(
    "algo, name, lines",
    [
        (
            "ppo",
            "dm_control",
            ["obs 'pixels': image 84x84x3 -> nature_cnn", "obs 'velocity': vector 3 -> mlp"],
        ),
        ("ppo", "depth", ["obs: image 20x24x4 (0..9 -> 0..1 by channel) -> grid_cnn"]),
        (
            "ppo",
            "board",
            ["obs '0': image 9x9x1 (-1..1 -> 0..1) -> grid_cnn", "image 9x9x1 (0..1) -> grid_cnn"],
        ),
        ("dqn", "small stack", ["obs: image 12x10x6 (2 stacked RGB) -> grid_cnn"]),
    ],
)
def test_shapes(algo: str, name: str, lines: list[str], tmp_path: Path, capsys: Any) -> None:
    run(algo, f"{__name__}:Noise", tmp_path / "run", env_kwargs={"name": name})
    said = capsys.readouterr().err
    assert all(f"{line}\n" in said for line in lines), said
    agent = rlplat.load(tmp_path / "run")
    obs = SPACES[name].sample()
    assert agent.act(obs) in agent.spaces.action_space
    if name in ("depth", "board"):  # scaled within the network: what is exported does the same as the run
        as_exported(agent)


def test_car_racing(tmp_path: Path, capsys: Any) -> None:
    """Settings of ours: in training, evaluation, `load` and a resumed run."""
    pytest.importorskip("Box2D")
    image = {"size": 40, "grey": True, "stack": 2}
    run("ppo", "CarRacing-v3", tmp_path / "settings", env_kwargs={"image": image})
    assert "obs: image 40x40x2 (channels first) -> nature_cnn\n" in capsys.readouterr().err
    rlplat.train(resume=tmp_path / "settings", stop={"env_steps": 48})
    agent = rlplat.load(tmp_path / "settings")
    assert agent.spaces.observation_space.shape == (2, 40, 40, 1)
    assert agent.act(np.zeros((2, 40, 40, 1), np.uint8)) in agent.spaces.action_space


def test_minigrid(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("minigrid")
    keys = {"gymnasium.wrappers:FilterObservation": {"filter_keys": ["image", "direction"]}}
    run("ppo", "minigrid:MiniGrid-Empty-5x5-v0", tmp_path / "run", env_kwargs={"wrappers": [keys]})
    assert "obs 'image': image 7x7x3 (0..10 -> 0..1) -> grid_cnn\n" in capsys.readouterr().err
