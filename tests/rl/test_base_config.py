"""What a run starts from: the config tuned for the environment, its family's, or plain defaults; and what is said."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from rlplat.algorithms.ppo import PPOConfig
from rlplat.cli.train import run
from rlplat.config import layer_from_flags, load_yaml
from rlplat.errors import ConfigError
from rlplat.rl.envs.names import env_family
from rlplat.rl.run.registry import (
    algorithm_homes,
    base_config,
    configs_directory,
    find_config,
    load_algorithm,
)
from rlplat.rl.run.training_plan import TrainingPlan, plan_from_file, plan_training
from rlplat.tune.trials.rl_config import plan_trial

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted((ROOT / "configs").glob("*/_*.yaml"))


@pytest.fixture(autouse=True)
def in_the_source_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def plan(algo: str, env: str, *flags: tuple[str, str]) -> TrainingPlan:
    return plan_training(algo, None, [layer_from_flags([("env", env), *flags])])


@pytest.mark.parametrize(
    "env, family",
    [
        ("Pong", "atari"),
        ("ALE/SpaceInvaders-v5", "atari"),
        ("MsPacmanNoFrameskip-v4", "atari"),
        ("Hopper-v5", "mujoco"),
        ("Humanoid-v4", "mujoco"),
        ("MountainCar-v0", "classic"),
        ("BipedalWalker-v3", "classic"),
        ("CarRacing-v3", ""),
        ("FrozenLake-v1", ""),
        ("./my_env.py:MyEnv", ""),
        ("NoSuchThing-v1", None),
    ],
)
def test_the_family_of_an_environment(env: str, family: str | None) -> None:
    assert env_family(env) == family


def test_every_env_of_gymnasium_belongs_to_a_family_of_ours_or_to_none() -> None:
    families = {env_family(name) for name in gymnasium.registry}
    assert families == {"atari", "mujoco", "classic", ""} or families == {"mujoco", "classic", ""}


def test_a_tuned_config_goes_before_its_familys() -> None:
    tuned = plan("ppo", "Pong")
    assert tuned.notes == ["using the tuned config configs/ppo/Pong.yaml"]
    assert tuned.base == "configs/ppo/Pong.yaml"


def test_false_and_no_config_are_the_plain_defaults() -> None:
    plain = plan_training("PPO", False, [layer_from_flags([("env", "CartPole-v1")])])
    assert plain.config == PPOConfig(env="CartPole-v1") != plan("ppo", "CartPole-v1").config
    assert plain.algo == "ppo" and plain.notes == ["no config: the plain defaults of ppo apply"]
    with pytest.raises(ConfigError, match="--no-config is without a config file: omit it, or ppo/Pong"):
        run(["ppo/Pong", "--no-config"])


def test_pong_is_the_fast_one_and_the_published_one_has_a_name() -> None:
    fast = plan("ppo", "Pong").config
    assert fast.env_kwargs == {"img_height": 64, "img_width": 64}  # no other task: only what is seen of it
    assert fast.policy.encoder == "small_cnn" and fast.normalize_observations and fast.clip_rewards
    assert (fast.stop.episode_return_mean, fast.expect.episode_return_mean) == (18, 18)
    path = find_config("ppo/Pong-published")
    assert path is not None
    published = plan_from_file(path, []).config
    assert published.env == "Pong" and published.env_kwargs == {}
    assert published.policy.encoder == "nature_cnn" and not published.normalize_observations
    assert published.num_rollout_workers * published.num_envs_per_worker == 8


def test_a_game_without_a_config_learns_as_all_games_do() -> None:
    found = plan("ppo", "ALE/SpaceInvaders-v5", ("env_kwargs.noop_max", "0"), ("clip_range", "0.3"))
    assert found.notes == [
        "no tuned config for ALE/SpaceInvaders-v5: using the Atari family's, configs/ppo/_atari.yaml"
    ]
    config = found.config
    assert config.env == "ALE/SpaceInvaders-v5"
    assert (config.clip_rewards, config.entropy_coef, config.clip_range) == (True, 0.01, 0.3)
    assert config.env_kwargs == {"episodic_life": True, "fire_after_lost_life": True, "noop_max": 0}
    assert plan("ppo", "Hopper-v5").config.normalize_observations


@pytest.mark.parametrize(
    "algo, env, note",
    [
        (
            "ppo",
            "FrozenLake-v1",
            "no tuned config for FrozenLake-v1, and it belongs to no family: the plain defaults of ppo apply",
        ),
        (
            "es",
            "Pong",
            "no tuned config for Pong, and the Atari family has none for es: the plain defaults of es apply",
        ),
    ],
)
def test_where_there_is_none_a_line_says_so(algo: str, env: str, note: str) -> None:
    found = plan(algo, env)
    assert found.notes == [note] and found.base == ""
    assert found.config == load_algorithm(algo).config_class(env=env)


def test_nothing_is_said_of_an_environment_that_is_not_there_or_an_algorithm_without_configs() -> None:
    assert base_config("ppo", "NoSuchThing-v1") == (None, "")
    assert base_config("./mine.py:Mine", "CartPole-v1") == (None, "")


def test_a_runs_own_config_says_what_it_was_based_on_also_when_it_is_resumed(tmp_path: Path) -> None:
    text = plan("a3c", "Hopper-v5").to_yaml()
    assert text.splitlines()[:2] == [
        "algo: a3c",
        "# complete settings of a run that was based on configs/a3c/_mujoco.yaml",
    ]
    (tmp_path / "config.yaml").write_text(text)
    assert plan_from_file(tmp_path / "config.yaml", []).to_yaml() == text


def test_a_trial_is_laid_over_its_family_too() -> None:
    found = plan_trial("ppo", {"env": "Hopper-v5", "learning_rate": 1e-3})
    assert found.notes == ["settings that config does not name are those of the family config ppo/_mujoco.yaml"]
    assert found.config.normalize_observations and found.config.learning_rate == 1e-3
    assert found.config.stop.env_steps == 1_000_000


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: f"{path.parent.name}{path.stem}")
def test_a_familys_config_is_sound_and_names_its_source(path: Path) -> None:
    """It has no environment, expects nothing, and can be trained with as it is: `rlplat train FILE --env X`."""
    values = load_yaml(path).values
    assert not {"env", "expect", "seed"} & values.keys() and "stop" in values
    assert any(source in path.read_text() for source in ("rl-zoo3", "et al.", "measured here"))
    env = {"atari": "SpaceInvaders", "mujoco": "Walker2d-v5", "classic": "BipedalWalker-v3"}[path.stem[1:]]
    found = plan_from_file(path, [layer_from_flags([("env", env)])])
    assert found.algo == path.parent.name and found.config.env == env


def test_every_algorithm_has_its_families() -> None:
    root = configs_directory()
    assert root is not None
    have = {algo: {path.stem for path in (root / algo).glob("_*.yaml")} for algo in algorithm_homes()}
    assert have == {
        "ppo": {"_atari", "_mujoco", "_classic"},
        "a3c": {"_atari", "_mujoco", "_classic"},
        "dqn": {"_atari", "_classic"},  # Discrete actions only
        "pqn": {"_atari", "_classic"},
        "es": {"_mujoco", "_classic"},  # vectors only
        "impala": {"_atari"},
        "alphazero": set(),  # board games, of which each has its own
        "sac": {"_mujoco"},  # Box actions only
        "td3": {"_mujoco"},
        "tqc": {"_mujoco"},
        "crossq": {"_mujoco"},
        "mbpo": {"_mujoco"},
        "bc": set(),  # what suits depends on the data
        "cql": set(),
        "td3_bc": set(),
        "iql": set(),
        "discrete_sac": set(),
        "r2d2": set(),
        "apex": {"_atari"},
    }
