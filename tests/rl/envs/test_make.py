"""Vector environments: the autoreset modes, truncation, episodes, actions, seeds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.envs.guard import GuardedEnv
from rlplat.rl.envs.loops import SyncLoop
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.names import has_time_limit
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.interfaces import Episode
from tests.rl.fixture_envs import Ending, ScriptedEnv

FIXTURES = "tests.rl.fixture_envs"
FAULTY = f"{FIXTURES}:FaultyEnv"
MODES = ["SAME_STEP", "NEXT_STEP", "DISABLED", "our loop"]


def scripted(mode: str, scripts: list[tuple[Ending, ...]]) -> VectorEnv:
    if mode == "our loop":
        loop = SyncLoop([GuardedEnv(ScriptedEnv(s), "Scripted", i, len(scripts)) for i, s in enumerate(scripts)])
        return VectorEnv(loop, "Scripted", limits=NO_LIMITS)
    makers = [lambda script=script: ScriptedEnv(script) for script in scripts]
    raw = SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])
    return VectorEnv(raw, "Scripted", limits=NO_LIMITS)


def transitions(env: VectorEnv, count: int) -> tuple[list[list[tuple[Any, ...]]], list[list[Episode]]]:
    """What is learned from: per environment, the first `count` valid (obs, action, reward, terminated, truncated, true
    next obs), and its episodes. Actions depend on the observation, as a policy's do."""
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(env.num_envs)]
    episodes: list[list[Episode]] = [[] for _ in range(env.num_envs)]
    obs = env.reset().copy()
    while min(map(len, rows)) < count:
        actions = (obs[:, 0] + 2 * obs[:, 1]).astype(np.int64) % 4
        step = env.step(actions)
        finished = iter(env.pop_episodes())
        for b in range(env.num_envs):
            done = bool(step.terminated[b] or step.truncated[b])
            if done:
                assert step.final_obs is not None
                episodes[b].append(next(finished))
            if step.valid[b]:
                successor = step.final_obs[b] if done else step.obs[b]  # type: ignore[index]
                flags = bool(step.terminated[b]), bool(step.truncated[b])
                rows[b].append((tuple(obs[b]), int(actions[b]), float(step.rewards[b]), *flags, tuple(successor)))
            else:
                assert not done and step.rewards[b] == 0.0
        assert next(finished, None) is None
        obs = step.obs.copy()
    env.close()
    return [row[:count] for row in rows], episodes


ending = st.tuples(st.integers(1, 4), st.booleans(), st.booleans()).map(
    lambda e: e if e[1] or e[2] else (e[0], True, False)
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(ending, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3))
def test_all_modes_give_the_same_transitions(scripts: list[tuple[Ending, ...]]) -> None:
    expected_rows, expected_episodes = transitions(scripted("our loop", scripts), 15)
    for mode in MODES[:3]:
        rows, episodes = transitions(scripted(mode, scripts), 15)
        assert rows == expected_rows
        for b in range(len(scripts)):
            both = min(len(episodes[b]), len(expected_episodes[b]))
            assert episodes[b][:both] == expected_episodes[b][:both]


def test_the_transitions_are_those_that_were_scripted() -> None:
    rows, episodes = transitions(scripted("our loop", [((2, True, False), (1, False, True))]), 4)
    assert rows == [
        [
            ((0, 0, -1), 0, 1.0, False, False, (0, 1, 0)),
            ((0, 1, 0), 2, 2.0, True, False, (0, 2, 2)),
            ((1, 0, -1), 1, 11.0, False, True, (1, 1, 1)),
            ((2, 0, -1), 2, 21.0, False, False, (2, 1, 2)),
        ]
    ]
    assert episodes == [[Episode(3.0, 2), Episode(11.0, 1)]]


@pytest.mark.parametrize("mode", MODES)
def test_termination_wins_over_truncation(mode: str) -> None:
    env = scripted(mode, [((1, True, True),), ((1, False, True),), ((1, True, False),)])
    env.reset()
    step = env.step(np.zeros(3, np.int64))
    assert step.terminated.tolist() == [True, False, True]
    assert step.truncated.tolist() == [False, True, False]


def test_next_step_shows_the_last_observation_and_marks_the_reset_as_invalid() -> None:
    env = scripted("NEXT_STEP", [((1, True, False),), ((9, True, False),)])
    env.reset()
    step = env.step(np.zeros(2, np.int64))
    assert step.valid.all() and step.final_obs is step.obs
    step = env.step(np.zeros(2, np.int64))
    assert step.valid.tolist() == [False, True] and step.final_obs is None
    assert step.obs[0].tolist() == [1, 0, -1] and step.rewards.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED", "our loop"])
def test_other_modes_return_the_reset_observation_at_once(mode: str) -> None:
    env = scripted(mode, [((1, True, False),), ((9, True, False),)])
    env.reset()
    step = env.step(np.array([3, 3]))
    assert step.valid.all() and step.final_obs is not None
    assert step.obs.tolist() == [[1, 0, -1], [0, 1, 3]]
    assert step.final_obs[0].tolist() == [0, 1, 3]


def test_a_reset_in_the_middle_forgets_what_had_begun() -> None:
    env = scripted("NEXT_STEP", [((2, True, False),)])
    env.reset()
    env.step(np.zeros(1, np.int64))
    env.reset()
    step = env.step(np.zeros(1, np.int64))
    assert step.valid.all()
    env.step(np.zeros(1, np.int64))
    assert env.pop_episodes() == [Episode(11.0 + 12.0, 2)]
    assert env.pop_episodes() == []


def test_a_reset_right_after_an_end_needs_no_reset_step() -> None:
    env = scripted("NEXT_STEP", [((1, True, False),)])
    env.reset()
    env.step(np.zeros(1, np.int64))
    env.reset()
    assert env.step(np.zeros(1, np.int64)).valid.all()


def test_what_a_step_looks_like() -> None:
    env = make_vector_env("CartPole-v1", 3)
    env.reset()
    step = env.step(np.array([0, 1, 0]))
    assert step.obs.shape == (3, 4) and step.obs.dtype == np.float32
    assert [a.dtype for a in step[1:5]] == [np.float32, np.bool_, np.bool_, np.bool_]
    assert all(a.shape == (3,) for a in step[1:5])
    env.close()


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_cartpole_returns_equal_lengths_and_the_limit_truncates(vectorization: Any) -> None:
    """+1 per step: the return says whether reset steps were counted."""
    with make_vector_env("CartPole-v1", 4, vectorization=vectorization, env_kwargs={"max_episode_steps": 12}) as env:
        env.reset()
        rng = np.random.default_rng(0)
        truncated = 0
        for _ in range(100):
            truncated += env.step(rng.integers(2, size=4)).truncated.sum()
        episodes = env.pop_episodes()
        assert len(episodes) >= 4 * 100 // 13 - 4
        assert all(e.episode_return == e.length <= 12 for e in episodes)
        assert 0 < truncated <= sum(e.length == 12 for e in episodes)
        assert env.facts()["max_episode_steps"] == 12


@pytest.mark.parametrize("vectorization", ["native", "sync"])
@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1"])
def test_the_limit_is_read_as_gymnasium_reads_it(name: str, vectorization: Any) -> None:
    """-1 is none: every step of the native ones was an end. None is the registered one."""

    def truncated(limit: Any, num_steps: int) -> int:
        with make_vector_env(name, 12, vectorization=vectorization, env_kwargs={"max_episode_steps": limit}) as env:
            env.reset()
            return int(sum(env.step(np.zeros(12, np.int64)).truncated.sum() for _ in range(num_steps)))

    assert truncated(-1, 6) == 0 and truncated(None, 6) == 0 and truncated(5, 6) == 12
    assert not has_time_limit(name, {"max_episode_steps": -1})
    with pytest.raises(UsageError, match="max_episode_steps is 0; it is at least 1, or -1 for no limit"):
        truncated(0, 1)


def test_which_implementation_is_taken() -> None:
    def facts(name: str, **options: Any) -> dict[str, Any]:
        with make_vector_env(name, 1, **options) as env:
            return env.facts()

    native = facts("CartPole-v1")
    assert (native["vectorization"], native["autoreset_mode"]) == ("native", "NEXT_STEP")
    assert facts("CartPole-v1", vectorization="sync")["autoreset_mode"] == "SAME_STEP"
    assert facts("Pendulum-v1")["vectorization"] == "sync"
    assert facts("Pendulum-v1", env_kwargs={"g": 1.0})["env_kwargs"] == {"g": 1.0}
    assert facts("Pendulum-v1", vectorization="native")["autoreset_mode"] == "SAME_STEP"
    with pytest.raises(UsageError, match="LunarLander-v3 has no vector implementation"):
        facts("LunarLander-v3", vectorization="native")
    with pytest.raises(UsageError, match="has no vector implementation"):
        facts(FAULTY, vectorization="native")
    with pytest.raises(UsageError, match="num_envs is 0"):
        make_vector_env("CartPole-v1", 0)


def test_box_actions_are_clipped_and_discrete_ones_start_where_the_space_does() -> None:
    with make_vector_env(f"{FIXTURES}:SeededEnv", 2) as env:
        env.reset()
        rewards = env.step(np.array([[-7.0, -7.0], [7.0, 7.0]], np.float32)).rewards
        assert rewards.tolist() == [-1.0, 701.0]  # a0 + 100*a1, a0 in [-1, 1], a1 in [0, inf]
        with pytest.raises(NonFiniteError, match=r"environment 1.*nan.*before step 2.*learning rate"):
            env.step(np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32))
    with make_vector_env(FAULTY, 1, env_kwargs={"fault": "raise", "at": 1}) as env:
        env.reset()
        with pytest.raises(EnvError, match="action 1: "):  # Discrete(3, start=-1): 2 -> 1
            env.step(np.array([2]))


@pytest.mark.process
def test_seeds() -> None:
    def first(seed: Any, num_envs: int = 3, vectorization: Any = "sync") -> np.ndarray:
        with make_vector_env(f"{FIXTURES}:SeededEnv", num_envs, seed=seed, vectorization=vectorization) as env:
            return env.reset()

    assert np.array_equal(first(1), first(1))
    assert np.array_equal(first(1), first(np.random.SeedSequence(1)))
    assert np.array_equal(first(1)[:2], first(1, num_envs=2))  # environment i does not depend on how many there are
    assert np.array_equal(first(1), first(1, vectorization="async"))
    assert len(np.unique(np.concatenate([first(1), first(2)]))) == 6
    children = np.random.SeedSequence(1).spawn(2)
    assert not np.array_equal(first(children[0]), first(children[1]))


@pytest.mark.parametrize("name", ["CartPole-v1", f"{FIXTURES}:SeededEnv"])
def test_reset_with_a_seed_repeats_and_without_one_goes_on(name: str) -> None:
    with make_vector_env(name, 2, seed=5) as env:
        first, second, again = env.reset(), env.reset(), env.reset(5)
    assert np.array_equal(first, again) and not np.array_equal(first, second)


@pytest.mark.process
def test_processes_give_the_same_transitions() -> None:
    scripts: list[tuple[Ending, ...]] = [((2, True, False), (3, False, True)), ((1, True, True),)]
    makers = [lambda script=script: ScriptedEnv(script) for script in scripts]
    raw = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context="fork")
    env = VectorEnv(raw, "Scripted", limits=NO_LIMITS)
    assert transitions(env, 8)[0] == transitions(scripted("our loop", scripts), 8)[0]


@pytest.mark.process
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_last_observation_outlives_a_reset_into_the_same_memory(vectorization: Any) -> None:
    with make_vector_env(f"{FIXTURES}:OneArrayEnv", 2, vectorization=vectorization) as env:
        env.reset()
        for _ in range(3):
            step = env.step(np.zeros(2, np.int64))
        assert step.truncated.all() and step.final_obs is not None
        assert step.final_obs.tolist() == [[3.0, 3.0]] * 2 and not step.obs.any()


@pytest.mark.process
def test_mujoco_leaves_no_log_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio")
    monkeypatch.chdir(tmp_path)
    with make_vector_env("HalfCheetah-v5", 1) as env:
        env.reset()
        assert env.step(np.full((1, 6), 5.0, np.float32)).obs.shape == (1, 17)
    assert list(tmp_path.iterdir()) == []


def test_gymnasium_has_no_fourth_autoreset_mode() -> None:
    assert {mode.name for mode in gymnasium.vector.AutoresetMode} == {"NEXT_STEP", "SAME_STEP", "DISABLED"}
