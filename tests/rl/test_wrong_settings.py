"""Wrong settings in Python and in layers: each input and the message that answers it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rlplat.algorithms.a3c import A3CConfig
from rlplat.algorithms.dqn import DQNConfig
from rlplat.algorithms.es import ESConfig
from rlplat.algorithms.ppo import PPOConfig
from rlplat.cli.settings import rows_of
from rlplat.config import layer_from_flags, parse_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.rl.names_elsewhere import NAMES_ELSEWHERE
from rlplat.section import InvalidSettings

CONFIGS: dict[str, type[BaseModel]] = {
    "ppo": PPOConfig, "a3c": A3CConfig, "dqn": DQNConfig, "es": ESConfig,
}  # fmt: skip
SCHEDULE = "or a schedule of such numbers, {schedule: linear, start: A, end: B}"
LEARNING_RATE = f"must be a number from 0 to 10 {SCHEDULE}"
RETURNS = {"stop.episode_return_mean", "expect.episode_return_mean", "expect.evaluation_return_mean"}
"""Numbers of which nothing is known."""


def message(config: type[BaseModel] = PPOConfig, **settings: Any) -> str:
    with pytest.raises(InvalidSettings) as caught:
        config(**{"env": "X", **settings})
    return str(caught.value)


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
        ({"learning_rate": {"schedule": "cosine", "start": 1, "end": 0}}, f"({LEARNING_RATE})"),
        ({"clip_range": -0.2}, f"-0.2 (must be a number from 0 to 10 {SCHEDULE})"),
        ({"num_epochs": True}, "true (must be a whole number from 1 to 1,000,000,000,000)"),
        ({"policy": {"hidden_sizes": 64}}, "(must be a list of one or more whole numbers from 1 to 1,000,000, such as"),
        ({"policy": {"hidden_sizes": []}}, "[] (must be a list of one or more whole numbers"),
        ({"policy": {"hidden_sizes": [True]}}, "[True] (must be a list of one or more whole numbers"),
        ({"policy": {"custom": "mine"}}, "must be the name of a class, pkg.mod:Class or ./file.py:Class"),
        ({"policy": {"encoder": "mine"}}, "must be auto, mlp, nature_cnn or impala_cnn or the name of a class"),
        ({"policy": 3}, "bad value for 'policy' (from argument policy): 3 (must be a group {key: value})"),
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


@pytest.mark.parametrize(
    ("config", "theirs", "ours"),
    [
        ("ppo", "lr", "learning_rate"), ("ppo", "gamma", "discount"), ("ppo", "n_steps", "rollout_length"),
        ("ppo", "batch_size", "minibatch_size"), ("ppo", "ent_coef", "entropy_coef"), ("ppo", "vf_coef", "value_coef"),
        ("ppo", "n_envs", "num_envs_per_worker"), ("ppo", "total_timesteps", "stop.env_steps"),
        ("ppo", "num_workers", "num_rollout_workers"), ("ppo", "train_batch_size", "rollout_length"),
        ("ppo", "device", "learner.device"), ("ppo", "policy.net_arch", "policy.hidden_sizes"),
        ("dqn", "buffer_size", "replay_capacity"), ("dqn", "tau", "target_tau"), ("es", "sigma", "noise_std"),
        ("a3c", "max_grad_norm", "max_gradient_norm"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_are_understood(config: str, theirs: str, ours: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(CONFIGS[config], [layer_from_flags([("env", "X"), (theirs, "1")])])
    assert str(caught.value) == f"unknown key '{theirs}' (from --{theirs}); did you mean '{ours}'?"


def test_every_suggestion_is_a_setting_of_some_algorithm() -> None:
    known = {row["key"] for config in CONFIGS.values() for row in rows_of(config)}
    known |= {key.rpartition(".")[0] for key in known}
    assert {ours for names in NAMES_ELSEWHERE.values() for ours in names} <= known


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
    assert len(lines) == len(flags) and "--learning-rate needs a value: a number from 0 to 10" in str(
        caught.value
    )
    assert sum(" needs a value: " in line for line in lines) == len(flags) - 1
