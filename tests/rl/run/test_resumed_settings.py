"""What may change when a run is resumed, and what is refused; directories of runs begun at the same time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.config import layer_from_arguments
from rlplat.errors import ConfigError
from rlplat.rl.run.training_loop import train
from rlplat.rl.run.training_plan import default_directory, plan_from_file, plan_training

SMALL = {"num_rollout_workers": 0, "num_envs_per_worker": 1, "evaluation": {"episodes": 0}, "seed": 1}
DQN = {
    "env": "CartPole-v1",
    "learning_starts": 20,
    "rollout_length": 16,
    "env_steps_per_update": 8,
    "batch_size": 4,
    "n_step": 1,
    "replay_capacity": 200,
    "stop": {"env_steps": 64},
    **SMALL,
}
LSTM = {"policy": {"core": "lstm", "core_size": 8}, "burn_in": 2, "unroll_length": 4}


@pytest.mark.parametrize(
    ("algo", "setting", "is_taken"),
    [
        ("a3c", "num_parameter_servers: 3", True),
        ("dqn", "frame_stacks: true", True),
        ("dqn", "frame_stacks: false", False),
    ],
)
def test_settings_that_went_are_passed_over_in_a_runs_own_config(
    tmp_path: Path, algo: str, setting: str, is_taken: bool
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"algo: {algo}\nenv: CartPole-v1\n{setting}\n")
    with pytest.raises(ConfigError, match="unknown key"):
        plan_from_file(config, [])
    (tmp_path / "checkpoints").mkdir()
    if is_taken:
        assert plan_from_file(config, []).config.env == "CartPole-v1"
    else:
        with pytest.raises(ConfigError, match="unknown key"):
            plan_from_file(config, [])


@pytest.fixture(scope="module")
def dqn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("dqn", out=tmp_path_factory.mktemp("dqn") / "run", **DQN).directory


@pytest.mark.parametrize(
    ("key", "was", "now"),
    [
        ("replay_capacity", 200, 400), ("num_rollout_workers", 1, 2), ("num_envs_per_worker", 1, 2),
        ("n_step", 1, 3), ("discount", 0.99, 0.9), ("prioritized", False, True), ("clip_rewards", False, True),
    ],
)  # fmt: skip
def test_a_replay_that_does_not_fit_is_refused_with_the_setting_and_the_way_out(
    dqn: Path, key: str, was: Any, now: Any
) -> None:
    said = f"'{key}' cannot change from {was} to {now} when a run is resumed: .* --set save_replay=false"
    with pytest.raises(ConfigError, match=said):
        train(resume=dqn, **{key: now}, stop={"env_steps": 128})


@pytest.mark.parametrize(("algo", "settings", "change"), [
    ("dqn", DQN, {"n_step": 3, "num_envs_per_worker": 2, "prioritized": True, "replay_capacity": 90}),
    ("r2d2", {**DQN, **LSTM}, {"burn_in": 3, "unroll_length": 6, "discount": 0.9}),
    ("td3", {**DQN, "env": "Pendulum-v1"}, {"n_step": 2, "replay_capacity": 90}),
])  # fmt: skip
def test_with_an_empty_replay_they_may_change(
    tmp_path: Path, algo: str, settings: dict[str, Any], change: dict[str, Any]
) -> None:
    first = train(algo, out=tmp_path / "run", **settings).result
    train(resume=tmp_path / "run", save_replay=False, stop={"env_steps": 128}, **change)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    resumed = [record for record in records if first and record["env_steps"] > first.env_steps]
    assert resumed[0]["learner/replay_size"] < 40 and resumed[-1]["env_steps"] >= 128


@pytest.mark.process
def test_workers_0_and_1_fill_the_same_replay(dqn: Path) -> None:
    assert train(resume=dqn, num_rollout_workers=1, stop={"env_steps": 300}).num_iterations > 0


@pytest.mark.parametrize(("algo", "settings", "change"), [
    ("dqn", {}, {"dueling": True}), ("dqn", {}, {"noisy": True}),
    ("ppo", {"normalize_observations": True}, {"normalize_observations": False}),
    ("a3c", {}, {"normalize_observations": True}),
    ("impala", {}, {"optimizer": "rmsprop"}), ("a3c", {}, {"optimizer": "adam"}),
    ("es", {"population_size": 4}, {"optimizer": "sgd"}), ("es", {"population_size": 4}, {"linear_policy": True}),
])  # fmt: skip
def test_what_the_learners_state_is_shaped_by_cannot_change(
    tmp_path: Path, algo: str, settings: dict[str, Any], change: dict[str, Any]
) -> None:
    (key,) = change
    train(algo, env="CartPole-v1", out=tmp_path / "run", stop={"env_steps": 8}, **SMALL | settings)
    with pytest.raises(ConfigError, match=f"'{key}' cannot change when a run is resumed; start a new one"):
        train(resume=tmp_path / "run", stop={"env_steps": 100_000}, **change)


def test_a_part_of_a_section_may_be_what_cannot_change(tmp_path: Path) -> None:
    settings = {**DQN, "env": "Pendulum-v1", "learning_starts": 100}
    train("mbpo", out=tmp_path / "run", **settings)
    with pytest.raises(ConfigError, match=r"'model.ensemble_size' cannot change when a run is resumed"):
        train(resume=tmp_path / "run", model={"ensemble_size": 6}, stop={"env_steps": 100})
    train(resume=tmp_path / "run", model={"learning_rate": 1e-4}, stop={"env_steps": 80})


def test_runs_begun_at_once_have_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_training("ppo", None, [layer_from_arguments({"env": "CartPole-v1"})])
    assert len({default_directory(plan) for _ in range(20)}) == 20
    assert len(list(Path("runs").iterdir())) == 20


def test_nothing_is_left_of_a_run_that_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rlplat.errors.RlplatError):
        train("ppo", env="NoSuchEnv-v1")
    assert not list(tmp_path.iterdir())


def test_runs_may_be_kept_in_a_folder_called_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints/run"
    train("ppo", env="CartPole-v1", out=run, stop={"env_steps": 8}, **SMALL)
    (step,) = (run / "checkpoints").glob("step_*")
    for place in (run, step):
        assert rlplat.load(place).checkpoint.path == step
