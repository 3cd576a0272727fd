"""docs/custom-algorithm.md does what it says: the algorithms on it train, resume, are evaluated and loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.cli import main
from tests.house.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "custom-algorithm.md"


def test_the_losses_of_the_page_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    modest, calm, _ = blocks(PAGE, "python")
    command = commands(PAGE)[0]
    assert command[3] == "./modest_ppo.py:ModestPPO"
    (tmp_path / "modest_ppo.py").write_text(modest)
    (tmp_path / "calm_ppo.py").write_text(calm)
    short = ["--num-rollout-workers", "0", "--stop.env-steps", "1000", "--evaluation.episodes", "1"]
    try:
        assert main([*command[1:], *short, "--out", "modest"]) == 0
        note = "the learner computes with torch: ModestPPO.loss is a loss of your own"
        assert note in capsys.readouterr().err
        calm_run = ["train", "--algo", "./calm_ppo.py:CalmPPO", "--env", "CartPole-v1", "--calm-coef", "0.01"]
        assert main([*calm_run, *short, "--out", "calm"]) == 0
        assert (
            "CalmPPO: the plain defaults apply; rlplat's ppo has configs/ppo/CartPole"
            in capsys.readouterr().err
        )
        assert main(["evaluate", "calm", "--episodes", "1"]) == 0
    finally:
        for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
            del sys.modules[name]


@pytest.mark.slow
def test_the_off_policy_algorithms_of_the_page_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    *_, new, train, conservative = commands(PAGE)
    assert main(new[1:]) == 0
    (tmp_path / "conservative_dqn.py").write_text(blocks(PAGE, "python")[-1])
    common = ["--num-rollout-workers", "0", "--seed", "1", "--stop.env-steps", "15000"]
    try:
        for command, run in ((train, "own"), (conservative, "conservative")):
            assert main([*command[1:], *common, "--out", run]) == 0
            agent = rlplat.load(run)
            returns = [episode.episode_return for episode in agent.evaluate(10)]
            assert np.mean(returns) > 100, "9.4 to begin with"
        assert main(["train", "--resume", "own", "--stop.env-steps", "15500"]) == 0
        assert main(["evaluate", "own", "--episodes", "2", "--checkpoint", "best"]) == 0
        assert "2 episodes" in capsys.readouterr().out
    finally:
        for name in [name for name in sys.modules if name.startswith("rlplat_file_")]:
            del sys.modules[name]
