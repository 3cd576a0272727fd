"""Who decides for whom, and the one message where that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.errors import ConfigError, EnvError, EnvNotFound
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.multi_agent.check import check_any_env
from rlplat.rl.multi_agent.games import ParallelGame, TurnGame, is_multi_agent, make_game
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, MultiAgentPlan, make_plan, plan_multi_agent
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.rl.multi_agent.fixture_games import Dying

SMALL = SpaceSpec(ObsSpec("vector", (3,), "float32"), ActionSpec("discrete", n=2))
LARGE = SpaceSpec(ObsSpec("vector", (5,), "float32"), ActionSpec("discrete", n=2))
PREY_AND_HUNTERS = {"hunter_0": LARGE, "hunter_1": LARGE, "prey": SMALL}
SIDES = {"x": SMALL, "y": SMALL}
RUN_POLICY = PolicyConfig().model_dump()


def plan_of(spaces: dict[str, SpaceSpec], **config: Any) -> MultiAgentPlan:
    return make_plan(MultiAgentConfig.model_validate(config), spaces, run_policy=RUN_POLICY)


def test_agents_with_equal_spaces_share_one_policy() -> None:
    plan = plan_of(SIDES)
    assert plan.mapping == {"x": "shared", "y": "shared"} and plan.trained == ("shared",)
    assert str(plan) == f"shared (x, y): {SMALL}"


def test_a_line_says_what_the_returns_are() -> None:
    assert plan_of(SIDES).about_returns() == (
        "return and evaluation are the mean over the 2 agents of a game, 0 to the end in a zero-sum game, as one "
        "policy plays all sides; an agent's own return is the metric agent/x/episode_return_mean"
    )
    assert "zero-sum" not in plan_of(PREY_AND_HUNTERS).about_returns()
    assert "the sum over the 3 agents" in plan_of(PREY_AND_HUNTERS, episode_return="sum").about_returns()


def test_kinds_of_agents_get_a_policy_each() -> None:
    plan = plan_of(PREY_AND_HUNTERS)
    assert plan.mapping == {"hunter_0": "hunter_0", "hunter_1": "hunter_0", "prey": "prey"}
    assert plan.policies["hunter_0"].agents == ("hunter_0", "hunter_1")


def test_names_win_over_patterns_and_patterns_over_later_ones() -> None:
    plan = plan_of(
        {"a_0": SMALL, "a_1": SMALL, "b_0": SMALL, "c": SMALL},
        mapping={"a_*": "first", "*_0": "second", "*": "rest", "a_1": "exact"},
    )
    assert plan.mapping == {"a_0": "first", "a_1": "exact", "b_0": "second", "c": "rest"}


def test_settings_of_a_policy() -> None:
    run = {"seed": 7, "policy": RUN_POLICY, "stop": {"env_steps": 900, "wall_s": None}, "discount": 0.9}
    plan = plan_of(
        PREY_AND_HUNTERS,
        policies={"pack": {"policy": {"hidden_sizes": [16]}}, "prey": {}},
        mapping={"hunter_*": "pack", "prey": "prey"},
    )
    pack, prey = plan.settings(run, "pack"), plan.settings(run, "prey")
    assert pack["policy"] == RUN_POLICY | {"hidden_sizes": [16]} and prey["policy"] == RUN_POLICY
    assert pack["seed"] == 7 and prey["seed"] not in (7, plan.settings(run | {"seed": 8}, "prey")["seed"])
    assert (pack["stop"]["env_steps"], prey["stop"]["env_steps"]) == (600, 300)
    assert pack["discount"] == 0.9 and run["stop"]["env_steps"] == 900


def test_sides_move_on_from_copy_to_copy() -> None:
    plan = plan_of(
        {"x": SMALL, "y": SMALL, "z": SMALL},
        policies={"main": {}, "old": {"trained": False}},
        mapping={"x": "main", "*": "old"},
        self_play={"opponent": "old"},
    )
    played = [[plan.policy_of(copy, agent) for agent in "xyz"] for copy in range(4)]
    assert played[0] == played[3] == ["main", "old", "old"]
    assert played[1] == ["old", "old", "main"] and played[2] == ["old", "main", "old"]


@pytest.mark.parametrize(
    ("spaces", "config", "message"),
    [
        (
            PREY_AND_HUNTERS,
            {"mapping": {"*": "all"}},
            r"policy 'all' cannot be shared by 'hunter_0' \(Box\(5\).*\) and 'prey' \(Box\(3\).*two policies",
        ),
        (SIDES, {"mapping": {"x": "main"}}, "no policy decides for 'y': .* has only x; add it, or"),
        (
            SIDES,
            {"mapping": {"x": "main", "why": "main"}},
            "multi_agent.mapping.why fits no agent.*agents: x, y",
        ),
        (
            SIDES,
            {"policies": {"main": {}}, "mapping": {"*": "mian"}},
            "names the policy 'mian', which multi_agent.policies lacks; did you mean 'main'",
        ),
        (SIDES, {"policies": {"a": {}, "b": {}}}, "has a, b, but multi_agent.mapping does not say"),
        (SIDES, {"policies": {"a": {}, "b": {}}, "mapping": {"*": "a"}}, "policies.b has no agent"),
        (SIDES, {"policies": {"a/b": {}}}, "'a/b' cannot be the name of a policy"),
        (SIDES, {"policies": {"a": {"trained": False}}}, "no policy of a is trained"),
        (
            SIDES,
            {"policies": {"a": {"policy": {"hidden_size": [3]}}}},
            r"multi_agent.policies.a.policy.hidden_size: .*did you mean 'hidden_sizes'",
        ),
        (
            SIDES,
            {"self_play": {"opponent": "old"}},
            "opponent is 'old', which is no policy.*there are: shared",
        ),
        (SIDES, {"self_play": {"opponent": "shared"}}, "'shared' is trained itself"),
        (
            SIDES,
            {
                "policies": {"m": {}, "o": {"trained": False, "policy": {"hidden_sizes": [8]}}},
                "mapping": {"x": "m", "y": "o"},
                "self_play": {"opponent": "o"},
            },
            r"networks must be equal, but multi_agent.policies.m.policy is {} and that of o {'hidden_sizes': \[8\]}",
        ),
        (
            {"x": SMALL, "y": SMALL, "z": SMALL},
            {
                "policies": {"m": {}, "n": {}, "o": {"trained": False}},
                "mapping": {"x": "m", "y": "n", "z": "o"},
                "self_play": {"opponent": "o"},
            },
            "multi_agent.self_play.learner is not given; it is one of the trained policies: m, n",
        ),
        (
            {"x": SMALL, "y": SMALL, "z": LARGE},
            {
                "policies": {"m": {}, "n": {}, "o": {"trained": False}},
                "mapping": {"x": "m", "y": "o", "z": "n"},
                "self_play": {"opponent": "o", "learner": "m"},
            },
            "swap_sides needs equal spaces, but those of 'n' are not those of 'm'",
        ),
    ],
)
def test_what_does_not_fit_is_said(spaces: dict[str, SpaceSpec], config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(spaces, **config)


def test_opponents_have_the_spaces_of_the_learner() -> None:
    from rlplat.errors import UsageError

    with pytest.raises(UsageError, match=r"policy 'm' has observations Box\(5\).*but its opponent 'o' has Box\(3\)"):
        plan_of(
            PREY_AND_HUNTERS,
            policies={"m": {}, "o": {"trained": False}},
            mapping={"hunter_*": "m", "prey": "o"},
            self_play={"opponent": "o", "swap_sides": False},
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pettingzoo.classic.tictactoe_v3", True),
        ("tests.rl.multi_agent.fixture_games:Turns", True),
        ("tests.rl.multi_agent.fixture_games:Dying", True),
        ("CartPole-v1", False),
        ("Pong", False),
        ("tests.rl.fixture_envs:ScriptedEnv", False),
        ("tests.rl.multi_agent.test_policy_map:make_turns", True),
    ],
)
def test_names_of_environments_with_several_agents(name: str, expected: bool) -> None:
    assert is_multi_agent(name, {}) is expected


def make_turns() -> Any:
    from tests.rl.multi_agent.fixture_games import Turns

    return Turns()


def test_rewards_with_an_axis_are_left_to_who_reads_them() -> None:
    """numpy 2.4 makes no float of them, and `step() raised` was said of the environment."""

    class WithAxis(Dying):
        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = super().step(actions)
            return obs, {agent: np.array([reward]) for agent, reward in rewards.items()}, *rest

    game = ParallelGame(WithAxis(), "WithAxis")
    game.reset()
    assert game.step({"a": 0, "b": 0, "c": 0}).rewards == {"a": 11.0, "b": 21.0, "c": 31.0}


def test_parallel_and_turn_based_are_told_apart() -> None:
    here = "tests.rl.multi_agent.fixture_games"
    assert isinstance(make_game(f"{here}:Dying", {}), ParallelGame)
    assert isinstance(make_game(f"{here}:Turns", {}), TurnGame)
    game = make_game("pettingzoo.classic.tictactoe_v3", {})
    assert isinstance(game, TurnGame) and game.agents == ("player_1", "player_2")
    game.close()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("pettingzoo.classic.tictactoe_v9", EnvNotFound, "no module 'pettingzoo.classic.tictactoe_v9'"),
        ("pettingzoo.utils.env", EnvNotFound, "has neither parallel_env nor env; name the factory"),
        ("builtins:dict", EnvError, "made a dict, which is neither a pettingzoo.ParallelEnv nor"),
        ("CartPole-v1", EnvNotFound, "environment of one agent"),
    ],
)
def test_names_that_are_none(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_game(name, {})


def test_an_algorithm_for_one_agent_says_so() -> None:
    settings = {"env": "tests.rl.multi_agent.fixture_games:Turns", "env_kwargs": {}, "policy": RUN_POLICY}
    with pytest.raises(ConfigError, match="several agents; ppo and dqn learn with those"):
        plan_multi_agent(settings)


def test_games_have_no_vectorization() -> None:
    settings = {"env": "tests.rl.multi_agent.fixture_games:Turns", "env_kwargs": {}, "multi_agent": {}}
    with pytest.raises(ConfigError, match="one after the other: omit vectorization"):
        plan_multi_agent(settings | {"vectorization": "async"})


def test_different_spaces_by_agent() -> None:
    settings = {
        "env": "tests.rl.multi_agent.fixture_games:Different",
        "env_kwargs": {},
        "policy": RUN_POLICY,
        "multi_agent": {},
        "vectorization": "auto",
    }
    plan = plan_multi_agent(settings)
    assert plan is not None and plan.mapping == {"x": "x", "y": "y"}
    with pytest.raises(ConfigError, match=r"cannot be shared by 'x' \(Dict\(observation: Box\(2\)"):
        plan_multi_agent(settings | {"multi_agent": {"mapping": {"*": "both"}}})


class Broken(Dying):
    """`broken`: the method that raises."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if self.broken == "reset":
            raise ValueError("no licence")
        return super().reset(seed, options)

    def close(self) -> None:
        if self.broken == "close":
            raise NotImplementedError


def test_what_a_game_raises_is_named() -> None:
    """The bare exception, without a word about whose it was, ended the check; one of close() ended runs too."""
    report = str(check_any_env(f"{__name__}:Broken", {"broken": "reset"}, steps=5))
    assert "reset() raised ValueError: no licence (at " in report
    assert check_any_env(f"{__name__}:Broken", {"broken": "close"}, steps=5).is_sound
