"""Which copy an environment is, and how long it may take."""

from __future__ import annotations

import multiprocessing
import subprocess
import time
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest

import rlplat
from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.errors import EnvError, UsageError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs.check import check_env, preflight
from rlplat.rl.envs.copies import Copies, copy_index, worker_index
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import Array
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from tests.patience import soon

SETTINGS = PPOConfig(env="x:y", num_rollout_workers=2, num_envs_per_worker=3).model_dump()


class Numbered(gym.Env):
    """Observation: the numbers given to its constructor, asked for there and in reset, and its worker's."""

    observation_space = gym.spaces.Box(-1.0, 1e7, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, copy_index: int = -1, slow_s: float = 0.0, slow_reset_s: float = 0.0) -> None:
        self.given, self.asked = copy_index, globals()["copy_index"]()
        self.slow_s, self.slow_reset_s = slow_s, slow_reset_s

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        time.sleep(self.slow_reset_s)
        numbers = self.given, self.asked, copy_index(), worker_index()
        return np.array(numbers, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        time.sleep(self.slow_s)
        return np.zeros(4, np.float32), 0.0, False, True, {}


NUMBERED = f"{__name__}:Numbered"


def test_every_copy_that_lives_at_the_same_time_has_a_number_of_its_own() -> None:
    seen: list[int] = []
    for role, worker, num in (
        ("rollout", 0, 3),
        ("rollout", 1, 3),
        ("evaluation", 0, 8),
        ("video", 0, 1),
        ("check", 0, 1),
    ):
        copies = Copies.of(SETTINGS, role, worker)  # type: ignore[arg-type]
        with make_vector_env(NUMBERED, num, copies=copies) as env:
            rows = env.reset()
            assert (rows[:, 0] == rows[:, 1]).all() and (rows[:, 0] == rows[:, 2]).all()
            assert (env.step(np.zeros(num, np.int64)).obs[:, 2] == rows[:, 2]).all(), "as in the reset before"
            seen += rows[:, 0].astype(int).tolist()
    assert seen == list(range(16))


def test_a_constructor_of_a_registered_environment_is_told_too_and_a_given_number_stays() -> None:
    gym.register("Numbered-v0", NUMBERED)
    try:
        with make_vector_env("Numbered-v0", 2, copies=Copies(5)) as env:
            assert env.reset()[:, 0].tolist() == [5, 6]
        with make_vector_env("Numbered-v0", 2, env_kwargs={"copy_index": 9}, copies=Copies(5)) as env:
            assert env.reset()[:, :2].tolist() == [[9, 5], [9, 6]]
    finally:
        del gym.registry["Numbered-v0"]


@pytest.mark.process
def test_workers_and_evaluation_tell_theirs() -> None:
    class Looked(RolloutWorker):
        def first(self) -> Array:
            return np.array(self._obs)

    rlplat.init(num_cpus=2)
    try:
        settings = SETTINGS | {"env": NUMBERED, "vectorization": "async"}
        actors = [rlplat.remote(Looked).remote(settings, index, 0) for index in range(2)]
        rows = np.concatenate(rlplat.get([actor.first.remote() for actor in actors]))
    finally:
        rlplat.shutdown()
    assert rows[:, 2].tolist() == [0, 1, 2, 3, 4, 5] and rows[:, 3].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_step_and_a_reset_have_limits_of_their_own() -> None:
    slow_reset = {"slow_reset_s": 0.5}
    with make_vector_env(NUMBERED, 2, env_kwargs=slow_reset, step_timeout_s=0.2, reset_timeout_s=30) as env:
        env.reset()
        env.step(np.zeros(2, np.int64))  # in which both are reset
    with make_vector_env(NUMBERED, 1, env_kwargs=slow_reset, step_timeout_s=30, reset_timeout_s=0.2) as env:
        with pytest.raises(EnvError, match=r"reset\(\) took longer than the limit of 0.2 s.*--env-reset-timeout-s"):
            env.reset()
    with make_vector_env(NUMBERED, 1, env_kwargs={"slow_s": 0.5}, step_timeout_s=0.2, reset_timeout_s=30) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"step\(\) took longer than the limit of 0.2 s.*--env-step-timeout-s"):
            env.step(np.zeros(1, np.int64))


def test_the_settings_hold_from_the_check_to_the_evaluation() -> None:
    kwargs = {"slow_reset_s": 0.4}
    limits = {"env_step_timeout_s": 0.2, "num_rollout_workers": 0, "num_envs_per_worker": 1}
    with pytest.raises(UsageError, match=r"longer than the limit of 0.2 s.*--env-reset-timeout-s"):
        preflight(AlgorithmConfig(env=NUMBERED, env_kwargs=kwargs, **limits))
    assert not check_env(NUMBERED, kwargs, steps=1, step_timeout_s=0.2).is_sound
    limits["env_reset_timeout_s"] = 30
    sizes = {"rollout_length": 2, "minibatch_size": 2, "evaluation": {"episodes": 1}}
    with PPO(PPOConfig(env=NUMBERED, env_kwargs=kwargs, **sizes, **limits)) as ppo:
        ppo.step()
        ppo.evaluate(1)


def test_the_flags_of_check_env_are_settings_as_well() -> None:
    config = PPOConfig.model_validate({"env": "x:y", "step_timeout_s": 300})
    assert config.env_step_timeout_s == 300 and config.env_reset_timeout_s is None


def _wait() -> None:
    time.sleep(600)


class Starts(Numbered):
    """Starts a process with multiprocessing and one without, and leaves both behind."""

    def __init__(self) -> None:
        super().__init__()
        self.processes = multiprocessing.Process(target=_wait), subprocess.Popen(["sleep", "600"])
        self.processes[0].start()

    def reset(self, **arguments: Any) -> tuple[Array, dict[str, Any]]:
        obs, info = super().reset(**arguments)
        obs[:2] = [process.pid for process in self.processes]
        return obs, info


@pytest.mark.process
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_processes_that_an_environment_starts_end_with_it(ends: str) -> None:
    env = make_vector_env(Starts, 2, vectorization="async", step_timeout_s=3)
    pids = env.reset()[:, :2].astype(int).ravel().tolist()
    assert all(map(psutil.pid_exists, pids))
    if ends == "killed":
        env._raw.envs.processes[1].kill()
        with pytest.raises(EnvError, match="died"):
            env.step(np.zeros(2, np.int64))
    env.close()
    assert soon(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))


def test_random_start_steps_spread_the_copies_over_their_episodes() -> None:
    with make_vector_env(Timed, 8, seed=1) as env, make_vector_env(Timed, 8, seed=1) as other:
        env.reset(), other.reset()
        first = env.wander(50, seed=3)[:, 0]
        assert (first == other.wander(50, seed=3)[:, 0]).all()
        assert len(set(first.tolist())) > 3 and first.max() < 20
        for _ in range(20):
            step = env.step(np.zeros(8, np.int64))
        assert (step.obs[:, 0] == first).all(), "each has ended once"
        whole = int((first == 0).sum())
        assert [episode.length for episode in env.pop_episodes()] == [20] * whole
        for _ in range(20):
            env.step(np.zeros(8, np.int64))
        assert [episode.length for episode in env.pop_episodes()] == [20] * 8


@pytest.mark.process
def test_processes_have_the_limit_of_all_random_start_steps() -> None:
    slow = {"env_kwargs": {"slow_s": 0.05}, "vectorization": "async", "step_timeout_s": 0.3}
    with make_vector_env(Numbered, 2, **slow) as env:
        env.reset()
        env.wander(40, seed=3)  # more than six steps, in one of the two


def test_random_start_steps_are_a_setting_of_a_run() -> None:
    sizes = {"num_envs_per_worker": 4, "rollout_length": 2, "minibatch_size": 8, "num_rollout_workers": 0}
    with PPO(PPOConfig(env=Timed, random_start_steps=50, **sizes)) as ppo:
        assert ppo.step().env_steps == 8
    with PPO(PPOConfig(env="CartPole-v1", random_start_steps=5, **sizes)) as ppo:
        ppo.step()
    with (
        make_vector_env("CartPole-v1", 2) as env,
        pytest.raises(UsageError, match="cannot be stepped one by one"),
    ):
        env.reset()
        env.wander(5, seed=0)


class Timed(Numbered):
    """Observes its time; ends after 20 steps."""

    def reset(self, **arguments: Any) -> tuple[Array, dict[str, Any]]:
        super().reset(**arguments)
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full(4, self.t, np.float32), 1.0, False, self.t == 20, {}
