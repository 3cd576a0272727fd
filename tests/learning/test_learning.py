"""Learning tests in CI: CartPole from its tuned config, and the checker itself on an algorithm that only counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlplat.config import load_yaml
from rlplat.rl.run.training_plan import plan_from_file
from tests.learning.run import CONFIGS, learn, main, run_configs

COUNTING = "algo: tests.cli.counting_algorithm:CountingAlgorithm\nenv: X\nstop: {env_steps: 100}\n"


def test_a_run_that_falls_short_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "Counting.yaml"
    config.write_text(COUNTING + "expect: {episode_return_mean: 10, evaluation_return_mean: 20}\n")
    assert main([str(config), "--seeds", "1", "2"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL: evaluation_return_mean is 19.5, expected at least 20") == 2 and "0 of 2 passed" in out
    config.write_text(COUNTING + "expect: {episode_return_mean: 10, evaluation_return_mean: 19.5}\n")
    assert main([str(config)]) == 0
    assert "1 of 1 passed" in capsys.readouterr().out


def test_a_config_that_expects_nothing_or_fails_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "Counting.yaml"
    config.write_text(COUNTING)
    assert main([str(config)]) == 1
    assert "the config expects nothing" in capsys.readouterr().out
    config.write_text(COUNTING + "fail_at: 3\nexpect: {episode_return_mean: 1}\n")
    assert main([str(config)]) == 1
    assert "raised ValueError: no such action" in capsys.readouterr().out


def test_every_config_says_when_to_stop_and_what_to_expect() -> None:
    configs = run_configs()
    assert configs
    for config in configs:
        values = load_yaml(config).values
        assert values.get("stop") and values.get("expect"), config
        assert plan_from_file(config, []).config.env == values["env"]


@pytest.mark.process
@pytest.mark.timeout(300)
def test_ppo_learns_cartpole(tmp_path: Path) -> None:
    outcome = learn(CONFIGS / "ppo" / "CartPole-v1.yaml", seed=1, out=tmp_path / "run")
    assert outcome.failure == ""
    assert outcome.evaluation_return_mean is not None and outcome.evaluation_return_mean >= 475
