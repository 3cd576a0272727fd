"""Wrong settings in Python and in layers: each input and the message that answers it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import rlplat
from rlplat.algorithms.a3c import A3CConfig
from rlplat.algorithms.alphazero import AlphaZeroConfig
from rlplat.algorithms.crossq import CrossQConfig
from rlplat.algorithms.dqn import DQNConfig
from rlplat.algorithms.es import ESConfig
from rlplat.algorithms.impala import ImpalaConfig
from rlplat.algorithms.mbpo import MBPOConfig
from rlplat.algorithms.ppo import PPOConfig
from rlplat.algorithms.sac import SACConfig
from rlplat.algorithms.td3 import TD3Config
from rlplat.cli.settings import rows_of
from rlplat.config import layer_from_flags, parse_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.rl.names_elsewhere import TABLES
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.run import registry
from rlplat.rl.run.registry import algorithm_homes, load_algorithm, shipped_configs
from rlplat.rl.run.training_plan import plan_training
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.unused_settings import announcement
from rlplat.section import InvalidSettings

CONFIGS: dict[str, type[BaseModel]] = {
    "ppo": PPOConfig, "a3c": A3CConfig, "dqn": DQNConfig, "es": ESConfig, "sac": SACConfig, "td3": TD3Config,
    "impala": ImpalaConfig,
    "mbpo": MBPOConfig,
    "alphazero": AlphaZeroConfig,
}  # fmt: skip
SCHEDULE = "or a schedule of such numbers, {schedule: linear, start: A, end: B}"
LEARNING_RATE = f"must be a number from 0 to 10 {SCHEDULE}"
RETURNS = {"stop.episode_return_mean", "expect.episode_return_mean", "expect.evaluation_return_mean"}
"""Numbers of which nothing is known."""


def message(config: type[BaseModel] = PPOConfig, **settings: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        config(**{"env": "X", **settings})
    return str(caught.value)


def test_groups_of_observations_are_refused_where_there_is_no_critic_to_see_more() -> None:
    groups = {"obs_groups": {"actor": ["a"]}}
    for config in (DQNConfig, ESConfig, AlphaZeroConfig, MBPOConfig):
        assert "policy.obs_groups={'actor': ['a']} has no effect" in message(config, policy=groups)
    said = message(policy={"obs_groups": {"policy": ["a"]}})
    assert "the groups are actor and critic, not policy" in said


def test_state_dependent_exploration_that_would_not_be_is_refused() -> None:
    assert "sde_sample_freq=4 is of use_sde" in message(policy={"sde_sample_freq": 4})
    assert "give a number of steps, or -1" in message(policy={"use_sde": True, "sde_sample_freq": 0})
    for config in (DQNConfig, TD3Config, CrossQConfig, ESConfig, AlphaZeroConfig):
        assert "policy.use_sde=True has no effect" in message(config, policy={"use_sde": True})


def test_an_adapted_learning_rate_begins_with_a_number() -> None:
    said = message(desired_kl=0.01, learning_rate={"schedule": "linear", "start": 1e-3, "end": 0})
    assert "desired_kl adapts the learning rate: give learning_rate the number to begin with" in said


def test_weight_decay_is_refused_where_it_would_do_nothing() -> None:
    assert "weight_decay=0.1 is AdamW's: set optimizer=adam, or omit it" in message(A3CConfig, weight_decay=0.1)
    assert A3CConfig(env="X", weight_decay=0.1, optimizer="adam").weight_decay == 0.1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rat": 1}, "unknown key 'learning_rat' (from argument learning_rat); did you mean 'learning_rate'?"),
        ({"learning_rate": -1}, f"bad value for 'learning_rate' (from argument learning_rate): -1 ({LEARNING_RATE})"),
        ({"learning_rate": math.nan}, f"nan ({LEARNING_RATE})"),
        ({"learning_rate": "inf"}, f"'inf' ({LEARNING_RATE})"),
        ({"learning_rate": 1e30}, f"1e+30 ({LEARNING_RATE})"),
        ({"learning_rate": True}, f"true ({LEARNING_RATE})"),
        ({"learning_rate": {"schedule": "linear", "start": 1}}, "'learning_rate.end' is not set and has no default"),
        ({"learning_rate": {"schedule": "linear", "start": 1, "end": -1}}, f"'end': -1}} ({LEARNING_RATE})"),
        ({"learning_rate": {"schedule": "linear", "start": 11, "end": 0}}, f"'end': 0}} ({LEARNING_RATE})"),
        ({"learning_rate": {"schedule": "linear", "start": math.inf, "end": 0}}, "'learning_rate.start'"),
        ({"learning_rate": {"schedule": "piecewise", "points": [[0, 1], [1, -1]]}}, f"({LEARNING_RATE})"),
        ({"learning_rate": {"schedule": "piecewise", "points": [[0, True]]}}, "'learning_rate.points'"),
        ({"learning_rate": {"schedule": "exponential", "start": 1, "end": 0}}, f"({LEARNING_RATE})"),
        ({"clip_range": -0.2}, f"-0.2 (must be a number from 0 to 10 {SCHEDULE})"),
        ({"num_epochs": True}, "true (must be a whole number from 1 to 1,000,000,000,000)"),
        ({"policy": {"hidden_sizes": 64}}, "(must be a list of one or more whole numbers from 1 to 1,000,000, such as"),
        ({"policy": {"hidden_sizes": []}}, "[] (must be a list of one or more whole numbers"),
        ({"policy": {"hidden_sizes": [True]}}, "[True] (must be a list of one or more whole numbers"),
        ({"policy": {"custom": "mine"}}, "must be the name of a class, pkg.mod:Class or ./file.py:Class"),
        ({"policy": {"encoder": "mine"}}, "must be auto, mlp, nature_cnn, small_cnn, grid_cnn, impala_cnn or the name"),
        (
            {"policy": 3},
            "bad value for 'policy' (from argument policy): 3 (it takes settings by name: "
            'policy={"hidden_sizes": [64, 64]})',
        ),
        ({"stop": 5000}, '(it takes settings by name: stop={"env_steps": 5000})'),
        ({"evaluation": "often"}, '(it takes settings by name: evaluation={"period": 10000})'),
        ({"policy": "MlpPolicy"}, "(omit it, the network follows the observations: an MLP for vectors, a CNN for"),
        ({"verbose": 1}, "unknown key 'verbose' (from argument verbose); omit it: progress is always shown"),
        ({"tensorboard_log": "x"}, "every run writes RUN/tensorboard/"),
        ({"deterministic": 3}, "3 (must be true or false)"),
        ({"stop": {"wall_s": math.inf}}, "inf (must be a number above 0 and up to 1e+09 or null)"),
        ({"multi_agent": {"policies": {"a": {"trained": 3}}}}, "3 (must be true or false)"),
        ({"multi_agent": {"policies": {"a": {"traind": True}}}}, "did you mean 'trained'?"),
        ({"multi_agent": {"self_play": {"opponent": "a", "pool": 0}}}, "0 (must be a whole number from 1 to 10,000)"),
    ],
)  # fmt: skip
def test_python_is_answered_like_the_command_line(settings: dict[str, Any], said: str) -> None:
    text = message(**settings)
    assert said in text and "\n" not in text
    assert "pydantic" not in text and "pattern" not in text and "tag" not in text


def test_the_error_is_still_a_validation_error() -> None:
    with pytest.raises(ValidationError) as caught:
        PPOConfig(learning_rate=-1)
    assert isinstance(caught.value, ConfigError)
    assert {item["loc"][0] for item in caught.value.errors()} == {"env", "learning_rate"}
    assert "pydantic.dev" not in f"{caught.value!s}"


def test_settings_without_names_are_answered_with_the_name() -> None:
    with pytest.raises(TypeError, match=r"PPOConfig takes its settings by name: PPOConfig\(env='CartPole-v1'\)"):
        PPOConfig("CartPole-v1")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("config", "theirs", "ours"),
    [
        ("ppo", "lr", "learning_rate"), ("ppo", "gamma", "discount"), ("ppo", "n_steps", "rollout_length"),
        ("ppo", "batch_size", "minibatch_size"), ("ppo", "ent_coef", "entropy_coef"), ("ppo", "vf_coef", "value_coef"),
        ("ppo", "n_envs", "num_envs_per_worker"), ("ppo", "total_timesteps", "stop.env_steps"),
        ("ppo", "num_workers", "num_rollout_workers"), ("ppo", "train_batch_size", "rollout_length"),
        ("ppo", "device", "learner.device"), ("ppo", "policy.net_arch", "policy.hidden_sizes"),
        ("dqn", "buffer_size", "replay_capacity"), ("dqn", "tau", "target_tau"), ("es", "sigma", "noise_std"),
        ("a3c", "max_grad_norm", "max_gradient_norm"), ("ppo", "num_envs", "num_envs_per_worker"),
        ("ppo", "capture_video", "evaluation.video_period"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_are_understood(config: str, theirs: str, ours: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(CONFIGS[config], [layer_from_flags([("env", "X"), (theirs, "1")])])
    assert str(caught.value).startswith(f"unknown key '{theirs}' (from --{theirs}); did you mean '{ours}'?")


@pytest.mark.parametrize(
    ("config", "theirs", "said"),
    [
        ("dqn", "gradient_steps", "'env_steps_per_update'? (Stable-Baselines3: their inverse: train_freq x n_envs"),
        ("dqn", "target_update_interval", "gradient steps: target_update_interval / env_steps_per_update"),
        ("dqn", "training_intensity", "inverse: batch_size / training_intensity"),
        ("dqn", "exploration_fraction", "one schedule"),
        ("ppo", "vf_coef", "Stable-Baselines3: twice their number, as half"),
        ("ppo", "vf_clip_param", "has no counterpart"),
        ("ppo", "num_minibatches", "num_envs x num_steps / num_minibatches"),
        ("es", "episodes_per_batch", "half of it"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_number_that_counts_something_else_is_said(config: str, theirs: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(CONFIGS[config], [layer_from_flags([("env", "X"), (theirs, "1")])])
    assert said in str(caught.value)


def test_every_suggestion_is_a_setting_of_some_algorithm() -> None:
    configs = [load_algorithm(name).config_class for name in algorithm_homes()]
    known = {row["key"] for config in configs for row in rows_of(config)}
    known |= {key.rpartition(".")[0] for key in known} | {"env_kwargs.wrappers"}
    assert {name for table in TABLES.values() for ours in table.values() for name in ours.names.split()} <= known


def numbers(config: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for row in rows_of(config):
        if "number" in row["takes"]:
            yield row["key"], row["takes"]


@pytest.mark.parametrize("algo", CONFIGS)
def test_every_number_has_limits(algo: str) -> None:
    unlimited = {key for key, takes in numbers(CONFIGS[algo]) if " to " not in takes and " and " not in takes}
    assert unlimited == RETURNS


@pytest.mark.parametrize("algo", CONFIGS)
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "nan", "inf", "true", "1e400"])
def test_no_number_takes_what_is_no_number(algo: str, value: str) -> None:
    for key, _ in numbers(CONFIGS[algo]):
        if "NAME" in key or "self_play" in key:
            continue
        text = f"env: X\n{key}: {value}\n"
        for part in reversed(key.split(".")[:-1]):
            text = text.replace(f"{part}.", f"{part}: {{").rstrip("\n") + "}\n"
        with pytest.raises(ConfigError, match=rf"bad value for '{key}' in c.yaml:2"):
            resolve(CONFIGS[algo], [parse_yaml(text, "c.yaml")])


def test_a_switch_may_stand_alone_and_nothing_else() -> None:
    config = resolve(
        PPOConfig,
        [layer_from_flags([("env", "X"), ("deterministic", None), ("env-kwargs.loud", None),
                           ("policy.share-encoder", None)])],
    )  # fmt: skip
    assert (config.deterministic, config.env_kwargs, config.policy.share_encoder) == (
        True,
        {"loud": True},
        True,
    )
    flags = [
        "learning-rate",
        "seed",
        "stop.wall-s",
        "policy.hidden-sizes",
        "learner",
        "policy.encoder",
        "wrong",
    ]
    with pytest.raises(ConfigError) as caught:
        resolve(PPOConfig, [layer_from_flags([("env", "X"), *((flag, None) for flag in flags)])])
    lines = str(caught.value).splitlines()
    assert len(lines) == len(flags) and "--learning-rate needs a value: a number from 0 to 10" in str(caught.value)
    assert sum(" needs a value: " in line for line in lines) == len(flags) - 1


@pytest.mark.parametrize(
    ("algo", "settings", "said"),
    [
        (
            "dqn",
            {"learner": {"num_learners": 2}},
            "learner.num_learners=2 has no effect: there is one learner",
        ),
        (
            "a3c",
            {"learner": {"num_learners": 2}},
            "learner.num_learners=2 has no effect: every rollout worker",
        ),
        (
            "a3c",
            {"learner": {"device": "cuda"}},
            "learner.device=cuda has no effect: a3c's workers compute",
        ),
        (
            "a3c",
            {"learner": {"num_gpus": 1}},
            "learner.num_gpus=1.0 has no effect: a3c's workers compute",
        ),
        ("es", {"learner": {"num_learners": 2}}, "learner.num_learners=2 has no effect: es has one learner"),
        ("es", {"policy": {"core": "lstm"}}, "policy.core=lstm has no effect: es has MLPs only"),
    ],
)
def test_a_setting_that_asks_for_what_the_algorithm_has_not_is_refused(
    algo: str, settings: dict[str, Any], said: str
) -> None:
    assert message(CONFIGS[algo], **settings).startswith(said)


def test_other_settings_that_the_algorithm_ignores_are_announced_in_one_line() -> None:
    assert announcement(ESConfig(env="X"), "es") == ""
    config = ESConfig(env="X", discount=0.5, framework="tf", learner={"precision": "float32"})
    assert announcement(config, "es") == (
        "es does not use discount (an episode counts by its undiscounted return), framework (es computes with numpy), "
        "learner.precision (es computes with numpy)"
    )
    plan = plan_training("dqn", None, [layer_from_flags([("env", "CartPole-v1"), ("policy.squash-actions", None)])])
    assert plan.notes[-1] == "dqn does not use policy.squash_actions (actions are discrete)"


@pytest.mark.parametrize("name", [name for name in shipped_configs() if not name.startswith("tune/")])
def test_shipped_configs_set_nothing_that_is_ignored(name: str) -> None:
    assert not any("does not use" in note for note in plan_training(None, name, []).notes)


@pytest.mark.parametrize("algo", CONFIGS)
def test_what_an_algorithm_does_not_use_exists(algo: str) -> None:
    assert set(CONFIGS[algo].unused) <= {row["key"] for row in rows_of(CONFIGS[algo])}  # type: ignore[attr-defined]


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "HalfCheetah-v5", "Hopper-v5", "MountainCar-v0"])
@pytest.mark.parametrize("algo", ["ppo", "a3c"])
def test_configs_for_vectors_take_a_core(algo: str, env: str) -> None:
    plan = plan_training(algo, None, [layer_from_flags([("env", env), ("policy.core", "lstm")])])
    spaces = SpaceSpec(ObsSpec("vector", (4,), "float32"), ActionSpec("discrete", n=2))
    assert policy_spec(plan.config.policy.model_dump(), spaces).core == "lstm"


def test_a_refusal_names_the_file_that_set_what_it_refuses(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algo: ppo\nenv: CartPole-v1\nnum_rollout_workers: 0\npolicy:\n  share_encoder: false\n")
    with pytest.raises(ConfigError) as caught:
        rlplat.train(config=file, out=tmp_path / "run", **{"policy.core": "lstm"})
    assert "(--policy.share-encoder auto)" in str(caught.value)
    assert str(caught.value).endswith(f"(policy.share_encoder is from {file}:5)")


@pytest.mark.parametrize("given", [{"env": "CartPole-v1"}, "CartPole-v1", DQNConfig(env="CartPole-v1"), None])
@pytest.mark.parametrize("name", ["PPO", "A3C", "DQN", "ES"])
def test_a_constructor_shows_how_it_is_called(name: str, given: Any) -> None:
    if name == "DQN" and isinstance(given, DQNConfig):
        return
    algorithm = registry.load_algorithm(name.lower())
    with pytest.raises(ConfigError, match=rf"{name} takes a {name}Config, not an? .*: {name}\({name}Config\("):
        algorithm(given)
