"""Actors in numpy act as the torch networks of the same specs compute; the twin critic is two networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.obs_tree import flat_features, num_features, take_obs
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.continuous_control import Actor, Critics, random_shift, squashed_sample
from rlplat.rl.torch.policy import TorchBoundedActor
from rlplat.rl.torch.weights import weights_of

ACTION = ActionSpec("box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 10.0))
TREE = {
    "place": ObsSpec("discrete", (), "int64", nvec=(4,)),
    "robot/joints": ObsSpec("vector", (2, 2), "float64"),
    "switches": ObsSpec("multi_discrete", (2,), "int64", nvec=(2, 3)),
}
SQUASHED, DETERMINISTIC = ActorSpec("squashed_gaussian"), ActorSpec("deterministic", action_noise=0.1)


def spec_of(obs: ObsSpec | dict[str, ObsSpec], **settings: Any) -> PolicySpec:
    policy = PolicyConfig(**({"hidden_sizes": [8, 8], "activation": "relu"} | settings)).model_dump()
    return policy_spec(policy, SpaceSpec(obs, ACTION))


def actor_of(actor: ActorSpec, spec: PolicySpec, **beside: float) -> tuple[BoundedActor, Actor]:
    torch.manual_seed(0)
    network = Actor(spec, actor)
    policy = BoundedActor(spec, actor, np.random.SeedSequence(1))
    policy.set_weights(weights_of(network) | {EPSILON: np.array([beside.get("uniform", 0.0)], np.float32)})
    return policy, network


def test_features_of_a_tree_are_its_leaves_side_by_side() -> None:
    obs = {
        "place": np.array([3, 0]),
        "robot/joints": np.arange(8.0).reshape(2, 2, 2),
        "switches": np.array([[1, 2], [0, 1]]),
    }
    features = flat_features(obs, TREE)
    assert features.dtype == np.float32 and features.shape == (2, num_features(TREE))
    np.testing.assert_array_equal(features[0], [0, 0, 0, 1, 0, 1, 2, 3, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(flat_features(take_obs(obs, slice(1, 2)), TREE), features[1:])


@pytest.mark.parametrize("settings", [{}, {"layer_norm": True, "activation": "mish"}])
@pytest.mark.parametrize("actor", [SQUASHED, DETERMINISTIC], ids=["squashed", "deterministic"])
def test_greedy_actions_are_the_networks_scaled_to_the_bounds(actor: ActorSpec, settings: Any) -> None:
    spec = spec_of(ObsSpec("vector", (3,), "float32"), **settings)
    policy, network = actor_of(actor, spec)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(obs))[:, :2].tanh().numpy() * [2.0, 5.0] + [0.0, 5.0]
    output = policy.act(obs, deterministic=True)
    np.testing.assert_allclose(output.actions, expected, atol=1e-5)
    assert output.actions.dtype == np.float32 and output.actions.shape == (6, 2)


@pytest.mark.parametrize("freq", [-1, 3])
def test_state_dependent_noise_is_one_function_of_the_features_until_it_is_drawn_anew(freq: int) -> None:
    """Raffin et al. 2021, section 4: u = mu(s) + W z(s), W ~ N(0, sigma^2), so that u_j has the variance
    sum_f (z_f sigma_fj)^2."""
    spec = spec_of(ObsSpec("vector", (3,), "float32"), use_sde=True, sde_sample_freq=freq)
    _, network = actor_of(SQUASHED, spec)
    with torch.no_grad():
        network.head.log_std.add_(torch.randn_like(network.head.log_std) * 0.3 - 1.0)
    policy, weights = BoundedActor(spec, SQUASHED, np.random.SeedSequence(1)), weights_of(network)
    policy.set_weights(weights)
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    with torch.no_grad():
        outputs, z = network(torch.from_numpy(obs)), network.encoder(torch.from_numpy(obs))
        means = torch.nn.functional.linear(z, network.head.weight, network.head.bias).numpy()
        std = (z.square() @ network.head.log_std.exp().square()).sqrt().numpy()
    np.testing.assert_allclose(outputs.numpy(), np.concatenate([means, np.log(std)], axis=1), rtol=1e-3, atol=1e-4)

    def pre_images(actions: Any) -> Any:
        return np.arctanh((actions.astype(np.float64) - [0.0, 5.0]) / [2.0, 5.0])

    drawn = [policy.act(obs) for _ in range(7)]
    for output in drawn:
        noise = torch.from_numpy(((pre_images(output.actions) - means) / std).astype(np.float32))
        _, log_probs = squashed_sample(outputs, noise)
        np.testing.assert_allclose(output.log_probs, log_probs.numpy() - np.log(10.0), atol=2e-2)
    same = [bool((output.actions == drawn[0].actions).all()) for output in drawn]
    assert same == ([True] * 7 if freq == -1 else [True] * 3 + [False] * 4)
    policy.set_weights(weights)
    assert (policy.act(obs).actions != drawn[-1].actions).any()
    np.testing.assert_allclose(pre_images(policy.act(obs, deterministic=True).actions), means, atol=1e-4)

    many = pre_images(policy.act(np.repeat(obs, 3_000, axis=0)).actions).reshape(4, 3_000, -1)  # each row has its own W
    np.testing.assert_allclose(np.std(many, axis=1), std, rtol=0.08)  # 6 standard errors


def test_drawn_actions_have_the_networks_log_probs_in_the_units_of_the_environment() -> None:
    spec = spec_of(ObsSpec("vector", (3,), "float32"))
    policy, network = actor_of(SQUASHED, spec)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    noise = np.random.Generator(np.random.PCG64(np.random.SeedSequence(1))).standard_normal((6, 2), np.float32)
    with torch.no_grad():
        actions, log_probs = squashed_sample(network(torch.from_numpy(obs)), torch.from_numpy(noise))
    output = policy.act(obs)
    np.testing.assert_allclose(output.actions, actions.numpy() * [2.0, 5.0] + [0.0, 5.0], atol=1e-5)
    np.testing.assert_allclose(output.log_probs, log_probs.numpy() - np.log(10.0), atol=1e-4)


def test_noise_of_a_deterministic_actor_stays_within_the_bounds() -> None:
    policy, _ = actor_of(ActorSpec("deterministic", action_noise=5.0), spec_of(ObsSpec("vector", (3,), "float32")))
    actions = policy.act(np.zeros((200, 3), np.float32)).actions
    np.testing.assert_array_equal(actions.min(axis=0), [-2.0, 0.0])
    np.testing.assert_array_equal(actions.max(axis=0), [2.0, 10.0])


def test_uniform_actions_while_a_run_warms_up() -> None:
    policy, _ = actor_of(SQUASHED, spec_of(ObsSpec("vector", (3,), "float32")), uniform=1.0)
    actions = policy.act(np.zeros((4000, 3), np.float32)).actions
    np.testing.assert_allclose(actions.mean(axis=0), [0.0, 5.0], atol=0.2)
    np.testing.assert_allclose(actions.var(axis=0), [16 / 12, 100 / 12], rtol=0.1)
    greedy = policy.act(np.zeros((2, 3), np.float32), deterministic=True).actions
    np.testing.assert_array_equal(greedy[0], greedy[1])


def test_the_twin_critic_is_two_networks() -> None:
    spec = spec_of(TREE)
    critics = Critics(spec, num_features(TREE))
    rng = torch.Generator().manual_seed(0)
    features, actions = torch.randn(5, num_features(TREE), generator=rng), torch.rand(5, 2, generator=rng)
    both = critics(features, actions)
    assert both.shape == (2, 5)
    for k, critic in enumerate([critics.first, critics.second]):
        x = torch.cat([features, actions], dim=1)
        for index in range(3):
            x = x @ critic.weights[index] + critic.biases[index]
            x = torch.relu(x) if index < 2 else x
        torch.testing.assert_close(both[k], x[:, 0])
    assert (both[0] != both[1]).all()


@pytest.mark.parametrize("layout", ["CHW", "HWC", "TCHW"])
def test_images_are_shifted_as_if_they_were_padded_with_their_border_and_cut_out(layout: str) -> None:
    """Kostrikov et al. 2020, section 4.1, with torch's own padding."""
    shapes = {"CHW": (2, 7, 6), "HWC": (7, 6, 2), "TCHW": (2, 1, 7, 6)}
    images = torch.randint(0, 256, (5, *shapes[layout]), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(3)
    moves = torch.randint(-4, 5, (2, 5, 1), generator=torch.Generator().manual_seed(3))
    shifted = random_shift(images, layout, 4, generator)
    assert shifted.dtype == torch.uint8 and (moves != 0).any() and (moves.abs() <= 4).all()
    channels_first = images.permute(0, 3, 1, 2) if layout == "HWC" else images.reshape(5, 2, 7, 6)
    padded = torch.nn.functional.pad(channels_first.float(), (4, 4, 4, 4), mode="replicate")
    for n in range(5):
        y, x = 4 + int(moves[0, n]), 4 + int(moves[1, n])
        found = shifted[n].permute(2, 0, 1) if layout == "HWC" else shifted[n]
        assert torch.equal(found.float(), padded[n, :, y : y + 7, x : x + 6])


def test_an_actor_of_images_acts_in_torch_as_its_network_computes() -> None:
    obs = {"image": ObsSpec("image", (2, 16, 16), "uint8", "CHW"), "x": ObsSpec("vector", (3,), "float32")}
    spec = spec_of(obs)
    torch.manual_seed(0)
    network = Actor(spec, SQUASHED)
    policy = TorchBoundedActor(spec, SQUASHED, np.random.SeedSequence(1))
    policy.set_weights(weights_of(network))
    rng = np.random.default_rng(0)
    seen = {
        "image": rng.integers(0, 256, (4, 2, 16, 16)).astype(np.uint8),
        "x": rng.normal(size=(4, 3)).astype(np.float32),
    }
    with torch.no_grad():
        features = network.features({path: torch.from_numpy(leaf) for path, leaf in seen.items()})
        expected = network(features)[:, :2].tanh().numpy() * [2.0, 5.0] + [0.0, 5.0]
    np.testing.assert_allclose(policy.act(seen, deterministic=True).actions, expected, atol=1e-5)
