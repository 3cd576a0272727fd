"""What the diagnostic environments promise: who can do well in them and who cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlplat.rl.envs.check import check_env
from rlplat.rl.envs.make import make_vector_env

ROOM = "rlplat.rl.envs.diagnostic"


def mean_return(name: str, act: Any, num_steps: int, **env_kwargs: Any) -> float:
    """act(obs [B, ...], t [B], rng) -> actions; t: steps since the episode began."""
    rng = np.random.default_rng(0)
    with make_vector_env(f"{ROOM}:{name}", 8, env_kwargs=env_kwargs) as env:
        obs, t = env.reset(), np.zeros(8, np.int64)
        for _ in range(num_steps):
            step = env.step(act(obs, t, rng))
            obs, t = step.obs, np.where(step.terminated | step.truncated, 0, t + 1)
        returns = [episode.episode_return for episode in env.pop_episodes()]
    return float(np.mean(returns))


@pytest.mark.parametrize("name", ["RememberCue", "MaskedChoice", "NestedTask"])
def test_they_are_sound(name: str) -> None:
    report = check_env(f"{ROOM}:{name}", steps=100)
    assert report.findings == [] and report.episodes > 3


def test_a_cue_is_worth_one_to_who_remembers_and_half_to_who_does_not() -> None:
    memory = np.zeros(8, np.int64)

    def remember(obs: Any, t: Any, rng: Any) -> Any:
        memory[:] = np.where(t == 0, obs[:, 1] > 0, memory)
        return memory.copy()

    def guess(obs: Any, t: Any, rng: Any) -> Any:
        asked = obs[:, 2] > 0
        assert (asked == (t == 3)).all() and (obs[t > 0, :2] == 0).all()
        return rng.integers(2, size=8)

    assert mean_return("RememberCue", remember, 200, delay=3) == 1.0
    assert 0.4 < mean_return("RememberCue", guess, 400, delay=3) < 0.6


def test_a_mask_is_worth_nearly_everything() -> None:
    def best(obs: Any, t: Any, rng: Any) -> Any:
        right = obs["action_mask"] & (np.arange(48) % 3 == obs["kind"][:, None])
        assert (right.sum(axis=1) == 1).all() and (obs["action_mask"].sum(axis=1) == 3).all()
        return right.argmax(axis=1)

    def legal(obs: Any, t: Any, rng: Any) -> Any:
        return (obs["action_mask"] * rng.random((8, 48))).argmax(axis=1)

    def anything(obs: Any, t: Any, rng: Any) -> Any:
        return rng.integers(48, size=8)

    assert mean_return("MaskedChoice", best, 40) == 20.0
    assert 5.5 < mean_return("MaskedChoice", legal, 200) < 7.8  # 20 / 3
    assert mean_return("MaskedChoice", anything, 40) < -0.8


def test_the_nested_task_needs_every_leaf() -> None:
    def best(obs: Any, t: Any, rng: Any) -> Any:
        target = (obs["robot/0"] + 2.0 * obs["robot/1/switches"] - 1.0) / 2.0
        return np.concatenate([obs["goal"][:, None], target], axis=1).astype(np.float32)

    def without_switches(obs: Any, t: Any, rng: Any) -> Any:
        return np.concatenate([obs["goal"][:, None], obs["robot/0"] / 2.0], axis=1).astype(np.float32)

    def without_goal(obs: Any, t: Any, rng: Any) -> Any:
        return best({**obs, "goal": np.zeros(8, np.int64)}, t, rng)

    assert mean_return("NestedTask", best, 40) == pytest.approx(10.0, abs=1e-5)
    assert mean_return("NestedTask", without_switches, 200) < 8.5
    assert mean_return("NestedTask", without_goal, 200) < 8.0


def test_nonsense_arguments_are_refused() -> None:
    for name, kwargs in (
        ("RememberCue", {"delay": 0}),
        ("MaskedChoice", {"num_actions": 50, "num_legal": 3}),
    ):
        [line] = check_env(f"{ROOM}:{name}", kwargs).lines
        assert "ValueError" in line
