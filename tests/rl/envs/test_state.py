"""Environments saved in the middle of an episode and brought back elsewhere go on bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlplat.errors import UsageError
from rlplat.rl.envs.make import make_vector_env
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.envs.watchdog import NO_LIMITS
from rlplat.rl.interfaces import Step
from tests.rl.fixture_envs import NativeVectorEnv

FIXTURES = "tests.rl.fixture_envs"


def draw(env: VectorEnv, rng: np.random.Generator) -> np.ndarray:
    action = env.spec.action
    if action.kind == "discrete":
        return rng.integers(action.n, size=env.num_envs)
    if action.kind == "composite":
        columns = [
            rng.integers(part.n, size=(env.num_envs, 1))
            if part.kind == "discrete"
            else rng.normal(size=(env.num_envs, part.flat_size))
            for _, part in action.parts
        ]
        return np.concatenate(columns, axis=1).astype(np.float32)
    return rng.normal(size=(env.num_envs, action.flat_size)).astype(np.float32)


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {path: bits(leaf) for path, leaf in value.items()}
    return None if value is None else (value.dtype, value.tobytes())


def through_json(state: Any) -> Any:
    """Numbers and texts as a checkpoint writes them; arrays stay."""
    if isinstance(state, dict):
        return {key: through_json(value) for key, value in state.items()}
    if isinstance(state, list):
        return [through_json(value) for value in state]
    return state if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "vectorization", "before", "after"),
    [
        ("CartPole-v1", "native", 57, 200),
        ("CartPole-v1", "sync", 57, 200),
        ("LunarLander-v3", "sync", 137, 200),
        ("HalfCheetah-v5", "sync", 250, 800),
        ("Pendulum-v1", "async", 30, 200),
        ("rlplat.rl.envs.diagnostic:NestedTask", "sync", 13, 40),
        ("rlplat.rl.envs.diagnostic:MaskedChoice", "async", 3, 40),
        (f"{FIXTURES}:SampledEnv", "sync", 3, 40),
    ],
)
def test_a_restored_environment_goes_on_bit_for_bit(
    name: str, vectorization: Any, before: int, after: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith(("Half", "Lunar")):
        pytest.importorskip("mujoco" if name.startswith("Half") else "Box2D")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def make(seed: int) -> VectorEnv:
        return make_vector_env(name, 2, seed=seed, vectorization=vectorization, keep_state=True)

    def outcome(step: Step) -> list[Any]:
        return [bits(value) for value in step]

    with make(1) as env, make(2) as other:
        assert env.not_saved == ""
        env.reset()
        for _ in range(before):
            env.step(draw(env, rng))
        state = through_json(env.get_state())
        assert bits(other.set_state(state)) == bits(state["obs"])
        assert other.not_restored == {}
        ended = 0
        for _ in range(after):
            actions = draw(env, rng)
            step, again = env.step(actions), other.step(actions)
            assert outcome(step) == outcome(again)
            ended += step.final_obs is not None
        assert ended > 0, "an episode after the restored one must have begun"
        assert env.pop_episodes() == other.pop_episodes() != []
        assert bits(other.reset()) == bits(env.reset())


def test_what_is_drawn_from_the_spaces_repeats_with_the_seed() -> None:
    """`reset(seed=...)` of gymnasium seeds np_random only, and many environments draw from their spaces."""
    actions = np.zeros((3, 2), np.int64)
    with (
        make_vector_env(f"{FIXTURES}:SampledEnv", 3) as env,
        make_vector_env(f"{FIXTURES}:SampledEnv", 3) as other,
    ):
        first, again = env.reset(7), other.reset(7)
        assert bits(first) == bits(again) and len({row.tobytes() for row in first["a"]}) == 3
        for _ in range(10):
            assert [bits(value) for value in env.step(actions)] == [bits(value) for value in other.step(actions)]


def test_a_state_from_before_spaces_were_kept_is_still_restored() -> None:
    name = "Pendulum-v1"
    with make_vector_env(name, 1, vectorization="sync", keep_state=True) as env:
        env.reset()
        env.step(np.zeros((1, 1), np.float32))
        state = env.get_state()
        del state["starts"][0]["generator_now"]["spaces"]
        assert bits(env.set_state(state)) == bits(state["obs"]) and env.not_restored == {}


def test_saving_changes_nothing_and_can_be_repeated() -> None:
    with (
        make_vector_env("Pendulum-v1", 1, keep_state=True) as env,
        make_vector_env("Pendulum-v1", 1) as plain,
    ):
        assert bits(env.reset()) == bits(plain.reset())
        action = np.zeros((1, 1), np.float32)
        for _ in range(3):
            env.get_state()
            assert bits(env.step(action).obs) == bits(plain.step(action).obs)
        state = env.get_state()
        env.step(action)
        first = env.set_state(state)
        env.step(action)
        assert bits(env.set_state(state)) == bits(first)
        assert bits(env.step(action).obs) == bits(plain.step(action).obs)


def test_what_cannot_be_played_again_begins_anew_and_says_so() -> None:
    name = f"{FIXTURES}:ForgetfulEnv"
    action = np.array([[0.5, 0.0], [0.5, 0.0]], np.float32)
    with make_vector_env(name, 2, keep_state=True) as env, make_vector_env(name, 2, keep_state=True) as other:
        env.reset()
        for _ in range(7):  # the second episode: what the first left behind is missing elsewhere
            env.step(action)
        state = env.get_state()
        obs = other.set_state(state)
        assert sorted(other.not_restored) == [0, 1]
        assert other.not_restored[1] == (
            f"{name} (environment 1): its episode of 2 steps, played again, leads to another observation, so a new one "
            "begins; reset() must set everything that step() changes, and random numbers must come from self.np_random"
        )
        assert bits(obs) != bits(state["obs"])
        for _ in range(5):
            other.step(action)
        assert [episode.length for episode in other.pop_episodes()] == [
            5,
            5,
            5,
            5,
        ]  # two were not popped before


def test_an_unseeded_environment_is_found_out() -> None:
    with make_vector_env(f"{FIXTURES}:UnseededEnv", 1, keep_state=True) as env:
        env.reset()
        env.set_state(env.get_state())
        assert list(env.not_restored) == [0]


def test_an_environment_that_fails_while_it_is_played_again() -> None:
    kwargs = {"fault": "raise", "at": 4}
    with make_vector_env(f"{FIXTURES}:FaultyEnv", 1, env_kwargs=kwargs, keep_state=True) as env:
        env.reset()
        for _ in range(3):
            env.step(np.zeros(1, np.int64))
        env.set_state(env.get_state())  # it counts its steps over all episodes
        assert "could not be played again (" in env.not_restored[0] and "the pole fell off" in env.not_restored[0]


def test_what_cannot_be_saved_says_why() -> None:
    with make_vector_env("CartPole-v1", 1) as env:
        assert "keep_state=True" in env.not_saved
        with pytest.raises(UsageError, match="keep_state=True"):
            env.get_state()
    native = VectorEnv(NativeVectorEnv(), "Native", keeps_state=True, limits=NO_LIMITS)
    assert native.not_saved == (
        "the states of the environments (Native): its vector implementation gives no access to them, so new episodes "
        "begin"
    )


def test_atari_cannot_be_saved() -> None:
    pytest.importorskip("ale_py")
    with make_vector_env("Pong", 1, keep_state=True) as env:
        assert "Pong-v5): ale-py's vector environment gives no access" in env.not_saved


def test_a_state_of_other_environments_is_refused() -> None:
    with make_vector_env("CartPole-v1", 1, keep_state=True) as one:
        one.reset()
        state = one.get_state()
    for num_envs, vectorization in ((2, "native"), (1, "sync")):
        with make_vector_env("CartPole-v1", num_envs, vectorization=vectorization, keep_state=True) as other:  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=rf"one of 1 environments in a native.*has {num_envs} here"):
                other.set_state(state)
