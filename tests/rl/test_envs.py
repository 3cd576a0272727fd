"""Vector environments: the autoreset modes, truncation, faults at the boundary, seeds, what Atari means."""

from __future__ import annotations

import gc
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.errors import EnvError, NonFiniteError, UsageError
from rlplat.rl.env_guard import GuardedEnv
from rlplat.rl.env_loops import SyncLoop
from rlplat.rl.env_watchdog import StepWatchdog
from rlplat.rl.envs import make_vector_env
from rlplat.rl.interfaces import Episode
from rlplat.rl.vector_env import VectorEnv
from tests.rl.fixture_envs import Ending, FaultyEnv, NativeVectorEnv, ScriptedEnv

FIXTURES = "tests.rl.fixture_envs"
FAULTY = f"{FIXTURES}:FaultyEnv"
MODES = ["SAME_STEP", "NEXT_STEP", "DISABLED", "our loop"]


def scripted(mode: str, scripts: list[tuple[Ending, ...]]) -> VectorEnv:
    if mode == "our loop":
        loop = SyncLoop([GuardedEnv(ScriptedEnv(s), "Scripted", i, len(scripts)) for i, s in enumerate(scripts)])
        return VectorEnv(loop, "Scripted", step_timeout_s=math.inf)
    makers = [lambda script=script: ScriptedEnv(script) for script in scripts]
    raw = SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])
    return VectorEnv(raw, "Scripted", step_timeout_s=math.inf)


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


def test_which_implementation_is_taken() -> None:
    def facts(name: str, **options: Any) -> dict[str, Any]:
        with make_vector_env(name, 1, **options) as env:
            return env.facts()

    native = facts("CartPole-v1")
    assert (native["vectorization"], native["autoreset_mode"]) == ("native", "NEXT_STEP")
    assert facts("CartPole-v1", vectorization="sync")["autoreset_mode"] == "SAME_STEP"
    assert facts("Pendulum-v1")["vectorization"] == "sync"
    assert facts("Pendulum-v1", env_kwargs={"g": 1.0})["env_kwargs"] == {"g": 1.0}
    with pytest.raises(UsageError, match="Pendulum-v1 has no vector implementation"):
        facts("Pendulum-v1", vectorization="native")
    with pytest.raises(UsageError, match="has no vector implementation"):
        facts(FAULTY, vectorization="native")
    with pytest.raises(UsageError, match="num_envs is 0"):
        make_vector_env("CartPole-v1", 0)


def test_box_actions_are_clipped_and_discrete_ones_start_where_the_space_does() -> None:
    with make_vector_env(f"{FIXTURES}:SeededEnv", 2) as env:
        env.reset()
        rewards = env.step(np.array([[-7.0, -7.0], [7.0, 7.0]], np.float32)).rewards
        assert rewards.tolist() == [-1.0, 701.0]  # a0 + 100*a1, a0 in [-1, 1], a1 in [0, inf]
        with pytest.raises(NonFiniteError, match="environment 1.*nan.*before step 2.*learning rate"):
            env.step(np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32))
    with make_vector_env(FAULTY, 1, env_kwargs={"fault": "raise", "at": 1}) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"action (np\.int64\()?1"):  # Discrete(3, start=-1): 2 -> 1
            env.step(np.array([2]))


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


FAULTS = [
    ("raise", "step() raised ValueError: the pole fell off (at "),
    ("exit", "step() raised SystemExit: 3"),
    ("nan obs", "NaN or infinity in the observation at index (1,)"),
    ("inf obs", "NaN or infinity in the observation at index (0,)"),
    ("nan final obs", "NaN or infinity in the final observation at index (0,)"),
    ("nan reward", "NaN or infinity in the reward: "),
    ("inf reward", "NaN or infinity in the reward: "),
    ("shape", "returned an observation of shape (3,), but observation_space says shape (2,) float32"),
    ("dtype", "of dtype float64, but observation_space says shape (2,) float32; return obs.astype(np.float32)"),
    ("list", "returned the observation as [0.0, 0.0] (list)"),
    ("old api", "step() returned 4 values (the old gym API"),
    ("None", "step() returned None (NoneType), expected (obs, reward, terminated, truncated, info)"),
    ("reward None", "returned the reward None (NoneType), expected a number; return float(reward)"),
    ("reward array", "returned the reward [1.] (ndarray), expected a number"),
    ("done int", "returned terminated as 1 (int), expected True or False; return bool(terminated)"),
    ("info", "returned the info None (NoneType), expected a dict"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_fault_names_environment_step_action_and_fix(fault: str, message: str) -> None:
    FaultyEnv.made = 0
    with make_vector_env(FAULTY, 3, env_kwargs={"fault": fault, "who": 1}) as env:
        env.reset()
        env.step(np.ones(3, np.int64))
        env.step(np.ones(3, np.int64))
        with pytest.raises(EnvError) as caught:
            env.step(np.array([0, 2, 0]))
    text = str(caught.value)
    assert re.match(
        r"tests\.rl\.fixture_envs:FaultyEnv \(environment 1 of 0\.\.2\), step 3 \(3 of its episode\), action "
        r"(np\.int64\(1\)|1): ",
        text,
    ), text
    assert message in text


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raise", "reset() raised ValueError"), ("obs only", "expected (obs, info)"), ("nan obs", "in the observation")],
)
def test_faults_in_reset(fault: str, message: str) -> None:
    with make_vector_env(FAULTY, 2, env_kwargs={"fault": fault, "at": 0}) as env:
        with pytest.raises(EnvError, match=re.escape(message)) as caught:
            env.reset()
    assert "environment 0 of 0..1" in str(caught.value)


def test_a_constructor_that_raises() -> None:
    with pytest.raises(EnvError, match="env_kwargs=.*init.*RuntimeError: no display"):
        make_vector_env(FAULTY, 2, env_kwargs={"fault": "init"})


def test_spaces_that_nothing_supports_are_refused_before_anything_is_stepped() -> None:
    with pytest.raises(UsageError, match="observation space Dict.*not supported"):
        make_vector_env(f"{FIXTURES}:UnsupportedEnv", 2)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"obs": np.zeros((2, 3), np.float32)}, "observations of shape (2, 3) float32, but its spaces say (2, 1)"),
        ({"obs": np.zeros((2, 1), np.float64)}, "observations of shape (2, 1) float64"),
        ({"obs": np.array([[0.0], [np.nan]], np.float32)}, "(environment 1 of 0..1), step 1"),
        ({"rewards": np.array([1.0, np.inf])}, "(environment 1 of 0..1), step 1"),
        ({"rewards": np.ones((2, 1))}, "rewards of shape (2, 1)"),
        ({"rewards": np.array([None, 1.0])}, "rewards of shape (2,) object"),
        ({"terminated": np.zeros(2, np.int64)}, "terminated of shape (2,) int64, expected (2,) bool"),
        ({"truncated": np.zeros(3, np.bool_)}, "truncated of shape (3,) bool"),
    ],
)
def test_faults_of_native_vector_environments(returned: dict[str, Any], message: str) -> None:
    env = VectorEnv(NativeVectorEnv(**returned), "Native", step_timeout_s=math.inf)
    env.reset()
    with pytest.raises(EnvError) as caught:
        env.step(np.zeros(2, np.int64))
    assert message in str(caught.value)


def test_a_native_vector_environment_must_say_its_mode_and_keep_to_it() -> None:
    with pytest.raises(EnvError, match="autoreset_mode"):
        VectorEnv(NativeVectorEnv(metadata={}), "Native")
    raw = NativeVectorEnv({"autoreset_mode": AutoresetMode.SAME_STEP}, terminated=np.array([False, True]))
    env = VectorEnv(raw, "Native", step_timeout_s=math.inf)
    env.reset()
    with pytest.raises(EnvError, match=r"environment 1 .*info\['final_obs'\] is missing"):
        env.step(np.zeros(2, np.int64))


def test_a_hang_in_the_main_thread_becomes_an_error_that_says_where() -> None:
    with make_vector_env(FAULTY, 3, env_kwargs={"fault": "hang", "at": 2}, step_timeout_s=0.2) as env:
        env.reset()
        env.step(np.zeros(3, np.int64))
        with pytest.raises(EnvError, match=r"environment 0 of 0\.\.2\), step 2.*step_timeout_s=0\.2, at .*fixture_envs"):
            env.step(np.zeros(3, np.int64))


def test_a_hang_that_cannot_be_interrupted_ends_the_process() -> None:
    ended: list[str] = []
    env = FaultyEnv("hang stubbornly", at=1)
    FaultyEnv.release.clear()

    def end_process(message: str) -> None:
        ended.append(message)
        FaultyEnv.release.set()

    guard = GuardedEnv(env, "Stubborn")
    watchdog = StepWatchdog(0.1, guard.place, end_process, grace_s=0.1)
    guard.reset()
    watchdog.deadline = 0.0  # long past
    guard.step(1)
    watchdog.close()
    assert ended == [
        "Stubborn, step 1 (1 of its episode), action 1 took longer than step_timeout_s=0.1 and cannot be interrupted, so "
        "the process ends; fix it or raise the limit"
    ]


def test_the_watchdog_goes_with_its_environment() -> None:
    def watchers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "env-watchdog"}

    before = watchers()
    env = make_vector_env("CartPole-v1", 1, step_timeout_s=0.5)
    [mine] = watchers() - before
    env.close()
    assert not mine.is_alive()
    env = make_vector_env("CartPole-v1", 1, step_timeout_s=0.5)
    [mine] = watchers() - before
    del env  # nobody closed it
    gc.collect()
    mine.join(timeout=10)
    assert not mine.is_alive()


@pytest.fixture
def async_faulty() -> Iterator[Any]:
    made: list[VectorEnv] = []

    def make(fault: str, **options: Any) -> VectorEnv:
        # In each child the counter stands where it stood here at the fork; the dummy made by gymnasium moves it by one.
        FaultyEnv.made = 0
        made.append(make_vector_env(FAULTY, 2, env_kwargs={"fault": fault}, vectorization="async", **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"\(environment \d of 0\.\.1\), step 3 .*the pole fell off"),
        ("nan obs", r"\(environment 0 of 0\.\.1\), step 3 .*NaN or infinity"),
        ("die", r"\(environment .* of 0\.\.1\), step 3.*process died in step\(\) \(SIGKILL"),
        ("hang", r"\(environment 0, 1 of 0\.\.1\), step 3.*longer than step_timeout_s=0\.5"),
    ],
)
def test_faults_in_environment_processes(async_faulty: Any, fault: str, message: str) -> None:
    env = async_faulty(fault, step_timeout_s=0.5)
    env.reset()
    env.step(np.zeros(2, np.int64))
    env.step(np.zeros(2, np.int64))
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(2, np.int64))
    assert all(not process.is_alive() for process in env._raw._envs.processes)


def test_processes_give_the_same_transitions() -> None:
    scripts: list[tuple[Ending, ...]] = [((2, True, False), (3, False, True)), ((1, True, True),)]
    makers = [lambda script=script: ScriptedEnv(script) for script in scripts]
    raw = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, context="fork")
    env = VectorEnv(raw, "Scripted", step_timeout_s=math.inf)
    assert transitions(env, 8)[0] == transitions(scripted("our loop", scripts), 8)[0]


class TestAtari:
    """Skipped where ale-py is not installed."""

    @pytest.fixture(autouse=True)
    def _ale(self) -> None:
        pytest.importorskip("ale_py")

    def test_the_settings_are_all_in_the_facts(self) -> None:
        with make_vector_env("Pong", 2, env_kwargs={"repeat_action_probability": 0.25}) as env:
            facts = env.facts()
        assert facts["frameskip"] == 4 and facts["reward_clipping"] is False and facts["episodic_life"] is False
        assert facts["repeat_action_probability"] == 0.25 and facts["use_fire_reset"] is True
        assert facts["autoreset_mode"] == "SAME_STEP"

    def test_an_unknown_setting_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(UsageError, match="unknown key 'frame_skip'.*did you mean 'frameskip'"):
            make_vector_env("Pong", 1, env_kwargs={"frame_skip": 2})
        with pytest.raises(UsageError, match="C\\+\\+ only"):
            make_vector_env("Pong", 1, vectorization="sync")

    def test_final_obs_is_the_last_frame_and_not_the_first_of_the_next_game(self) -> None:
        """The stack shifts by one frame per step: all but the newest frame of the last observation were there before."""
        limit = {"max_num_frames_per_episode": 80, "noop_max": 0}
        with make_vector_env("Pong", 2, env_kwargs=limit) as env:
            previous = env.reset().copy()
            rng = np.random.default_rng(0)
            ends = 0
            for _ in range(45):
                step = env.step(rng.integers(6, size=2))
                if step.truncated.any():
                    ends += 1
                    assert step.final_obs is not None and step.valid.all() and not step.terminated.any()
                    assert np.array_equal(step.final_obs[:, :3], previous[:, 1:])
                    assert not np.array_equal(step.final_obs[:, 3], step.final_obs[:, 2])  # the paddles moved
                    assert not np.array_equal(step.obs, step.final_obs)
                    assert not step.obs[:, :2].any()  # a new game's stack begins with black frames
                previous = step.obs.copy()
        assert ends == 2
        assert [e.length for e in env.pop_episodes()] == [20] * 4  # the limit is in frames, a step has 4

    def test_final_obs_when_only_one_game_ends(self) -> None:
        """Freeway pays nothing and never ends early; Pong's first points come at different times under noops."""
        with make_vector_env("Pong", 4, seed=2) as env:
            previous = env.reset().copy()
            seen = 0
            for _ in range(1200):
                step = env.step(np.zeros(4, np.int64))
                done = step.terminated | step.truncated
                if done.any():
                    assert step.final_obs is not None
                    seen += not done.all()
                    assert np.array_equal(step.final_obs[done][:, :3], previous[done][:, 1:])
                    if not done.all():
                        assert np.array_equal(step.obs[~done][:, :3], previous[~done][:, 1:])
                    assert step.terminated[done].all()
                previous = step.obs.copy()
        assert seen > 0
        assert {e.episode_return for e in env.pop_episodes()} == {-21.0}

    def test_rewards_are_raw(self) -> None:
        """Phoenix pays 20 and more for a bird."""
        with make_vector_env("Phoenix", 2, seed=1) as env:
            env.reset()
            rng = np.random.default_rng(0)
            assert max(env.step(rng.integers(8, size=2)).rewards.max() for _ in range(300)) >= 20

    def test_seeds_and_memory(self) -> None:
        def play() -> tuple[list[np.ndarray], list[np.ndarray]]:
            with make_vector_env("Breakout", 2, seed=9) as env:
                kept = [env.reset()]
                kept += [env.step(np.array([t % 4, (t + 1) % 4])).obs for t in range(30)]
                return kept, [obs.copy() for obs in kept]

        one, copies = play()
        other, _ = play()
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(one, copies, strict=True))
        assert not any(np.shares_memory(a, b) for a, b in zip(one, one[1:], strict=False))
        assert not np.array_equal(one[0][0], one[0][1]) or not np.array_equal(one[-1][0], one[-1][1])


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
