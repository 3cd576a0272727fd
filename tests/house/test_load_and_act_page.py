"""docs/load-and-act.md does what it says: its blocks are one program, and its command trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import rlplat
from rlplat.cli import main
from tests.house.test_docs import ROOT, blocks, commands

PAGE = ROOT / "docs" / "load-and-act.md"
SMALL: dict[str, Any] = {
    "num_rollout_workers": 0,
    "rollout_length": 32,
    "num_envs_per_worker": 2,
    "evaluation": {"episodes": 1, "period": 64},
    "stop": {"env_steps": 64, "episode_return_mean": None},
}


def test_the_page_is_a_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rlplat.train("ppo", env="CartPole-v1", out="runs/demo", **SMALL)
    rlplat.train("ppo", env="CartPole-v1", out="runs/lstm", policy={"core": "lstm"}, **SMALL)
    rlplat.train("ppo", env="rlplat.rl.envs.diagnostic_multi_agent:Nim", out="runs/nim", **SMALL)
    capsys.readouterr()
    program = "\n".join(blocks(PAGE, "python"))
    exec(compile(program, PAGE.name, "exec"), {})
    total, shape, action, env_steps = capsys.readouterr().out.splitlines()
    assert float(total) > 0 and (shape, action) == ("(16,)", "1") and int(env_steps) > 0
    (command,) = commands(PAGE)
    small = ["--num-rollout-workers", "0", "--stop.env-steps", "64", "--rollout-length", "32"]
    assert main([*command[1:], *small, "--evaluation.episodes", "1"]) == 0
    assert json.dumps("runs/demo/checkpoints/best") in Path("runs/tuned/config.yaml").read_text()
