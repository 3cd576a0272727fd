"""`TfActorCritic` acts like `TorchActorCritic` with the same weights, and keeps what a policy promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="parity is with torch")
pytest.importorskip("tensorflow", reason="needs the extra: pip install 'rlplat[tf]'")

from rlplat.rl.interfaces import Weights  # noqa: E402
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR  # noqa: E402
from rlplat.rl.obs_tree import take_obs  # noqa: E402
from rlplat.rl.policies.make import make_policy  # noqa: E402
from rlplat.rl.tf import policy as tf_policy  # noqa: E402
from rlplat.rl.tf.policy import TfActorCritic  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic  # noqa: E402
from rlplat.rl.torch.policy import TorchActorCritic  # noqa: E402
from rlplat.rl.torch.weights import weights_of  # noqa: E402
from tests.rl.tf.twins import SPECS, perturbed, random_obs  # noqa: E402

pytestmark = pytest.mark.slow


def weights_for(name: str) -> Weights:
    torch.manual_seed(0)
    return perturbed(weights_of(ActorCritic(SPECS[name]())), np.random.default_rng(0))


@pytest.mark.parametrize("name", ["tree", "composite mask", "attention", "gru"])
def test_acts_like_torchs(name: str) -> None:
    spec, rng = SPECS[name](), np.random.default_rng(1)
    policies = [each(spec, np.random.SeedSequence(1), num_threads=1) for each in (TfActorCritic, TorchActorCritic)]
    for policy in policies:
        policy.set_weights(weights_for(name))
    for _ in range(4):
        obs = random_obs(spec, 5, rng)
        last = [policy.values(obs) for policy in policies]  # looks ahead: the core stays where it was
        ours, theirs = (policy.act(obs, deterministic=True) for policy in policies)
        np.testing.assert_allclose(ours.values, theirs.values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last[0], ours.values, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-5)
        assert (ours.actions.dtype, ours.actions.shape) == (theirs.actions.dtype, theirs.actions.shape)
        np.testing.assert_allclose(policies[0].core_state, policies[1].core_state, atol=1e-5)
        for policy in policies:
            policy.reset_core(np.array([True, False, False, True, False]))
    state = policies[1].get_state()  # a checkpoint of torch's: the core goes on
    policies[0].set_state(state)
    np.testing.assert_array_equal(policies[0].core_state, state["core"])


def test_a_resumed_core_begins_anew_where_the_number_of_environments_is_another() -> None:
    spec = SPECS["gru"]()
    policy, one = (TfActorCritic(spec, np.random.SeedSequence(1)) for _ in range(2))
    policy.act(random_obs(spec, 4, np.random.default_rng(0)))
    state, obs = policy.get_state(), random_obs(spec, 2, np.random.default_rng(0))
    policy.set_state(state)
    policy.reset_core(np.ones(2, np.bool_))
    for each in (policy, one):
        each.set_weights(weights_for("gru"))
    np.testing.assert_array_equal(policy.values(obs), one.values(obs))


def test_bfloat16_convolutions_are_close() -> None:
    spec = SPECS["nature"]()
    exact, fast = (
        make_policy(spec, np.random.SeedSequence(1), framework="tf", precision=p) for p in ("float32", "bfloat16")
    )
    for policy in (exact, fast):
        policy.set_weights(weights_for("nature"))
    obs = random_obs(spec, 8, np.random.default_rng(2))
    np.testing.assert_allclose(fast.values(obs), exact.values(obs), atol=0.05)
    assert (fast.values(obs) != exact.values(obs)).any()


def test_draws_repeat_from_a_state_and_differ_between_seeds() -> None:
    spec = SPECS["lstm"]()
    policies = [TfActorCritic(spec, np.random.SeedSequence(seed)) for seed in (1, 1, 2)]
    obs = random_obs(spec, 64, np.random.default_rng(2))
    for policy in policies:
        policy.set_weights(weights_for("lstm"))
    first, same, other = ([policy.act(obs).actions for _ in range(3)] for policy in policies)
    np.testing.assert_array_equal(first, same)
    assert (np.array(first) != other).any()
    policy, state = policies[0], policies[0].get_state()
    drawn = [policy.act(obs) for _ in range(3)]
    policy.set_state(state)
    for again, before in zip((policy.act(obs) for _ in range(3)), drawn, strict=True):
        for column, expected in zip(again, before, strict=True):
            np.testing.assert_array_equal(column, expected)


def test_one_trace_whatever_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acting, and values of many rows, which come in parts."""
    monkeypatch.setattr(tf_policy, "VALUES_BATCH", 8)
    spec = SPECS["mask"]()
    policy: Any = TfActorCritic(spec, np.random.SeedSequence(1))
    policy.set_weights(weights_for("mask"))
    obs = random_obs(spec, 21, np.random.default_rng(2))
    together = policy.values(obs)
    for i in range(21):
        one = take_obs(obs, slice(i, i + 1))
        np.testing.assert_allclose(policy.values(one), together[i : i + 1], rtol=1e-5)
    for size in (1, 4, 21):
        actions = policy.act(take_obs(obs, slice(size))).actions
        assert obs["action_mask"][np.arange(size), actions].all()  # type: ignore[call-overload, index]
    assert [each.experimental_get_tracing_count() for each in (policy._sample, policy._value)] == [1, 1]


def test_observations_are_normalised_with_the_statistics_in_the_weights() -> None:
    spec = SPECS["multi_binary"]()
    policies = [each(spec, np.random.SeedSequence(1)) for each in (TfActorCritic, TorchActorCritic)]
    statistics = {OBS_MEAN: np.full(4, 0.3, np.float32), OBS_VAR: np.full(4, 4.0, np.float32)}
    obs = np.random.default_rng(0).normal(size=(6, 4))  # float64
    for policy in policies:
        policy.set_weights(weights_for("multi_binary") | statistics)
    np.testing.assert_allclose(policies[0].values(obs), policies[1].values(obs), atol=1e-5)


def test_plain_mlps_act_in_numpy_also_here() -> None:
    assert type(make_policy(SPECS["mlp"](), np.random.SeedSequence(1), framework="tf")).__name__ == "NumpyActorCritic"
