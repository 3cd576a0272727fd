"""`env_metrics` from the environment to metrics.jsonl, by every way of sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlplat.metrics import read_records
from rlplat.rl.run.training_loop import train

SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_length": 16, "minibatch_size": 16},
    "dqn": {"learning_starts": 16, "replay_capacity": 200},
    "es": {"population_size": 4},
    "a3c": {"rollout_length": 16},
    "impala": {"rollout_length": 16},
}


def figures_of(tmp_path: Path, algo: str, env: str = "TellingEnv", **settings: Any) -> dict[str, Any]:
    out = tmp_path / "run"
    train(
        algo,
        env=f"tests.rl.info_envs:{env}",
        out=out,
        num_rollout_workers=0,
        num_envs_per_worker=2,
        stop={"env_steps": 100},
        evaluation={"episodes": 4},
        env_metrics=["success", "fuel:sum", "never"],
        policy={"hidden_sizes": [4]},
        **SMALL[algo] | settings,
    )
    log = (out / "log.txt").read_text()
    assert log.count("env_metrics names 'never', but no info of step() had a number of that name") == 1
    return read_records(out / "metrics.jsonl")[-1]


@pytest.mark.parametrize("algo", SMALL)
def test_every_way_of_sampling(tmp_path: Path, algo: str) -> None:
    figures = figures_of(tmp_path, algo)
    assert figures["env/fuel_mean"] == figures["eval/env/fuel_mean"] == 6.0
    assert figures["env/height_mean"] == figures["eval/env/height_mean"] == 3.0
    assert 0.0 <= figures["env/success_mean"] < 1.0  # an episode with a seed of its own is an even one
    assert "env/never_mean" not in figures and "eval/env/never_mean" not in figures


def test_games_of_several_agents(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "ppo", "TellingGame")
    assert figures["env/fuel_mean"] == figures["eval/env/fuel_mean"] == 6.0  # of 3 and 9
    assert (figures["agent/a/env/fuel_mean"], figures["agent/b/env/fuel_mean"]) == (3.0, 9.0)
    assert figures["env/success_mean"] == 1.0 and "agent/a/env/success_mean" not in figures
    assert figures["env/height_mean"] == 3.0
