"""What `Pong` means: raw rewards, whole games, true last observations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlplat.errors import UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.interfaces import PolicyOutput
from rlplat.rl.run.evaluation import play_episodes, raw_env_kwargs

pytest.importorskip("ale_py", reason="needs rlplat[atari]")


def test_the_settings_are_all_in_the_facts() -> None:
    with make_vector_env("Pong", 2, env_kwargs={"repeat_action_probability": 0.25}) as env:
        facts = env.facts()
    assert facts["frameskip"] == 4 and facts["reward_clipping"] is False and facts["episodic_life"] is False
    assert facts["repeat_action_probability"] == 0.25 and facts["use_fire_reset"] is True
    assert facts["autoreset_mode"] == "SAME_STEP"


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'frame_skip'.*did you mean 'frameskip'"):
        make_vector_env("Pong", 1, env_kwargs={"frame_skip": 2})
    with pytest.raises(UsageError, match="C\\+\\+ only"):
        make_vector_env("Pong", 1, vectorization="sync")


def test_final_obs_is_the_last_frame_and_not_the_first_of_the_next_game() -> None:
    """The stack shifts by one frame per step: all but the newest frame of final_obs were there before."""
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


@pytest.mark.slow
def test_final_obs_when_only_one_game_ends() -> None:
    """Different numbers of no-ops at the start: the games, all lost, end at different steps."""
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


def test_rewards_are_raw() -> None:
    """Phoenix pays 20 and more for a bird."""
    with make_vector_env("Phoenix", 2, seed=1) as env:
        env.reset()
        rng = np.random.default_rng(0)
        assert max(env.step(rng.integers(8, size=2)).rewards.max() for _ in range(300)) >= 20


def test_a_lost_life_terminates_but_the_game_and_its_return_go_on() -> None:
    """Breakout has five lives. ale-py's own `episodic_life` would start anew at each."""
    with make_vector_env("Breakout", 1, seed=1, env_kwargs={"episodic_life": True}) as env:
        previous = env.reset().copy()
        rng = np.random.default_rng(0)
        lost, games, total, rewards_at_loss = 0, [], 0.0, 0.0
        while len(games) < 2:
            step = env.step(rng.integers(4, size=1))
            total += float(step.rewards[0])
            finished = env.pop_episodes()
            if step.terminated[0]:
                assert step.final_obs is not None
                assert np.array_equal(step.final_obs[0, :3], previous[0, 1:])
                lost += 1
                if not finished:  # the same game: what comes next is what was seen last
                    assert np.array_equal(step.obs[0, :3], previous[0, 1:])
                    rewards_at_loss = total
            if finished:
                assert step.terminated[0] and lost == 5
                assert finished[0].episode_return == total >= rewards_at_loss
                games.append(finished[0])
                lost, total = 0, 0.0
            previous = step.obs.copy()


@pytest.mark.parametrize("episodic_life", [True, False])
def test_fire_after_each_lost_life(episodic_life: bool) -> None:
    """A policy that never presses FIRE waits for ever after Breakout's first lost life, unless it is done for it."""
    kwargs = {"episodic_life": episodic_life, "fire_after_lost_life": True}
    with make_vector_env("Breakout", 1, seed=1, env_kwargs=kwargs) as env:
        previous = env.reset().copy()
        was_lost, num_fired, games = False, 0, []
        for _ in range(400):
            step = env.step(np.zeros(1, np.int64))
            num_fired += not step.valid[0]
            games += env.pop_episodes()
            if games:
                break
            assert np.array_equal(step.obs[0, :3], previous[0, 1:])  # the same game goes on
            if episodic_life:
                assert bool(step.valid[0]) is not was_lost  # the step after a lost life, and no other
                was_lost = bool(step.terminated[0])
            else:
                assert not step.terminated[0]
            previous = step.obs.copy()
        assert len(games) == 1 and step.terminated[0] and step.valid[0]
        assert num_fired == 4  # five lives


def test_without_it_who_never_fires_waits_for_ever() -> None:
    with make_vector_env("Breakout", 1, seed=1, env_kwargs={"episodic_life": True}) as env:
        env.reset()
        steps = [env.step(np.zeros(1, np.int64)) for _ in range(200)]
        assert sum(bool(step.terminated[0]) for step in steps) == 1
        assert all(step.valid.all() for step in steps) and not env.pop_episodes()


def test_an_evaluation_fires_too_and_counts_every_reward() -> None:
    """A greedy policy that never fires still plays whole games (they would last 27,000 steps)."""
    settings = {"env": "Breakout", "env_kwargs": {"episodic_life": True, "fire_after_lost_life": True}}
    kwargs = raw_env_kwargs(settings)
    assert kwargs == {"fire_after_lost_life": True}

    class Idle:
        def act(self, obs: np.ndarray, deterministic: bool = False) -> PolicyOutput:
            zeros = np.zeros(len(obs), np.int64)
            return PolicyOutput(zeros, zeros.astype(np.float32), zeros.astype(np.float32))

        def reset_core(self, ends: np.ndarray) -> None: ...

    with make_vector_env("Breakout", 1, env_kwargs=kwargs) as env:
        (episode,) = play_episodes(Idle(), env, 1, seed=3, max_steps=1000)  # type: ignore[arg-type]
        assert 50 < episode.length < 400


def test_a_game_without_fire_is_left_alone() -> None:
    with make_vector_env("Freeway", 1, seed=1, env_kwargs={"fire_after_lost_life": True}) as env:
        env.reset()
        assert all(env.step(np.zeros(1, np.int64)).valid.all() for _ in range(5))


def test_seeds_and_memory() -> None:
    def play() -> tuple[list[np.ndarray], list[np.ndarray]]:
        with make_vector_env("Breakout", 2, seed=9) as env:
            kept = [env.reset()]
            kept += [env.step(np.array([t % 4, (t + 1) % 4])).obs for t in range(30)]
            return kept, [obs.copy() for obs in kept]

    one, copies = play()
    other, _ = play()
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(one, copies, strict=True))
    assert not any(np.shares_memory(a, b) for a, b in itertools.pairwise(one))
    assert not np.array_equal(one[0][0], one[0][1]) or not np.array_equal(one[-1][0], one[-1][1])
