"""A vector environment as `env=`; what is none of gymnasium's; environments that do not end."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.errors import EnvError, UsageError
from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array
from rlplat.rl.run.agent_spaces import agent_spaces

SMALL: dict[str, Any] = {"num_rollout_workers": 0, "rollout_length": 8, "minibatch_size": 8}


def three(render_mode: str | None = None) -> Any:
    return gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")


def as_many(num_envs: int) -> Any:
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


@pytest.mark.parametrize("env", [three, three(), as_many])
def test_it_is_trained_on_and_evaluated_as_it_is(env: Any) -> None:
    with PPO(PPOConfig(env=env, num_envs_per_worker=3, **SMALL)) as ppo:
        result = ppo.step()
        assert result.env_steps <= 24, "a row that only resets is no step"
        assert len(ppo.evaluate(2)) == 2
        assert agent_spaces(env, {}).spec == ppo.spaces


def test_another_number_is_refused_with_the_setting() -> None:
    with pytest.raises(
        UsageError,
        match=r"of 3, and num_envs_per_worker is 8: .*--num-envs-per-worker 3",
    ):
        PPO(PPOConfig(env=three, **SMALL))
    with pytest.raises(UsageError, match="is a vector environment already: leave vectorization at 'auto'"):
        make_vector_env(three, 3, vectorization="async")
    report = check_env(three, steps=20)
    assert report.is_sound and report.steps == 60 and "num_envs_per_worker" in str(report)


class ByAgent(gym.Env):
    observation_space = gym.spaces.Dict({agent: gym.spaces.Box(-1, 1, (2,), np.float32) for agent in "ab"})
    action_space = gym.spaces.Dict({agent: gym.spaces.Discrete(2) for agent in "ab"})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {agent: np.zeros(2, np.float32) for agent in "ab"}, {}

    def step(self, action: Any) -> tuple[Any, ...]:
        ends = {"a": False, "b": False, "__all__": False}
        return self.reset()[0], {"a": 1.0, "b": 0.0}, ends, ends, {}


class MultiAgentEnv:
    """As RLlib's is called."""

    def reset(self, **arguments: Any) -> Any: ...

    def step(self, actions: Any) -> Any: ...


class OfRLlib(MultiAgentEnv): ...


@pytest.mark.parametrize("env", [ByAgent, OfRLlib])
def test_dicts_by_agent_are_named_with_the_cure(env: Any) -> None:
    assert "pettingzoo.ParallelEnv" in str(check_env(env, steps=5))
    with pytest.raises(UsageError, match=r"pettingzoo\.ParallelEnv"):
        PPO(PPOConfig(env=env, **SMALL))


def test_several_agents_are_named_and_checked_from_python_too() -> None:
    """Their spaces are methods, which were called no spaces."""
    pytest.importorskip("pettingzoo")
    from rlplat.rl.envs.diagnostic_multi_agent import Rendezvous
    from rlplat.rl.multi_agent.check import check_any_env

    assert "several agents" in str(check_env(Rendezvous, steps=5)) and "space" not in check_env(Rendezvous).lines[0]
    for env in (Rendezvous, lambda: Rendezvous()):
        report = check_any_env(env, steps=20)
        assert report.is_sound and report.steps == 20 and "agents" in report.head


def test_a_vector_environment_of_stable_baselines3_is_named() -> None:
    class VecEnv:
        num_envs = 2
        step_async = step_wait = reset = step = None

    with pytest.raises(EnvError, match=r"Stable-Baselines3.*env=lambda: MyEnv\(\)"):
        make_vector_env(VecEnv, 2)


class Endless(gym.Env):
    """Ends by chance only, or never."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, chance: float = 0.0) -> None:
        self.chance = chance

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        return np.zeros(2, np.float32), 1.0, self.np_random.random() < self.chance, False, {}


def test_an_environment_without_an_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    never = str(check_env(Endless, steps=1500))
    assert "warning: no episode ended in 1500 random steps and there is no time limit" in never
    seldom = str(check_env(Endless, {"chance": 0.01}, steps=1500))
    assert "warning: the longest of" in seldom and "there is no time limit" in seldom
    config = PPOConfig(env=Endless, **SMALL | {"num_envs_per_worker": 1, "rollout_length": 900, "minibatch_size": 900})
    with caplog.at_level(logging.WARNING, "rlplat.start"), PPO(config) as ppo:
        for _ in range(5):
            ppo.step()
    [said] = caplog.messages
    assert "no episode has ended for 2,700 steps of each environment" in said and "TimeLimit" in said


class OldStep(Endless):
    def step(self, action: Any) -> tuple[Any, ...]:
        return super().step(action)[:4]


def test_a_forgotten_info_is_named() -> None:
    assert "the info dict is missing; return obs, reward, terminated, truncated, {}" in str(check_env(OldStep, steps=5))


class Five(gym.vector.VectorEnv[Any, Any, Any]):
    """Episodes of five steps. `masked`: action 1 alone is legal. `stays`: what has ended does not begin again."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int = 2, *, masked: bool = False, stays: bool = False) -> None:
        self.num_envs, self.masked, self.stays = num_envs, masked, stays
        box = gym.spaces.Box(0, 99, (1,), np.float32)
        mask = gym.spaces.MultiBinary(2)
        self.single_observation_space = gym.spaces.Dict({"x": box, "action_mask": mask}) if masked else box
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.age = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.age = np.zeros_like(self.age)
        return self._observed(), {}

    def step(self, actions: Any) -> Any:
        has_ended = self.age >= 5
        assert not self.masked or (actions[~has_ended[:, 0]] == 1).all(), f"illegal: {actions}"
        self.age = np.where(has_ended & (not self.stays), 0, self.age + 1).astype(np.float32)
        ends = np.zeros(self.num_envs, np.bool_)
        return self._observed(), self.age[:, 0], ends, self.age[:, 0] >= 5, {}

    def _observed(self) -> Any:
        mask = np.where(self.age >= 5, 0, np.array([[0, 1]])).astype(np.int8)  # empty where an episode has ended
        return {"x": self.age, "action_mask": mask} if self.masked else self.age


def test_the_check_takes_no_action_that_a_mask_forbids() -> None:
    report = check_env(lambda num_envs: Five(num_envs, masked=True), steps=40)
    assert report.is_sound and report.episodes > 4, str(report)


class InInfo(Endless):
    mask = {"action_mask": np.array([0, 1], np.int8)}

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**arguments)[0], self.mask

    def step(self, action: Any) -> tuple[Any, ...]:
        return (*super().step(action)[:4], self.mask)


class ByMethod(Endless):
    def action_masks(self) -> Any:
        return np.array([False, True])


@pytest.mark.parametrize("env", [InInfo, ByMethod])
def test_a_mask_that_a_vector_environment_cannot_bring_is_told(env: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its policies took illegal actions without a word."""
    assert "mask(2)" in check_env(env, steps=16).head
    with caplog.at_level(logging.WARNING), PPO(PPOConfig(env=env, num_envs_per_worker=2, **SMALL)) as ppo:
        ppo.step()
    assert "action mask" not in caplog.text
    given = gym.vector.SyncVectorEnv([env, env])
    with caplog.at_level(logging.WARNING), PPO(PPOConfig(env=given, num_envs_per_worker=2, **SMALL)) as ppo:
        ppo.step()
    assert "the action mask is not read: of a vector environment" in caplog.text


def test_copies_that_do_not_begin_again_are_told() -> None:
    """Every step after the first end would be an episode of its own."""
    assert "begin again" not in str(check_env(lambda num_envs: Five(num_envs), steps=40))
    report = check_env(lambda num_envs: Five(num_envs, stays=True), steps=16)
    assert [finding.is_told for finding in report.findings if "do not begin again" in finding.text] == [True]


class Counts(gym.Env[Any, Any]):
    """Episodes of three steps; all observations in one array, unless `copies`."""

    def __init__(self, copies: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0, 99, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.obs, self.copies = np.zeros(1, np.float32), copies

    def observe(self, steps: int) -> Any:
        self.obs[0] = steps
        return self.obs.copy() if self.copies else self.obs

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observe(0), {}

    def step(self, action: Any) -> Any:
        steps = int(self.obs[0]) + 1
        return self.observe(steps), 1.0, False, steps == 3, {}


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
@pytest.mark.parametrize("copies", [True, False])
def test_last_observations_that_were_overwritten_are_told(mode: Any, copies: bool) -> None:
    """gymnasium's SAME_STEP keeps the array that the environment gave, into which reset() writes."""
    many = gym.vector.SyncVectorEnv([lambda: Counts(copies)] * 2, autoreset_mode=mode)
    is_lost = mode.name == "SAME_STEP" and not copies
    assert ("into one array" in str(check_env(many, steps=20))) == is_lost


class ResetsAll(Five):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.DISABLED}
    lengths = np.array([[3.0], [5.0]])

    def step(self, actions: Any) -> Any:
        self.age = self.age + 1
        ends = (self.age >= self.lengths)[:, 0]
        return self.age, np.ones(2), ends, np.zeros_like(ends), {}


class ResetsThose(ResetsAll):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask", np.ones(2, np.bool_))
        self.age = np.where(mask[:, None], 0, self.age).astype(np.float32)
        return self.age, {}


def test_a_reset_of_others_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The longer episodes never came to their end, and nothing said so."""
    for kind, is_told in ((ResetsThose, False), (ResetsAll, True)):
        with make_vector_env(kind, 2) as env:
            env.reset()
            for _ in range(9):
                env.step(np.zeros(2, np.int64))
            assert sum(episode.length == 5 for episode in env.pop_episodes()) == (0 if is_told else 1)
        assert capsys.readouterr().err.count("that the mask leaves out") == is_told
        assert ("that the mask leaves out" in str(check_env(kind, steps=20))) == is_told


def test_infos_that_are_a_list_are_refused_with_the_wrapper() -> None:
    many = gym.wrappers.vector.DictInfoToList(gym.vector.SyncVectorEnv([Counts] * 2))
    with pytest.raises(EnvError, match=r"reset\(\) gave the infos as a list.*DictInfoToList"):
        make_vector_env(many, 2).reset()


def test_a_registered_vector_implementation_is_the_same_task() -> None:
    """Others may register one that brings no mask, sees something else or makes another number."""

    def cart_poles(num_envs: int, **kwargs: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")

    def masks(num_envs: int) -> Any:
        return gym.vector.SyncVectorEnv([InInfo] * num_envs)

    def two(num_envs: int) -> Any:
        return gym.vector.SyncVectorEnv([Endless] * 2)

    for env, many, said in (
        (Endless, cart_poles, r"observations Box\(2\) float32, but its vector implementation has Box\(4\)"),
        (InInfo, masks, r"Dict\(obs, action_mask\), but its vector implementation has Box\(2\)"),
        (Endless, two, "its vector implementation made 2 environments, asked for 3"),
    ):
        gym.register("TwoForms-v0", entry_point=env, vector_entry_point=many)
        try:
            with pytest.raises(UsageError, match=f"{said}.*set vectorization to 'sync'"):
                make_vector_env("TwoForms-v0", 3)
            make_vector_env("TwoForms-v0", 3, vectorization="sync").close()
            make_vector_env("TwoForms-v0", 2).close() if many is two else None
        finally:
            del gym.registry["TwoForms-v0"]
