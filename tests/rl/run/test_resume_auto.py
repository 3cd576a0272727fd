"""`resume="auto"`: the same call begins a run, continues it, and finds it finished."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlplat.errors import CheckpointError, ConfigError
from rlplat.rl.run.training_loop import TrainedRun, train

SMALL: dict[str, Any] = {
    "env": "CartPole-v1", "num_rollout_workers": 0, "num_envs_per_worker": 1, "rollout_length": 16,
    "minibatch_size": 8, "evaluation": {"episodes": 0}, "learning_rate": 1e-3,
}  # fmt: skip


def call(out: Path, env_steps: int, **more: Any) -> TrainedRun:
    algo = more.pop("algo", "ppo")
    return train(algo, out=out, resume="auto", stop={"env_steps": env_steps}, **{**SMALL, **more})


def test_the_same_call_begins_and_continues_with_all_its_settings(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = call(out, 32)
    assert first.result.env_steps >= 32
    assert call(out, 32).num_iterations == 0
    longer = call(out, 64, learning_rate=2e-3)
    assert longer.result.env_steps >= 64 and longer.result.iteration == first.num_iterations + longer.num_iterations
    assert longer.config.learning_rate == 2e-3


def test_a_config_file_goes_with_it_and_its_changes_count(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for env_steps in (32, 64):
        file.write_text(yaml.safe_dump({"algo": "ppo", **SMALL, "stop": {"env_steps": env_steps}}))
        run = train(config=file, out=tmp_path / "run", resume="auto")
        assert run.result.env_steps >= env_steps > run.result.env_steps - 32


def test_what_the_weights_depend_on_cannot_change(tmp_path: Path) -> None:
    call(tmp_path / "run", 16)
    with pytest.raises(ConfigError, match="'policy' cannot change"):
        call(tmp_path / "run", 32, policy={"hidden_sizes": [3]})
    with pytest.raises(ConfigError, match="is of ppo, not of es"):
        train("es", "CartPole-v1", out=tmp_path / "run", resume="auto")


def test_the_run_of_another_seed_is_no_run_of_this_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where the tasks of a SLURM array share one --out: the second found everything done, and trained nothing."""
    call(tmp_path / "run", 16, seed=1)
    with pytest.raises(ConfigError, match=r"began with seed 1, not 2: give each seed an --out of its own"):
        call(tmp_path / "run", 16, seed=2)
    assert call(tmp_path / "run", 16, seed=1).num_iterations == 0
    assert call(tmp_path / "run", 32, seed=2).num_iterations > 0
    assert "warning: the run in" in capsys.readouterr().err
    assert train(resume=tmp_path / "run", seed=3).num_iterations == 0, "said by hand, it is meant"


def test_without_a_place_or_in_one_that_holds_something_else_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume auto needs --out"):
        train("ppo", "CartPole-v1", resume="auto")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else than a run"):
        call(tmp_path, 16)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_without_a_checkpoint_is_put_aside_and_begins_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for times in (1, 2):
        call(out, 16)
        shutil.rmtree(out / "checkpoints")
        assert call(out, 16).num_iterations > 0
        assert (tmp_path / f"run-ended-{times}" / "metrics.jsonl").exists()


def test_damaged_checkpoints_are_named_and_kept(tmp_path: Path) -> None:
    call(tmp_path / "run", 16)
    for file in (tmp_path / "run" / "checkpoints").glob("step_*/*"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="to resume from"):
        call(tmp_path / "run", 32)
    assert list((tmp_path / "run" / "checkpoints").glob("step_*/*"))
