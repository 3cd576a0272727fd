"""The numpy policy by itself; that it equals the torch network is shown in tests/rl/torch/test_policy.py."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rlplat.rl.interfaces import Weights
from rlplat.rl.policies.numpy_policies import NumpyActorCritic
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec
from tests.rl.specimens import BOX, make_spec

DISCRETE = make_spec(ObsSpec("vector", (3,), "float32"), hidden_sizes=[8])
GAUSSIAN = make_spec(ObsSpec("vector", (3,), "float32"), BOX, hidden_sizes=[8], activation="relu", share_encoder=True)


def constant_weights(spec: PolicySpec, params: list[float], value: float) -> Weights:
    """A network that gives the same logits (or means) and value whatever it sees."""
    hidden = spec.hidden_sizes[0]
    weights = {
        "actor_encoder.layers.0.weight": np.zeros((hidden, 3), np.float32),
        "actor_encoder.layers.0.bias": np.zeros(hidden, np.float32),
        "actor_head.weight": np.zeros((spec.num_params, hidden), np.float32),
        "actor_head.bias": np.array(params, np.float32),
        "critic_head.weight": np.zeros((1, hidden), np.float32),
        "critic_head.bias": np.array([value], np.float32),
    }
    weights |= {name.replace("actor_enc", "critic_enc"): w for name, w in weights.items() if "actor_enc" in name}
    if spec.num_gaussian:
        weights["log_std"] = np.log(np.array([0.5, 2.0], np.float32))
    return weights


def make_policy(spec: PolicySpec, params: list[float], seed: int = 0) -> NumpyActorCritic:
    policy = NumpyActorCritic(spec, np.random.SeedSequence(seed))
    policy.set_weights(constant_weights(spec, params, value=1.5))
    return policy


def test_actions_are_drawn_with_their_probabilities() -> None:
    probabilities = np.array([0.7, 0.25, 0.05])
    actions, log_probs, values, _ = make_policy(DISCRETE, np.log(probabilities).tolist()).act(np.zeros((20_000, 3)))
    frequencies = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(frequencies, probabilities, atol=0.015)  # more than 4 standard errors
    np.testing.assert_allclose(log_probs, np.log(probabilities)[actions], rtol=1e-5)
    assert (values == 1.5).all()
    assert (actions.dtype, log_probs.dtype, values.dtype) == (np.int64, np.float32, np.float32)


def test_gaussian_actions_have_mean_and_deviation() -> None:
    actions, log_probs, *_ = make_policy(GAUSSIAN, [1.0, -3.0]).act(np.zeros((20_000, 3), np.float32))
    np.testing.assert_allclose(actions.mean(axis=0), [1.0, -3.0], atol=0.07)
    np.testing.assert_allclose(actions.std(axis=0), [0.5, 2.0], rtol=0.03)
    deviations = (actions - [1.0, -3.0]) / [0.5, 2.0]
    expected = (-0.5 * deviations**2 - np.log([0.5, 2.0]) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(log_probs, expected, atol=1e-4)
    assert actions.dtype == log_probs.dtype == np.float32


@pytest.mark.parametrize("spec, params", [(DISCRETE, [0.0, 2.0, 1.0]), (GAUSSIAN, [0.3, -0.4])])
def test_deterministic_takes_the_mode(spec: PolicySpec, params: list[float]) -> None:
    policy = make_policy(spec, params)
    before = policy.get_state()
    output = policy.act(np.zeros((4, 3), np.float32), deterministic=True)
    expected = np.full(4, 1) if spec is DISCRETE else np.tile(np.float32(params), (4, 1))
    np.testing.assert_array_equal(output.actions, expected)
    assert policy.get_state() == before  # no random number was used


@pytest.mark.parametrize("spec, params", [(DISCRETE, [0.0, 0.0, 0.0]), (GAUSSIAN, [0.0, 0.0])])
def test_same_seed_same_actions_and_state_continues(spec: PolicySpec, params: list[float]) -> None:
    obs = np.zeros((50, 3), np.float32)
    one, two, other = make_policy(spec, params), make_policy(spec, params), make_policy(spec, params, seed=1)
    np.testing.assert_array_equal(one.act(obs).actions, two.act(obs).actions)
    assert (one.act(obs).actions != other.act(obs).actions).any()
    other.set_state(one.get_state())
    np.testing.assert_array_equal(one.act(obs).actions, other.act(obs).actions)


def test_large_logits_do_not_overflow() -> None:
    output = make_policy(DISCRETE, [1e4, -1e4, 0.0]).act(np.zeros((8, 3), np.float32))
    assert (output.actions == 0).all() and (output.log_probs == 0).all()


@pytest.mark.process
def test_acting_needs_no_torch() -> None:
    code = "import sys, rlplat.rl.policies.numpy_policies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_carries_nothing_from_step_to_step() -> None:
    policy = make_policy(DISCRETE, [0.0, 2.0, 1.0])
    policy.act(np.zeros((5, 3), np.float32))
    assert policy.core_state.size == 0
    policy.reset_core(np.ones(5, np.bool_))
    assert policy.get_state().keys() == {"rng"}
