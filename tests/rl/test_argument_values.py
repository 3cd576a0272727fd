"""Values of Python and numpy in env_kwargs: written to config.yaml and read back equal, or refused by key."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.config import dump_values, parse_yaml
from rlplat.errors import ConfigError
from rlplat.rl.argument_values import as_given, as_plain


class Mode(enum.Enum):
    EASY = "easy"


class Level(enum.IntEnum):
    FIRST = 1


def reward(obs: Any) -> float:
    return 1.0


def there_and_back(value: Any) -> Any:
    return as_given(parse_yaml(dump_values(as_plain({"x": value}, "env_kwargs")), "").values)["x"]


@pytest.mark.parametrize(
    "value",
    [
        np.int64(5), np.float32(0.1), np.bool_(True), np.str_("a"), np.uint8(200), np.float64("inf"),
        float("inf"), -float("inf"), "1e-4", "inf", "yes", "null", "~", "", "a: b", 10**30,
        (3, (4, 5)), {1, 2}, frozenset({(1, 2)}), [np.int64(1), (2,)], {1: "a", (0, 1): 2}, {"a": {"b": (1,)}},
        {"python/tuple": [1]}, {}, (), Path("maps/a.txt"), Mode.EASY, Level.FIRST, reward, np.float32, len,
    ],
)  # fmt: skip
def test_what_is_read_back_is_equal(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value) or isinstance(value, np.generic)


@pytest.mark.parametrize("shape", [(2, 3), (0, 2), (), (4,)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
def test_arrays_keep_shape_and_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    back = there_and_back(array)
    assert back.dtype == array.dtype and back.shape == shape and np.array_equal(back, array)


def _local() -> Any:
    return lambda: 1


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"a": object()}, "env_kwargs.a"),
        ({"a": [1, b"bytes"]}, r"env_kwargs.a\[1\]"),
        ({"a": 1j}, "env_kwargs.a"),
        ({"a": {"b": _local()}}, "env_kwargs.a.b"),
        ({"a": np.zeros(100_000)}, "env_kwargs.a"),
        ({"a": np.array([object()])}, "env_kwargs.a"),
        ({"a": np.datetime64("2020-01-01")}, "env_kwargs.a"),
    ],
)
def test_what_cannot_be_written_is_refused_by_its_key(value: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} is .* config.yaml cannot hold: "):
        as_plain(value, "env_kwargs")


ENV = """
import gymnasium as gym, numpy as np
class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, goals, shape):
        assert isinstance(goals, np.ndarray) and isinstance(shape, tuple)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""


def test_a_run_is_resumed_with_arrays_and_refused_without_writing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays_env.py").write_text(ENV)
    small: dict[str, Any] = {
        "num_rollout_workers": 0, "num_envs_per_worker": 2, "rollout_length": 16, "minibatch_size": 16,
        "evaluation": {"episodes": 0}, "env": "./arrays_env.py:MyEnv",
    }  # fmt: skip

    def goals(end: float) -> dict[str, Any]:
        return {
            "goals": np.array([0.5, end]),
            "shape": (np.int64(3), 4),
        }

    rlplat.train("ppo", env_kwargs=goals(1.0), out="a", stop={"env_steps": 32}, **small)
    assert rlplat.load("a").evaluate(1)[0].episode_return == 1.0
    rlplat.train(resume="a", env_kwargs=goals(1.0), stop={"env_steps": 64})
    with pytest.raises(ConfigError, match="'env_kwargs' cannot change"):
        rlplat.train(resume="a", env_kwargs=goals(2.0), stop={"env_steps": 96})
    with pytest.raises(ConfigError, match=r"^env_kwargs.goals is <object"):
        rlplat.train("ppo", env_kwargs={"goals": object()}, out="b", **small)
    assert not (tmp_path / "b").exists()
