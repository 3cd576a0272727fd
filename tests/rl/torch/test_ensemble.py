"""The ensemble of dynamics models: its arithmetic beside a plain one, elites, early stopping, terminations, state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.mbpo import ModelConfig
from rlplat.rl.torch.ensemble import DynamicsEnsemble, EnsembleNetwork, gaussian_nll

pytestmark = pytest.mark.slow


def make(num_obs: int = 2, num_actions: int = 1, **settings: Any) -> DynamicsEnsemble:
    config = ModelConfig(**{"hidden_sizes": [16], "ensemble_size": 3, "num_elites": 2, "batch_size": 32} | settings)
    return DynamicsEnsemble(config, num_obs, num_actions, torch.device("cpu"), np.random.SeedSequence(1))


def experience(size: int = 400) -> tuple[np.ndarray, ...]:
    """s' = s + (s_1, a) / 10, r = s_0 + 2 a; nothing terminates."""
    rng = np.random.default_rng(3)
    obs, actions = (rng.normal(size=(size, k)).astype(np.float32) for k in (2, 1))
    next_obs = obs + 0.1 * np.concatenate([obs[:, 1:], actions], axis=1)
    return obs, actions, obs[:, 0] + 2.0 * actions[:, 0], next_obs, np.zeros(size, np.bool_)


def test_the_likelihood_is_that_of_a_normal_distribution() -> None:
    means, log_vars, targets = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1)).unbind()
    known = torch.ones(2, 5, 4)
    known[1, 2, :3] = 0.0
    log_probs = torch.distributions.Normal(means, (0.5 * log_vars).exp()).log_prob(targets)
    expected = [-log_probs[0].mean(), -(log_probs[1].sum() - log_probs[1, 2, :3].sum()) / 17]
    constant = 0.5 * np.log(2 * np.pi)
    found = gaussian_nll(means, log_vars, targets, known)
    np.testing.assert_allclose(found + constant, np.array(expected), rtol=1e-5)


def test_members_side_by_side_are_networks_of_their_own() -> None:
    network = EnsembleNetwork(3, 4, [8, 6], 2)
    with torch.no_grad():
        for part in network.parameters():
            part.add_(torch.randn(part.shape, generator=torch.Generator().manual_seed(len(part))))
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
    found = network(x)
    for member in range(3):
        layers = [
            (w[member].detach().numpy(), b[member].detach().numpy())
            for w, b in zip(network.weights, network.biases, strict=True)
        ]
        h = x[member].numpy()
        for w, b in layers[:-1]:
            h = h @ w + b
            h = h / (1 + np.exp(-h))
        h = h @ layers[-1][0] + layers[-1][1]
        low, high = network.min_log_var.detach().numpy(), network.max_log_var.detach().numpy()
        log_var = high - np.log1p(np.exp(high - h[:, 2:4]))
        log_var = low + np.log1p(np.exp(log_var - low))
        for got, expected in zip(found, (h[:, :2], log_var, h[:, 4]), strict=True):
            np.testing.assert_allclose(got[member].detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    asked = network(x[[2, 0]], torch.tensor([2, 0]))
    for got, all_of_them in zip(asked, found, strict=True):
        np.testing.assert_allclose(got.detach(), all_of_them[[2, 0]].detach(), rtol=1e-5, atol=1e-6)


def test_it_learns_a_linear_system() -> None:
    ensemble, data = make(max_epochs=25, learning_rate=1e-2), experience()
    figures = ensemble.fit(*data)
    assert figures["loss"] < 0.01 and figures["skipped_minibatches"] == 0
    predicted = ensemble.predict(data[0][:101], data[1][:101])  # no multiple of the elites
    assert predicted.next_obs.shape == (101, 2) and predicted.next_obs.dtype == np.float32
    # Samples: their deviation is what the model does not know. That of the changes themselves is 0.1, of rewards 2.2.
    assert np.std(predicted.next_obs - data[3][:101]) < 0.03 and np.std(predicted.rewards - data[2][:101]) < 0.5
    assert not predicted.terminated.any()


def test_samples_deviate_as_the_data_does() -> None:
    obs, actions, _, next_obs, terminated = experience(1_000)
    noise = np.random.default_rng(1).normal(size=1_000).astype(np.float32)
    ensemble = make(max_epochs=8, learning_rate=1e-2)
    ensemble.fit(obs, actions, noise, next_obs, terminated)
    assert np.std(ensemble.predict(obs, actions).rewards) == pytest.approx(1.0, abs=0.1)


def offset(ensemble: DynamicsEnsemble, offsets: list[float]) -> None:
    """Members that predict a constant: the mean of the data, and so many deviations more."""
    with torch.no_grad():
        for part in ensemble._members():
            part.zero_()
        ensemble.network.biases[-1][:, 0, :3] = torch.tensor(offsets)[:, None]


def test_elites_are_the_members_of_least_validation_loss() -> None:
    ensemble = make(ensemble_size=4, learning_rate=1e-12, max_epochs=1, weight_decay=0.0)
    offset(ensemble, [3.0, 0.0, -1.0, 2.0])
    figures = ensemble.fit(*experience(4_000))
    assert ensemble.elites.tolist() == [1, 2]
    # Scaled targets have mean square 1; those of a member that is 1 off, 2.
    assert figures["loss"] == pytest.approx(1.5, rel=0.1)


def test_training_ends_when_nothing_gets_better() -> None:
    assert make(learning_rate=1e-12, patience=3).fit(*experience(64))["epochs"] == 4
    assert make(learning_rate=1e-2, max_epochs=2).fit(*experience(64))["epochs"] == 2


def test_each_member_keeps_its_best_epoch() -> None:
    """With steps so large that the last epoch is not the best."""
    ensemble, data = make(learning_rate=0.2, max_epochs=12, validation_share=0.0), experience(64)
    seen: list[Any] = []
    measure = ensemble._validation_losses
    ensemble._validation_losses = lambda rows: seen.append(measure(rows)) or seen[-1]  # type: ignore[method-assign]
    ensemble.fit(*data)
    best = torch.stack(seen).amin(dim=0)
    assert (seen[-1] > 1.02 * best).any()
    assert bool((measure(ensemble._rows(*data)) <= best / 0.99 + 1e-6).all())


def test_terminations_are_learnt_where_there_are_any() -> None:
    """It ends where s_0 > 0.5: the state after that is unknown, and is not learnt."""
    obs, actions, rewards, next_obs, _ = experience(600)
    terminated = obs[:, 0] > 0.5
    next_obs = np.where(terminated[:, None], np.float32(1e6), next_obs)
    ensemble = make(max_epochs=12, learning_rate=1e-2)
    ensemble.fit(obs, actions, rewards, next_obs, terminated)
    predicted = ensemble.predict(obs, actions)
    assert np.mean(predicted.terminated == terminated) > 0.95
    goes_on = ~terminated
    assert np.std(predicted.next_obs[goes_on] - next_obs[goes_on]) < 0.05
    ensemble.fit(*experience(600))
    assert not ensemble.predict(obs, actions).terminated.any(), "none were seen"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_few_rows(size: int) -> None:
    ensemble, data = make(max_epochs=1), experience(size)
    ensemble.fit(*data)
    everything_ends = np.ones(size, np.bool_)
    ensemble.fit(*data[:4], everything_ends)
    found = ensemble.predict(data[0], data[1])
    assert all(np.isfinite(column).all() and len(column) == size for column in found)


def test_what_is_not_finite_changes_nothing_and_is_counted() -> None:
    ensemble, (obs, *others) = make(max_epochs=2), experience(64)
    before = [part.detach().clone() for part in ensemble.network.parameters()]
    assert ensemble.fit(np.full_like(obs, np.nan), *others)["skipped_minibatches"] == 4  # of 52 rows, twice
    assert all(torch.equal(one, other) for one, other in zip(before, ensemble.network.parameters(), strict=True))


def test_goes_on_as_it_was() -> None:
    one, other, data = make(max_epochs=2), make(max_epochs=2), experience(64)
    one.fit(*data)
    other.set_state(one.get_state())
    for _ in range(2):
        for found, expected in zip(other.predict(*data[:2]), one.predict(*data[:2]), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert one.fit(*data) == other.fit(*data)
