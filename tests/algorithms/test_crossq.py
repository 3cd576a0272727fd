"""CrossQ's joint forward pass and gradient step beside references; what acts with its weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from rlplat.algorithms.crossq import CrossQ, CrossQConfig, CrossQLearner, joint_values
from rlplat.errors import ConfigError
from rlplat.rl.policies.bounded_actor import RENORM_EPSILON
from rlplat.rl.torch.agent_module import agent_module
from rlplat.rl.torch.continuous_control import squashed_sample
from rlplat.rl.torch.weights import weights_of
from tests.algorithms.test_sac_loss import SPACES
from tests.algorithms.test_tqc import learner_of


def minibatch(learner: CrossQLearner, seed: int = 2) -> Any:
    rng = np.random.default_rng(seed)
    columns = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    columns[1] = np.tanh(columns[1]) * np.array([2.0, 5.0], np.float32) + np.array([0.0, 5.0], np.float32)
    columns[3] = np.array([0.9, 0.0, 0.9, 0.9, 0.9], np.float32)
    [batch] = learner.trainee.minibatches(*columns)
    return batch


def plain(critic: Any, x: Tensor, statistics: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
    """A critic in its warm-up, layer by layer: normalised by x itself, or by these means and variances."""
    for index, (renorm, weight, bias) in enumerate(zip(critic.renorms, critic.weights, critic.biases, strict=True)):
        mean, variance = (x.mean(0), x.var(0, correction=0)) if statistics is None else statistics[index]
        x = (x - mean) / (variance + RENORM_EPSILON).sqrt() * renorm.weight + renorm.bias
        x = x @ weight + bias
        if index < len(critic.weights) - 1:
            x = torch.relu(x)
    return x.squeeze(-1)


def test_both_halves_are_normalised_by_the_statistics_of_the_mixture() -> None:
    learner: CrossQLearner = learner_of(CrossQ, policy={"critic_hidden_sizes": [6, 6]})
    batch, next_actions = minibatch(learner), torch.tanh(torch.randn(5, 2))
    batch = batch._replace(next_features=batch.next_features + 3.0)
    critics = learner.trainee.critics
    rows = torch.cat([torch.cat([batch.features, batch.actions], 1), torch.cat([batch.next_features, next_actions], 1)])
    q, next_q = joint_values(critics, batch, next_actions)
    for k, critic in enumerate((critics.first, critics.second)):
        torch.testing.assert_close(torch.cat([q[k], next_q[k]]), plain(critic, rows), rtol=1e-4, atol=1e-5)
        alone = plain(critic, rows[:5])
        assert (q[k] - alone).abs().max() > 0.01
        first = critic.renorms[0]
        torch.testing.assert_close(first.mean, 0.01 * rows.mean(0))
        torch.testing.assert_close(first.variance, 0.99 + 0.01 * rows.var(0, correction=0))
    assert q.requires_grad and not next_q.requires_grad and not critics.training


def test_a_gradient_step_is_the_one_that_autograd_makes() -> None:
    """From copies of the networks: critics, and with policy_delay=1 the actor, by Adam's first step."""
    learner: CrossQLearner = learner_of(CrossQ, policy={"critic_hidden_sizes": [6, 6]}, policy_delay=1)
    nets, batch = learner.trainee, minibatch(learner)
    actor, critics = copy.deepcopy(nets.actor), copy.deepcopy(nets.critics)
    generator = torch.Generator()
    generator.set_state(nets._generator.get_state())
    draws = [torch.randn(5, 2, generator=generator) for _ in range(2)]

    with torch.no_grad():
        next_actions, next_log_probs = squashed_sample(actor(batch.next_features), draws[0])
    before = [[(r.mean.clone(), r.variance.clone()) for r in c.renorms] for c in critics.children()]
    rows = torch.cat([torch.cat([batch.features, batch.actions], 1), torch.cat([batch.next_features, next_actions], 1)])
    values = torch.stack([plain(critic, rows) for critic in critics.children()])
    y = batch.returns + batch.discounts * (values[:, 5:].min(0).values - next_log_probs)
    (0.5 * ((values[:, :5] - y.detach()) ** 2).mean(1).sum()).backward()
    descend(critics)

    figures = learner.train(batch)
    for (name, own), other in zip(nets.critics.named_parameters(), critics.parameters(), strict=True):
        if own.requires_grad:
            torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5, msg=name)
    assert all((r.mean != old[0]).any() for c, olds in zip(nets.critics.children(), before, strict=True)
               for r, old in zip(c.renorms, olds, strict=True))  # fmt: skip

    # The actor sees the critics as they are now, by running statistics; its own are those of the minibatch.
    actor.train()
    actions, log_probs = squashed_sample(actor(batch.features), draws[1])
    inputs = torch.cat([batch.features, actions], dim=1)
    statistics = [[(r.mean, r.variance) for r in c.renorms] for c in nets.critics.children()]
    both = [plain(c, inputs, own) for c, own in zip(nets.critics.children(), statistics, strict=True)]
    (log_probs - torch.stack(both).min(0).values).mean().backward()
    descend(actor)
    for (name, own), other in zip(nets.actor.named_parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4, msg=name)
    assert figures["entropy"] == pytest.approx(-float(log_probs.detach().mean()), rel=1e-5)
    assert nets.target_critics is None and not nets.actor.training


def descend(module: torch.nn.Module) -> None:
    """Adam's first step, whatever the betas: w - lr * g / (|g| + eps)."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None
                parameter -= 1e-3 * parameter.grad / (parameter.grad.abs() + 1e-8)


def test_the_actor_and_alpha_wait_for_their_turn() -> None:
    learner: CrossQLearner = learner_of(CrossQ, policy={"critic_hidden_sizes": [6]}, policy_delay=3)
    for turn in range(1, 7):
        before = {name: array.copy() for name, array in learner.trainee.weights().items()}
        figures = learner.count(batch := minibatch(learner, turn), learner.train(batch))
        changed = {name for name, array in learner.trainee.weights().items() if (array != before[name]).any()}
        is_turn = turn % 3 == 0
        assert ("actor_loss" in figures) is is_turn and bool(changed) is is_turn
    assert changed >= {"head.weight", "encoder.layers.0.weight", "encoder.renorms.1.mean", "encoder.renorms.0.bias"}
    assert learner.trainee.actor.encoder.renorms[0].steps == 2 and learner.trainee.critics.first.renorms[0].steps == 6


def test_adam_has_the_papers_beta() -> None:
    learner: CrossQLearner = learner_of(CrossQ, policy={"critic_hidden_sizes": [6]})
    adams = (learner.trainee._actor_adam, learner.trainee._critic_adam)
    assert [adam._betas for adam in adams] == [(0.5, 0.999)] * 2


def test_what_acts_is_the_actor_by_running_statistics() -> None:
    """In numpy, with the normalisation in the weights of the layers, and as a torch module."""
    learner: CrossQLearner = learner_of(CrossQ, policy={"critic_hidden_sizes": [6]}, policy_delay=1, renorm_warmup=4)
    for turn in range(8):
        learner.train(minibatch(learner, turn))
    policy = CrossQ.make_policy(learner.config.model_dump(), SPACES, np.random.SeedSequence(1))
    weights = weights_of(learner.trainee.actor)
    policy.set_weights(weights)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    with torch.no_grad():
        outputs = learner.trainee.actor(torch.from_numpy(obs))
        module = agent_module(policy, weights, "torch")(torch.from_numpy(obs))
    np.testing.assert_allclose(policy.outputs(obs), outputs.numpy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(module, outputs)
    expected = outputs[:, :2].tanh().numpy() * [2.0, 5.0] + [0.0, 5.0]
    np.testing.assert_allclose(policy.act(obs, deterministic=True).actions, expected, atol=1e-4)


def test_settings_that_cannot_be_or_have_no_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"target_tau=0\.1 has no effect: there are no target networks"):
        CrossQConfig(env="Pendulum-v1", target_tau=0.1)
    with pytest.raises(ConfigError, match=r"policy\.layer_norm=True has no effect: batch renormalisation"):
        CrossQConfig(env="Pendulum-v1", policy={"layer_norm": True})
    with pytest.raises(ConfigError, match="batch_size"):
        CrossQConfig(env="Pendulum-v1", batch_size=1)
    assert CrossQConfig(env="Pendulum-v1", policy={"hidden_sizes": [8]}).policy.critic_hidden_sizes == [2048, 2048]
