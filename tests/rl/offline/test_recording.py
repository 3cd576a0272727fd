"""`rlplat record`: the data set holds what the environment was given and gave, whatever its spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from rlplat.errors import ConfigError
from rlplat.rl.offline.dataset import read_episodes, read_manifest
from rlplat.rl.offline.recording import RandomActions, record
from rlplat.rl.spaces import ActionSpec
from tests.rl.run.test_trained_agent import LOG, same, trained

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["tree", "info"])
def test_rows_are_what_the_environment_saw(kind: str, tmp_path: Path) -> None:
    agent = rlplat.load(trained("ppo", kind, tmp_path / "run"))
    LOG.clear()
    manifest = record(agent, 3, tmp_path / "data", greedy=False, random_share=0.5)
    steps, episodes = LOG[:], read_episodes(tmp_path / "data")
    assert manifest.episodes == 3 and manifest.env_steps == len(steps) == episodes.num_steps
    assert str(manifest.spec) == str(agent.spaces.spec)
    firsts = np.flatnonzero([begins for *_, begins in steps]).tolist()
    assert firsts == (np.cumsum(episodes.lengths) - episodes.lengths).tolist()
    rows = episodes.obs_rows()
    for i, (obs, mask, action, _) in enumerate(steps):
        seen, _ = agent.spaces.read(obs, mask)
        own = episodes.obs
        recorded = {k: leaf[rows[i]][None] for k, leaf in own.items()} if isinstance(own, dict) else own[rows[i]][None]
        assert same(recorded, seen)
        assert same(agent.spaces.actions(episodes.actions[i : i + 1], False), action)


def test_several_environments_play_whole_episodes(tmp_path: Path) -> None:
    """The agent of skill 5/64 takes that as its action, which is the reward of each of five steps."""
    settings: dict[str, Any] = {"evaluation": {"num_envs": 3}, "stop": {"env_steps": 50}, "best_at": 0}
    acting = "tests.cli.acting_algorithm:ActingAlgorithm"
    run = rlplat.train(acting, env="tests.rl.skilled_env:SkilledEnv", out=tmp_path / "run", **settings).directory
    record(rlplat.load(run), 5, tmp_path / "all")
    episodes = read_episodes(tmp_path / "all")
    assert set(episodes.actions[:, 0].tolist()) == {5 / 64}
    assert episodes.lengths.tolist() == [5] * 5 and episodes.returns().tolist() == [25 / 64] * 5


def test_random_actions_are_legal_and_all_of_them_come() -> None:
    action = ActionSpec(
        "composite",
        parts=(
            ("a", ActionSpec("discrete", n=3)),
            ("b", ActionSpec("box", shape=(1,), low=(-2.0,), high=(4.0,))),
            ("c", ActionSpec("multi_discrete", shape=(2,), nvec=(2, 3))),
            ("d", ActionSpec("multi_binary", shape=(2,))),
        ),
    )
    mask = np.tile([True, False, True, True, True, False, True, True], (500, 1))
    random = RandomActions(action, np.random.SeedSequence(1), "Toy")
    drawn = random.instead_of(np.full((500, 6), 9.0, np.float32), {"action_mask": mask}, 1.0)
    assert drawn.dtype == np.float32
    seen = [set(drawn[:, i].tolist()) for i in (0, 2, 3, 4, 5)]
    assert seen == [{0, 2}, {0, 1}, {1, 2}, {0, 1}, {0, 1}]
    assert -2 <= drawn[:, 1].min() < -1.9 and 3.9 < drawn[:, 1].max() <= 4
    half = random.instead_of(np.full((500, 6), 9.0, np.float32), {}, 0.5)
    assert 200 < (half[:, 0] == 9).sum() < 300 and ((half == 9).all(1) == (half[:, 0] == 9)).all()
    with pytest.raises(ConfigError, match=r"between their bounds, but Toy has actions .*: use --sampled"):
        RandomActions(ActionSpec("box", shape=(1,), low=(-np.inf,), high=(1.0,)), np.random.SeedSequence(1), "Toy")


def test_the_command_says_what_it_wrote_and_refuses_to_overwrite(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained("ppo", "discrete", tmp_path / "run", evaluation={"episodes": 0, "max_episode_steps": 4, "num_envs": 2})
    capsys.readouterr()
    assert main(["record", "run", "--episodes", "5", "--out", "data", "--sampled", "--seed", "5"]) == 0
    said = capsys.readouterr()
    assert "data: 2 episodes of" in said.out and "8 env steps, return 4 ± 0" in said.out
    assert "warning: 2 of 5 episodes" in said.err, "of six steps each, cut off after four"
    manifest = read_manifest("data")
    assert (manifest.terminated, manifest.source["actions"], manifest.source["seed"]) == (0, "sampled", 5)
    for arguments, answer in (
        (["run", "--out", "data"], "data exists already"),
        (["run", "--out", "new", "--random", "1.5"], "--random is a share from 0 to 1"),
        (["run", "--out", "new", "--episodes", "0"], "--episodes is a positive number"),
        (["nowhere", "--out", "new"], "no run in nowhere"),
    ):
        assert main(["record", *arguments]) == 2
        assert answer in capsys.readouterr().err
