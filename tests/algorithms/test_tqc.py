"""TQC's losses beside the paper's formulas in plain Python, and what its settings make of the networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.sac import SAC, SACConfig, SACLearner
from rlplat.algorithms.tqc import TQC, TQCConfig, TQCLearner, actor_loss, quantile_loss, truncated_targets
from rlplat.errors import ConfigError
from rlplat.rl.learning.backend import computation_of
from rlplat.rl.policies.spec import policy_spec
from tests.algorithms.test_sac_loss import SPACES

tensor = torch.from_numpy


def learner_of(algorithm: Any, **settings: Any) -> Any:
    given = {"env": "Pendulum-v1", "policy": {"hidden_sizes": [8]}, "batch_size": 5, "seed": 1}
    config = algorithm.config_class(**given | settings)
    spec = policy_spec(config.policy.model_dump(), SPACES)
    return algorithm.learner_class(computation_of(algorithm), config.model_dump(), spec, None)


def test_targets_are_the_smallest_of_the_mixture() -> None:
    """Two critics with three quantiles each; one of each is dropped: the two largest of all, both of the second."""
    quantiles = np.array([[[1.0, 2.0, 3.0], [0.0, 0.0, 9.0]], [[2.5, 7.0, 8.0], [1.0, -1.0, 4.0]]])
    returns, discounts, log_probs = np.array([10.0, 20.0]), np.array([0.5, 0.0]), np.array([-2.0, 5.0])
    columns = (returns, discounts, quantiles, log_probs)
    targets = truncated_targets(*map(tensor, columns), 0.25, dropped_quantiles=1)
    kept = np.array([1.0, 2.0, 2.5, 3.0])
    np.testing.assert_allclose(targets[0].numpy(), 10.0 + 0.5 * (kept + 0.25 * 2.0))
    np.testing.assert_allclose(targets[1].numpy(), 20.0)  # it terminated
    everything = truncated_targets(*map(tensor, columns), 0.0, dropped_quantiles=0)
    np.testing.assert_allclose(everything[0].numpy(), 10.0 + 0.5 * np.array([1.0, 2.0, 2.5, 3.0, 7.0, 8.0]))


def rho(tau: float, u: float) -> float:
    """The paper's equation 9: |tau - 1{u < 0}| huber(u)."""
    huber = 0.5 * u * u if abs(u) <= 1.0 else abs(u) - 0.5
    return abs(tau - (1.0 if u < 0.0 else 0.0)) * huber


def test_the_critics_loss_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    (K, N, M), T = (3, 4, 5), 7
    quantiles, targets = 2.0 * rng.normal(size=(K, N, M)), 2.0 * rng.normal(size=(N, T))
    expected = sum(
        rho((2 * m + 1) / (2 * M), targets[n, i] - quantiles[k, n, m]) / (N * M * T)
        for k in range(K)
        for n in range(N)
        for m in range(M)
        for i in range(T)
    )
    assert float(quantile_loss(tensor(quantiles), tensor(targets))) == pytest.approx(expected, rel=1e-6)


def test_the_loss_pulls_each_quantile_to_its_share_of_the_targets() -> None:
    """The sign: where all targets are above, the upper quantile is pulled harder; where all are below, the lower."""
    for target, ratio in ((10.0, 3.0), (-10.0, 1.0 / 3.0)):
        quantiles = torch.zeros(1, 1, 2, requires_grad=True)
        quantile_loss(quantiles, torch.full((1, 4), target)).backward()
        assert quantiles.grad is not None
        lower, upper = quantiles.grad[0, 0].tolist()
        assert upper / lower == pytest.approx(ratio) and np.sign(upper) == -np.sign(target)
    targets, quantiles = torch.linspace(0.0, 1000.0, 2001)[None], torch.zeros(1, 1, 4, requires_grad=True)
    adam = torch.optim.Adam([quantiles], lr=5.0)
    for _ in range(600):
        adam.zero_grad()
        quantile_loss(quantiles, targets).backward()
        adam.step()
    np.testing.assert_allclose(quantiles.detach()[0, 0].numpy(), [125, 375, 625, 875], atol=5.0)


def test_the_actors_loss_is_the_papers() -> None:
    rng = np.random.default_rng(1)
    quantiles, log_probs = rng.normal(size=(2, 3, 4)), rng.normal(size=3)
    expected = np.mean([0.3 * log_probs[n] - quantiles[:, n].sum() / (2 * 4) for n in range(3)])
    assert float(actor_loss(tensor(quantiles), tensor(log_probs), 0.3)) == pytest.approx(expected)


def test_its_critics_are_what_the_settings_say_and_begin_as_sacs() -> None:
    tqc: TQCLearner = learner_of(TQC, num_critics=5, num_quantiles=7)
    features, actions = torch.randn(5, 3), torch.rand(5, 2)
    critics = tqc.trainee.critics
    together = critics(features, actions)
    assert together.shape == (5, 5, 7)
    for own, critic in zip(together, critics.children(), strict=True):
        torch.testing.assert_close(own, critic(torch.cat([features, actions], dim=1)))
    names = {name.split(".")[0] for name in tqc.get_state()["critics"]}
    assert names == {"first", "second", "third", "fourth", "fifth"}
    sac: SACLearner = learner_of(SAC)
    for own, other in zip(tqc.trainee.actor.parameters(), sac.trainee.actor.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)


def test_a_gradient_step_trains_every_critic_and_moves_its_target() -> None:
    tqc: TQCLearner = learner_of(TQC, num_critics=3, target_tau=0.25)
    rng, nets = np.random.default_rng(2), tqc.trainee
    columns = [rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5, 2), (5,), (5,), (5, 3))]
    before, targets = (
        {k: v.clone() for k, v in each.state_dict().items()} for each in (nets.critics, nets.target_critics)
    )
    [batch] = nets.minibatches(*columns)
    figures = tqc.train(batch)
    assert np.isfinite(list(figures.values())).all() and figures["critic_loss"] > 0
    for name, parameter in nets.critics.named_parameters():
        assert (parameter != before[name]).any(), name
        moved = 0.75 * targets[name] + 0.25 * parameter
        torch.testing.assert_close(dict(nets.target_critics.named_parameters())[name], moved)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="dropped_quantiles=25 leaves nothing of num_quantiles=25"):
        TQCConfig(env="Pendulum-v1", dropped_quantiles=25)
    with pytest.raises(ConfigError, match="num_critics"):
        TQCConfig(env="Pendulum-v1", num_critics=11)
    assert {"num_critics", "num_quantiles"} == {*TQCConfig.fixed_on_resume} - {*SACConfig.fixed_on_resume}
