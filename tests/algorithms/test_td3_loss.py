"""TD3's targets beside an independent reference, and its delays."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.td3 import TD3, TD3Config, TD3Learner, clipped_targets, smoothed_actions
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.continuous_control import Transitions

SPACES = SpaceSpec(
    ObsSpec("vector", (3,), "float32"),
    ActionSpec("box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 10.0)),
)


def make(**settings: object) -> tuple[TD3Learner, Transitions]:
    config = TD3Config(env="Pendulum-v1", policy={"hidden_sizes": [8]}, batch_size=5, learning_rate=1e-3, **settings)
    spec = policy_spec(config.policy.model_dump(), SPACES)
    td3 = TD3Learner(computation_of(TD3), config.model_dump(), spec, None)  # type: ignore[arg-type]
    rng = np.random.default_rng(2)
    columns = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    columns[3] = np.array([0.9, 0.0, 0.9, 0.9, 0.9], np.float32)
    [batch] = td3.trainee.minibatches(*columns)
    return td3, batch


def test_smoothing_clips_the_noise_and_then_the_action() -> None:
    outputs = torch.tensor([[0.0], [0.0], [3.0], [-3.0]])
    noise = torch.tensor([[1.0], [9.0], [9.0], [-9.0]])
    smoothed = smoothed_actions(outputs, noise, std=0.2, clip=0.5)
    np.testing.assert_allclose(smoothed[:, 0].numpy(), [0.2, 0.5, 1.0, -1.0], rtol=1e-6)


def test_targets_take_the_smaller_critic_and_stop_at_termination() -> None:
    next_q = torch.tensor([[1.0, 5.0], [2.0, 4.0]])
    targets = clipped_targets(torch.tensor([10.0, 20.0]), torch.tensor([0.5, 0.0]), next_q)
    np.testing.assert_allclose(targets.numpy(), [10.5, 20.0])


def test_actor_and_targets_wait_for_the_critics() -> None:
    td3, batch = make(policy_delay=2, target_tau=0.25)
    nets = td3.trainee
    parts = {
        "actor": nets.actor, "target_actor": td3.target_actor, "critics": nets.critics, "targets": nets.target_critics,
    }  # fmt: skip

    def step() -> set[str]:
        before = {name: copy.deepcopy(part) for name, part in parts.items()}
        td3.count(batch, td3.train(batch))
        return {
            name
            for name, part in parts.items()
            if any((a != b).any() for a, b in zip(part.parameters(), before[name].parameters(), strict=True))
        }

    assert step() == {"critics"}
    old = [parameter.clone() for parameter in td3.target_actor.parameters()]
    assert step() == set(parts)
    for now, before, online in zip(td3.target_actor.parameters(), old, nets.actor.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * before + 0.25 * online)
    assert step() == {"critics"}


def adams_first_step(module: torch.nn.Module) -> None:
    """Both moments are the gradient's own then: w - lr * g / (|g| + eps). Gradients are gone after it."""
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter -= 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
            parameter.grad = None


def test_a_gradient_step_is_the_one_that_autograd_makes() -> None:
    td3, batch = make(policy_delay=1, target_noise=0.0)
    nets = td3.trainee
    actor, critics = copy.deepcopy(nets.actor), copy.deepcopy(nets.critics)
    with torch.no_grad():
        next_q = nets.target_critics(batch.next_features, td3.target_actor(batch.next_features).tanh())
        y = batch.returns + batch.discounts * torch.minimum(next_q[0], next_q[1])
    (0.5 * ((critics(batch.features, batch.actions) - y) ** 2).mean(1).sum()).backward()
    adams_first_step(critics)
    (-critics(batch.features, actor(batch.features).tanh())[0].mean()).backward()
    adams_first_step(actor)
    td3.train(batch)
    for module, reference in ((nets.actor, actor), (nets.critics, critics)):
        for own, other in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)
