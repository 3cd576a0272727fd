"""The acting policies against the network that the learner trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.errors import ConfigError  # noqa: E402
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR  # noqa: E402
from rlplat.rl.policy_spec import PolicySpec, make_policy  # noqa: E402
from rlplat.rl.torch.device import resolve_precision  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic  # noqa: E402
from rlplat.rl.torch.policy import TorchActorCritic  # noqa: E402
from rlplat.rl.torch.weights import weights_of  # noqa: E402

VECTOR = PolicySpec((4,), "", "categorical", 3, "mlp", (32, 16), "tanh", False, True, 0.0)
SPECS = {
    "separate tanh": VECTOR,
    "shared relu": replace(VECTOR, share_encoder=True, activation="relu"),
    "gaussian": replace(VECTOR, action_kind="gaussian", initial_log_std=-0.5),
    "matrix observations": replace(VECTOR, obs_shape=(2, 3)),
}
IMAGE = PolicySpec((4, 84, 84), "CHW", "categorical", 6, "nature_cnn", (64,), "tanh", True, True, 0.0)


def network_for(spec: PolicySpec) -> ActorCritic:
    torch.manual_seed(0)
    network = ActorCritic(spec)
    with torch.no_grad():
        network.actor_head.weight.mul_(100.0)  # away from the nearly uniform policy of the start
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    return network


@pytest.mark.parametrize("name", SPECS)
def test_numpy_and_torch_give_the_same_numbers(name: str) -> None:
    spec = SPECS[name]
    network, rng = network_for(spec), np.random.default_rng(0)
    policy = make_policy(spec, np.random.SeedSequence(1))
    policy.set_weights(weights_of(network))
    obs = rng.normal(size=(64, *spec.obs_shape)).astype(np.float32)
    actions, log_probs, values = policy.act(obs)
    with torch.no_grad():
        expected = network.evaluate_actions(torch.from_numpy(obs), torch.from_numpy(actions))
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=2e-5)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=2e-5)
    np.testing.assert_allclose(policy.values(obs), values, atol=1e-6)


@pytest.mark.parametrize("name", SPECS)
def test_torch_policy_agrees_with_the_numpy_one(name: str) -> None:
    spec = SPECS[name]
    weights = weights_of(network_for(spec))
    weights[OBS_MEAN] = np.full(spec.obs_shape, 0.3, np.float32)
    weights[OBS_VAR] = np.full(spec.obs_shape, 4.0, np.float32)
    obs = np.random.default_rng(0).normal(size=(16, *spec.obs_shape)).astype(np.float32)
    outputs = []
    for policy in (
        make_policy(spec, np.random.SeedSequence(1)),
        TorchActorCritic(spec, np.random.SeedSequence(1)),
    ):
        policy.set_weights(weights)
        outputs.append(policy.act(obs, deterministic=True))
    np.testing.assert_allclose(outputs[0].actions, outputs[1].actions, atol=2e-5)
    np.testing.assert_allclose(outputs[0].log_probs, outputs[1].log_probs, atol=2e-5)
    np.testing.assert_allclose(outputs[0].values, outputs[1].values, atol=2e-5)


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-4), ("bfloat16", 0.05)])
def test_cnn_policy_acts_like_the_learners_network(precision: str, tolerance: float) -> None:
    network = network_for(IMAGE)
    policy = make_policy(IMAGE, np.random.SeedSequence(1), precision=precision, num_threads=1)
    policy.set_weights(weights_of(network))
    obs = np.random.default_rng(0).integers(0, 256, (8, 4, 84, 84), dtype=np.uint8)
    obs.flags.writeable = False  # as it comes from shared memory
    actions, log_probs, values = policy.act(obs)
    with torch.no_grad():
        expected = network.evaluate_actions(torch.from_numpy(obs.copy()), torch.from_numpy(actions))
    np.testing.assert_allclose(log_probs, expected[0].numpy(), atol=tolerance)
    np.testing.assert_allclose(values, expected[2].numpy(), atol=tolerance)
    np.testing.assert_allclose(policy.values(obs), values, atol=tolerance)


def test_cnn_policy_repeats_itself_from_its_state() -> None:
    policy = make_policy(IMAGE, np.random.SeedSequence(1), num_threads=1)
    policy.set_weights(weights_of(ActorCritic(IMAGE)))
    obs = np.zeros((16, 4, 84, 84), np.uint8)
    state = policy.get_state()
    first, second = policy.act(obs).actions, policy.act(obs).actions
    assert (first != second).any()
    policy.set_state(state)
    np.testing.assert_array_equal(policy.act(obs).actions, first)


def test_precision_by_encoder() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision("auto", VECTOR, cpu) == torch.float32
    assert resolve_precision("bfloat16", IMAGE, cpu) == torch.bfloat16
    assert resolve_precision("float32", IMAGE, cpu) == torch.float32
    with pytest.raises(ConfigError, match="image encoders"):
        resolve_precision("bfloat16", VECTOR, cpu)
