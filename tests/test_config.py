"""Configuration: layers, YAML reading, and complaints that name the key, the place and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from rlplat.config import (
    dump,
    layer_from_arguments,
    layer_from_flags,
    load_yaml,
    parse_scalar,
    parse_yaml,
    resolve,
)
from rlplat.errors import ConfigError


class Stop(BaseModel):
    env_steps: PositiveInt | None = None
    wall_s: PositiveFloat | None = None


class Policy(BaseModel):
    encoder: str = "auto"
    hidden_sizes: list[int] = [64, 64]


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    env: str
    learning_rate: PositiveFloat = 3e-4
    discount: float = Field(default=0.99, ge=0, le=1)
    num_envs_per_worker: int | str = "auto"
    stop: Stop = Stop()
    policy: Policy = Policy()
    env_kwargs: dict[str, object] = {}


def complaint(*layers: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(Config, layers)  # type: ignore[arg-type]
    return str(caught.value)


def test_flags_win_over_yaml_and_yaml_over_defaults() -> None:
    yaml = parse_yaml("env: CartPole-v1\nlearning_rate: 1e-3\nstop: {env_steps: 5, wall_s: 9}\n", "c.yaml")
    flags = layer_from_flags([("stop.env-steps", "200_000"), ("policy.hidden-sizes", "[8, 8]")])
    config = resolve(Config, [yaml, flags])
    assert (config.env, config.learning_rate, config.discount) == ("CartPole-v1", 1e-3, 0.99)
    assert config.stop == Stop(env_steps=200_000, wall_s=9)
    assert config.policy.hidden_sizes == [8, 8]


def test_python_arguments_nest_by_dict_and_by_dot() -> None:
    layer = layer_from_arguments({"env": "X", "stop": {"env_steps": 7}, "stop.wall_s": 2.5})
    assert resolve(Config, [layer]).stop == Stop(env_steps=7, wall_s=2.5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("3", 3), ("-1", -1), ("1_000", 1000), ("0.5", 0.5), (".5", 0.5), ("inf", float("inf")),
        ("true", True), ("yes", "yes"), ("off", "off"), ("null", None), ("mlp", "mlp"), ("'3'", "3"), ("010", 10),
        ("1_", "1_"), ("4__0", "4__0"), ("1_.5", "1_.5"),
        ("[64, 64]", [64, 64]), ("{a: 1}", {"a": 1}), ("./my_env.py:Env", "./my_env.py:Env"), ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"), ("ALE/Pong-v5", "ALE/Pong-v5"), ("*x", "*x"), ("@x", "@x"), ("[", "["),
        ("!!python/object:os.system x", "!!python/object:os.system x"), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_scalars_read_as_one_would_expect(text: str, value: object) -> None:
    read = parse_scalar(text)
    assert read == value and type(read) is type(value)


def test_unknown_key_names_file_line_and_the_nearest_key() -> None:
    layer = parse_yaml("env: X\n\nlearning_rte: 0.1\n", "configs/ppo/Pong.yaml")
    assert complaint(layer) == ("unknown key 'learning_rte' in configs/ppo/Pong.yaml:3; did you mean 'learning_rate'?")


def test_unknown_nested_key_and_key_of_another_level() -> None:
    assert complaint(parse_yaml("env: X\nstop:\n  env_step: 3\n", "c.yaml")) == (
        "unknown key 'stop.env_step' in c.yaml:3; did you mean 'stop.env_steps'?"
    )
    assert complaint(layer_from_flags([("env", "X"), ("encoder", "mlp")])) == (
        "unknown key 'encoder' (from --encoder); did you mean 'policy.encoder'?"
    )


def test_all_complaints_come_at_once_in_the_order_of_the_file() -> None:
    text = "env: X\ndiscount: 2\nlearning_rate: fast\nnonsense: 1\nstop:\n  env_steps: -5\n"
    lines = complaint(parse_yaml(text, "c.yaml")).splitlines()
    assert [line.split("c.yaml:")[1][0] for line in lines] == ["2", "3", "4", "6"]
    assert lines[0] == "bad value for 'discount' in c.yaml:2: 2 (must be a number from 0 to 1)"
    assert lines[1].startswith("bad value for 'learning_rate' in c.yaml:3: 'fast' (must be a number above 0")
    assert lines[3] == "bad value for 'stop.env_steps' in c.yaml:6: -5 (must be a whole number above 0 or null)"


def test_members_of_a_union_are_one_complaint_and_missing_keys_say_how_to_give_them() -> None:
    lines = complaint(parse_yaml("num_envs_per_worker: [1]\n", "c.yaml")).splitlines()
    assert lines == [
        "'env' is not set and has no default: give --env VALUE",
        "bad value for 'num_envs_per_worker' in c.yaml:1: [1] (must be a whole number or text)",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "c.yaml:3: key 'a' was already set in line 1"),
        ("a: !!python/object/apply:os.system ['true']\n", "c.yaml:1: the tag"),
        ("a: !mine 3\n", "c.yaml:1: the tag '!mine' is not allowed"),
        ("- 1\n- 2\n", "c.yaml:1: a config file holds `key: value` lines"),
        ("a: [1\nb: 2\n", "c.yaml:2: not valid YAML"),
        ("a: *nowhere\n", "c.yaml:1: not valid YAML: found undefined alias"),
        ("[1]: 2\n", "c.yaml:1: a key must be plain text"),
        ("a: " + "[" * 50 + "]" * 50, "nested deeper than"),
        ("a: " + "[" * 100_000, "nested deeper than"),
        ("a: &a [*a]\n", "nested deeper than"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
    ],
)
def test_bad_yaml_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "c.yaml")
    assert said in str(caught.value)


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="more than 10000 values"):
        parse_yaml("\n".join(lines), "bomb.yaml")


def test_aliases_that_are_small_work() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\n", "c.yaml").values == {"a": [1, 2], "b": [1, 2]}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="is a directory"):
        load_yaml(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        load_yaml(tmp_path / "binary.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"# " + b"x" * (1 << 20))
    with pytest.raises(ConfigError, match="more than a config file may have"):
        load_yaml(tmp_path / "huge.yaml")


def test_a_dumped_config_reads_back_equal() -> None:
    flags = [
        ("env", "ALE/Pong-v5"),
        ("learning-rate", "1e-5"),
        ("env-kwargs.mode", "1"),
        ("stop.wall_s", "inf"),
    ]
    config = resolve(Config, [layer_from_flags(flags)])
    assert resolve(Config, [parse_yaml(dump(config), "config.yaml")]) == config


def test_a_key_under_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="'stop' was already set to 3"):
        layer_from_flags([("stop", "3"), ("stop.env-steps", "4")])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: &a {x: 1, y: {z: 2}}\nc:\n  <<: *a\n  y: 4\n", {"x": 1, "y": 4}),
        ("a: &a {x: 1, y: 5}\nc:\n  y: 4\n  <<: *a\n", {"x": 1, "y": 4}),
        ("a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc: {<<: [*a, *b]}\n", {"x": 1, "y": 3}),
        ("a: &a {x: 1}\nb: &b {<<: *a, y: 3}\nc: {<<: *b}\n", {"x": 1, "y": 3}),
        ("c: {'<<': {x: 1}}\n", {"<<": {"x": 1}}),
    ],
)
def test_merge_keys_are_read_as_yaml_has_them(text: str, values: dict[str, Any]) -> None:
    read = parse_yaml(text, "c.yaml").values
    assert read["c"] == values
    assert read == yaml.safe_load(text)


def test_a_complaint_about_a_merged_key_names_both_lines() -> None:
    text = "stop: &budget {env_steps: 5}\npolicy:\n  <<: *budget\n"
    with pytest.raises(ConfigError, match=r"'policy.env_steps' in c.yaml:1 \(merged in line 3\)"):
        resolve(Config, [parse_yaml(text, "c.yaml")])


@pytest.mark.parametrize("text", ["c: {<<: 3}", "c: {<<: [1]}", "a: &a {<<: *a}"])
def test_what_cannot_be_merged_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"c.yaml:1: `<<` merges a mapping"):
        parse_yaml(text, "c.yaml")


def test_two_merge_keys_are_refused_with_the_cure() -> None:
    text = "a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n"
    with pytest.raises(ConfigError, match=r"c.yaml:4: key '<<' was already set in line 3; merge .*`<<: \[\*first"):
        parse_yaml(text, "c.yaml")


def test_a_flag_under_an_alias_overrides_the_file_under_the_field_name() -> None:
    from rlplat.algorithms.ppo import PPOConfig

    file = parse_yaml("env: CartPole-v1\nstop: {episode_return_mean: 475}\n", "run.yaml")
    flag = layer_from_flags([("stop.episode-return", "10")])
    assert resolve(PPOConfig, [file, flag]).stop.episode_return_mean == 10
