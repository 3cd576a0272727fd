"""SAC's losses beside an independent reference, its log-probabilities beside torch.distributions, its temperature."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rlplat.algorithms.sac import (
    SAC,
    EntropyCoefficient,
    SACConfig,
    SACLearner,
    actor_loss,
    critic_loss,
    soft_targets,
)
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from rlplat.rl.torch.continuous_control import squashed_sample

SPACES = SpaceSpec(
    ObsSpec("vector", (3,), "float32"),
    ActionSpec("box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 10.0)),
)


def make(**settings: object) -> tuple[SACConfig, PolicySpec]:
    config = SACConfig(env="Pendulum-v1", policy={"hidden_sizes": [8]}, batch_size=5, **settings)
    return config, policy_spec(config.policy.model_dump(), SPACES)


def make_learner(seed: int = 1, **settings: object) -> SACLearner:
    config, spec = make(seed=seed, learning_rate=1e-3, **settings)
    return SACLearner(computation_of(SAC), config.model_dump(), spec, None)  # type: ignore[arg-type]


def test_log_probs_are_those_of_torch_distributions() -> None:
    outputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * 0.5
    noise = torch.randn(50, 2, generator=torch.Generator().manual_seed(2))
    actions, log_probs = squashed_sample(outputs, noise)
    mean, log_std = outputs.double().chunk(2, dim=-1)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    u = mean + log_std.exp() * noise.double()
    expected = reference.base_dist.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)
    torch.testing.assert_close(actions.double(), torch.tanh(u), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(log_probs.double(), expected.sum(-1), atol=1e-3, rtol=1e-4)
    inner = (actions.abs() < 0.99).all(-1)
    again = reference.log_prob(actions.double()).sum(-1)
    torch.testing.assert_close(log_probs.double()[inner], again[inner], atol=1e-3, rtol=1e-3)


def test_log_probs_stay_finite_where_tanh_is_one() -> None:
    outputs = torch.tensor([[40.0, -40.0, 2.0, 2.0]], requires_grad=True)
    actions, log_probs = squashed_sample(outputs, torch.zeros(1, 2))
    log_probs.sum().backward()
    assert actions.abs().max() == 1.0 and log_probs.isfinite().all()
    assert outputs.grad is not None and outputs.grad.isfinite().all()


def test_losses_are_the_papers() -> None:
    """Row by row, in plain Python."""
    rng = np.random.default_rng(0)
    returns, log_probs = rng.normal(size=4), rng.normal(size=4)
    discounts = np.array([0.99, 0.0, 0.98, 0.99])  # the second one terminated
    q, next_q = rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    tensor = torch.from_numpy
    targets = soft_targets(tensor(returns), tensor(discounts), tensor(next_q), tensor(log_probs), 0.3)
    expected = [returns[i] + discounts[i] * (min(next_q[0, i], next_q[1, i]) - 0.3 * log_probs[i]) for i in range(4)]
    np.testing.assert_allclose(targets.numpy(), expected)
    assert targets[1] == returns[1]
    by_hand = sum((q[k, i] - expected[i]) ** 2 / 2 for k in range(2) for i in range(4)) / 4
    np.testing.assert_allclose(float(critic_loss(tensor(q), targets)), by_hand)
    by_hand = sum(0.3 * log_probs[i] - min(q[0, i], q[1, i]) for i in range(4)) / 4
    np.testing.assert_allclose(float(actor_loss(tensor(q), tensor(log_probs), 0.3)), by_hand)


def test_alpha_rises_while_the_entropy_is_below_its_target() -> None:
    config, _ = make()
    alpha = EntropyCoefficient(config, -2.0)
    assert alpha.value == 1.0 and alpha.target_entropy == -2.0
    alpha.descend(mean_log_prob=5.0, learning_rate=0.01)  # entropy -5: below -2
    assert alpha.value == pytest.approx(np.exp(0.01), rel=1e-4)  # Adam's first step: the learning rate
    for _ in range(5):
        alpha.descend(mean_log_prob=-3.0, learning_rate=0.01)
    assert alpha.value < np.exp(0.01)
    fixed = EntropyCoefficient(make(entropy_coef=0.2)[0], -2.0)
    fixed.descend(mean_log_prob=5.0, learning_rate=0.01)
    assert fixed.value == 0.2


def adams_first_step(module: torch.nn.Module) -> None:
    """Both moments are the gradient's own then: w - lr * g / (|g| + eps). Gradients are gone after it."""
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter -= 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)
            parameter.grad = None


def test_a_gradient_step_is_the_one_that_autograd_makes() -> None:
    """Everything of one step, from two copies of the networks: the losses as they stand in the paper, by autograd."""
    sac = make_learner(target_tau=0.25)
    nets = sac.trainee
    rng = np.random.default_rng(2)
    columns = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    columns[1] = np.array([2.0, 5.0], np.float32) * rng.uniform(-1, 1, (5, 2)).astype(np.float32) + np.array(
        [0.0, 5.0], np.float32
    )
    columns[3] = np.array([0.9, 0.0, 0.9, 0.9, 0.9], np.float32)
    [batch] = nets.minibatches(*columns)
    np.testing.assert_allclose(batch.actions.numpy() * [2, 5] + [0, 5], columns[1], rtol=1e-5)

    actor, critics, target = (copy.deepcopy(each) for each in (nets.actor, nets.critics, nets.target_critics))
    generator = torch.Generator()
    generator.set_state(nets._generator.get_state())
    draws = [torch.randn(5, 2, generator=generator) for _ in range(2)]
    with torch.no_grad():
        next_actions, next_log_probs = squashed_sample(actor(batch.next_features), draws[0])
        next_q = target(batch.next_features, next_actions).min(0).values
        y = batch.returns + batch.discounts * (next_q - 1.0 * next_log_probs)
    (0.5 * ((critics(batch.features, batch.actions) - y) ** 2).mean(1).sum()).backward()
    adams_first_step(critics)
    actions, log_probs = squashed_sample(actor(batch.features), draws[1])
    (log_probs - critics(batch.features, actions).min(0).values).mean().backward()
    adams_first_step(actor)

    before = [parameter.clone() for parameter in nets.target_critics.parameters()]
    figures = sac.train(batch)
    for own, other in zip(
        (*nets.actor.parameters(), *nets.critics.parameters()),
        (*actor.parameters(), *critics.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)
    for target_now, old, online in zip(
        nets.target_critics.parameters(), before, nets.critics.parameters(), strict=True
    ):
        torch.testing.assert_close(target_now, 0.75 * old + 0.25 * online)
    assert figures["entropy"] == pytest.approx(-float(log_probs.detach().mean()), rel=1e-5)


def test_the_actors_loss_goes_through_the_critics_and_gives_them_no_gradient() -> None:
    sac = make_learner()
    nets = sac.trainee
    columns = [np.ones(shape, np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    [batch] = nets.minibatches(*columns)
    sac.train(batch)
    before = [p.grad.clone() for p in nets.critics.parameters() if p.grad is not None]
    assert before
    loss = nets.critics(batch.features, nets.actor(batch.features)[:, :2]).mean()
    nets.descend_actor(loss, 1e-3)
    for old, own in zip(before, nets.critics.parameters(), strict=True):
        torch.testing.assert_close(own.grad, old, rtol=0, atol=0)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    sac = make_learner()
    columns = [np.zeros(shape, np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    columns[2][3] = np.nan
    before = sac.get_state()
    [batch] = sac.trainee.minibatches(*columns)
    assert not np.isfinite(sac.train(batch)["gradient_norm"])
    names = sac.trainee.non_finite_gradients()
    assert "critics.first.weights.0" in names and all(name.startswith("critics.") for name in names)
    after = sac.get_state()
    for part in ("weights", "critics", "target_critics"):
        for name, array in before[part].items():
            np.testing.assert_array_equal(after[part][name], array)
    assert after["alpha"]["log_alpha"] == before["alpha"]["log_alpha"]


def test_the_critics_have_a_learning_rate_of_their_own() -> None:
    learner = make_learner(critic_learning_rate={"schedule": "linear", "start": 0.5, "end": 0.0, "horizon": 100})
    assert learner.value(learner.config.learning_rate) == 1e-3
    learner.env_steps = 50
    assert learner.critic_learning_rate == 0.25
    assert make_learner().critic_learning_rate == 1e-3
