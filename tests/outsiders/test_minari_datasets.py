"""Minari reads what `rlplat record` writes: the same episodes, in the environment's own spaces, and back again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlplat.cli import main
from rlplat.rl.offline.dataset import read_episodes, read_manifest

minari = pytest.importorskip("minari")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning:minari")]

HERE = "tests.outsiders.test_minari_datasets:Drawn"
BOX = spaces.Box(-1.0, 1.0, (2,), np.float64)
SPACES: dict[str, tuple[Any, Any]] = {
    "dict": (
        spaces.Dict({"b": BOX, "a": spaces.Tuple([spaces.Discrete(4, start=-1), spaces.MultiBinary((2, 2))])}),
        spaces.Dict({"arm": spaces.Box(-2.0, 2.0, (1, 2)), "gear": spaces.MultiDiscrete([2, 3], start=[5, -1])}),
    ),
    "discrete": (spaces.Discrete(5, start=2), spaces.Discrete(3, start=1)),
    "image": (spaces.Box(0, 255, (40, 32, 3), np.uint8), spaces.MultiBinary(2)),
    "tuple": (spaces.Tuple([spaces.Box(-1.0, 1.0, (), np.float32), spaces.MultiDiscrete([3, 2])]), BOX),
}  # fmt: skip


class Drawn(gym.Env):
    """Observations drawn from a space; terminated after 3 steps, cut off after 2, and so on. Keeps what it said."""

    log: list[list[Any]] = []

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.log.append([self.observation_space.sample()])
        return self.log[-1][0], {}

    def step(self, action: Any) -> Any:
        now = self.log[-1]
        now += [action, float(len(now)), self.observation_space.sample()]
        is_odd, t = len(self.log) % 2 == 1, len(now) // 3
        return now[-1], now[-2], is_odd and t == 3, not is_odd and t == 2, {}


def rows(tree: Any, index: int) -> Any:
    if isinstance(tree, dict):
        return {key: rows(part, index) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(rows(part, index) for part in tree)
    return tree[index]


@pytest.mark.parametrize("kind", SPACES)
def test_minari_reads_what_record_writes_and_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    train = ["train", "--algo", "ppo", "--env", HERE, "--env-kwargs.kind", kind, "--out", "run"]
    settings = ["num_rollout_workers=0", "rollout_length=8", "stop.env_steps=16", "evaluation.episodes=0"]
    settings += ["num_envs_per_worker=1", "evaluation.num_envs=1"]
    assert main([*train, "--set", *settings]) == 0
    Drawn.log = []
    assert main(["record", "run", "--episodes", "3", "--sampled", "--out", "ours"]) == 0
    assert main(["record", "ours", "--out", "minari:own/drawn-v0"]) == 0
    assert "minari:own/drawn-v0: 3 episodes of " in capsys.readouterr().out

    dataset = minari.load_dataset("own/drawn-v0")
    assert (dataset.observation_space, dataset.action_space) == SPACES[kind]
    episodes = list(dataset.iterate_episodes())
    assert [len(one.rewards) for one in episodes] == [3, 2, 3]
    played = [said for said in Drawn.log if len(said) > 1]  # others were only asked whether an info has a mask
    for one, said in zip(episodes, played, strict=True):
        assert one.rewards.tolist() == said[2::3]
        is_whole = len(one.rewards) == 3
        assert one.terminations.tolist()[-1] is is_whole and one.truncations.tolist()[-1] is not is_whole
        for t, obs in enumerate(said[0::3]):
            assert same(rows(one.observations, t), obs)
        for t, action in enumerate(said[1::3]):
            assert same(rows(one.actions, t), action)

    assert main(["record", "minari:own/drawn-v0", "--out", "again"]) == 0
    first, again = read_episodes("ours"), read_episodes("again")
    assert same(first.obs, again.obs)
    for column in ("actions", "rewards", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(first, column), getattr(again, column))
    assert main(["record", "ours", "--out", "minari:own/drawn-v0"]) == 2
    assert "own/drawn-v0 exists already" in capsys.readouterr().err


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.asarray(one).shape == np.asarray(other).shape and bool((np.asarray(one) == other).all())


def test_a_registered_environment_and_the_run_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Straight from a run; Minari knows the environment, and so does the copy that is made of it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    settings = ["num_rollout_workers=0", "rollout_length=8", "stop.env_steps=16", "evaluation.episodes=0"]
    assert (
        main(
            [
                "train",
                "--algo",
                "ppo",
                "--env",
                "CartPole-v1",
                "--no-config",
                "--out",
                "run",
                "--set",
                *settings,
            ]
        )
        == 0
    )
    assert main(["record", "run", "--episodes", "2", "--out", "minari:own/pole-v0"]) == 0
    dataset = minari.load_dataset("own/pole-v0")
    assert dataset.recover_environment().spec.id == "CartPole-v1" and dataset.total_episodes == 2
    assert main(["record", "minari:own/pole-v0", "--out", "ours"]) == 0
    assert read_manifest("ours").env == "CartPole-v1"
