"""`env_kwargs.wrappers`: around each environment, in their order, wherever one is made; mistakes are named."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlplat.algorithms.ppo import PPOConfig
from rlplat.config import dump, parse_yaml, resolve
from rlplat.errors import ConfigError, UsageError
from rlplat.rl.class_path import require_class
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.multi_agent.games import make_game
from rlplat.rl.user_code import names_in

HERE = f"{__name__}:"


class Add(gymnasium.ObservationWrapper):  # type: ignore[misc]
    def __init__(self, env: Any, number: float = 1.0) -> None:
        super().__init__(env)
        self.number = np.float32(number)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, env.observation_space.shape)

    def observation(self, observation: Any) -> Any:
        return observation + self.number


class Double(Add):
    def observation(self, observation: Any) -> Any:
        return observation * np.float32(2.0)


class Game:
    def __init__(self, game: Any) -> None:
        raise KeyError("game")


def first_obs(**env_kwargs: Any) -> Any:
    with make_vector_env("CartPole-v1", 2, seed=3, env_kwargs=env_kwargs) as env:
        return env.reset()


def test_the_first_wrapper_is_the_innermost() -> None:
    plain = first_obs(wrappers=[])
    np.testing.assert_array_equal(first_obs(wrappers=[HERE + "Add", HERE + "Double"]), (plain + 1) * 2)
    np.testing.assert_array_equal(first_obs(wrappers=[HERE + "Double", {HERE + "Add": {"number": 3}}]), plain * 2 + 3)


def test_a_class_of_a_module_will_do_for_its_name() -> None:
    plain, both = first_obs(wrappers=[]), [{Add: {"number": 3}}, Double]
    np.testing.assert_array_equal(first_obs(wrappers=both), (plain + 3) * 2)
    config = PPOConfig(env="CartPole-v1", env_kwargs={"wrappers": tuple(both)})
    again = resolve(PPOConfig, [parse_yaml(dump(config), "config.yaml")])
    np.testing.assert_array_equal(first_obs(**again.env_kwargs), (plain + 3) * 2)


def test_frames_are_stacked_beyond_atari() -> None:
    stack = [{"gymnasium.wrappers:FrameStackObservation": {"stack_size": 4}}]
    assert first_obs(wrappers=stack).shape == (2, 4, 4)
    assert not check_env("CartPole-v1", {"wrappers": stack}, steps=50).lines


def test_wrapped_environments_step_one_after_the_other() -> None:
    with make_vector_env("CartPole-v1", 2, env_kwargs={"wrappers": [HERE + "Add"]}) as env:
        assert env.facts()["vectorization"] == "sync"
    with pytest.raises(UsageError, match="wrappers is for one environment each: set vectorization"):
        make_vector_env("CartPole-v1", 2, env_kwargs={"wrappers": [HERE + "Add"]}, vectorization="native")


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        ([HERE + "Ad"], "env_kwargs.wrappers: 'tests.rl.envs.test_wrappers:Ad': "),
        (HERE + "Ad", "has no 'Ad'; did you mean 'Add'?"),
        ([{HERE + "Add": {"num": 1}}], "(with {'num': 1}) raised TypeError"),
        (3, "env_kwargs.wrappers: 3 is neither pkg.module:Class or ./file.py:Class nor"),
    ],
)
def test_what_is_no_wrapper_is_named(wrappers: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        first_obs(wrappers=wrappers)


def test_what_the_script_itself_defines_has_no_name_elsewhere() -> None:
    """It ended with "__main__.__spec__ is None"."""
    with pytest.raises(ConfigError, match=r"__main__ is another module in every process: name the file, \./"):
        require_class("__main__:Mine")


def test_atari_says_why_it_takes_none() -> None:
    with pytest.raises(UsageError, match=r"steps in C\+\+, many games at once, where no wrapper of gymnasium's fits"):
        make_vector_env("Pong", 1, env_kwargs={"wrappers": [HERE + "Add"]})


def test_games_of_several_agents_are_wrapped_too() -> None:
    with pytest.raises(ConfigError, match=r"making tests.rl.envs.test_wrappers:Game .* raised KeyError: 'game'"):
        make_game("rlplat.rl.envs.diagnostic_multi_agent:Rendezvous", {"wrappers": [HERE + "Game"]})


@pytest.mark.parametrize("wrappers", ["./w.py:W", ["./w.py:W"], [{"./w.py:W": {"a": 1}}]])
def test_their_files_travel_with_the_run(wrappers: Any) -> None:
    assert names_in({"env": "CartPole-v1", "env_kwargs": {"wrappers": wrappers}}) == [
        "CartPole-v1",
        "./w.py:W",
    ]
