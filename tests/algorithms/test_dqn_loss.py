"""DQN's losses against references that are written out number by number."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.algorithms.dqn import c51_projection, quantile_huber_losses, td_losses

RNG = np.random.default_rng(7)
N, A, Z = 6, 3, 11


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float32))


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5


def naive_projection(returns: np.ndarray, discounts: np.ndarray, probs: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1, line by line."""
    low, high, num_atoms = support[0], support[-1], len(support)
    spacing = (high - low) / (num_atoms - 1)
    projected = np.zeros_like(probs)
    for n in range(len(returns)):
        for j in range(num_atoms):
            moved = min(max(returns[n] + discounts[n] * support[j], low), high)
            b = (moved - low) / spacing
            lower, upper = int(np.floor(b)), int(np.ceil(b))
            if lower == upper:
                projected[n, lower] += probs[n, j]
            else:
                projected[n, lower] += probs[n, j] * (upper - b)
                projected[n, upper] += probs[n, j] * (b - lower)
    return projected


def test_c51_projection_is_the_naive_loop() -> None:
    support = np.linspace(-5.0, 5.0, Z)
    returns = np.array([0.0, 1.0, -7.3, 20.0, 0.37, 2.5])  # on atoms, between, beyond both ends
    discounts = np.array([1.0, 0.0, 0.9, 0.9, 0.97, 0.5])
    probs = RNG.dirichlet(np.ones(Z), size=N)
    got = c51_projection(tensor(returns), tensor(discounts), tensor(probs), tensor(support)).numpy()
    np.testing.assert_allclose(got, naive_projection(returns, discounts, probs, support), atol=1e-5)
    np.testing.assert_allclose(got.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(got[0], probs[0], atol=1e-6)  # R = 0, discount 1: nothing moves
    assert got[1].argmax() == 6 and got[1, 6] == pytest.approx(1.0)  # terminated: all of it at R = 1
    assert got[3, -1] == pytest.approx(1.0)


def test_c51_loss_is_the_divergence_from_the_projected_target() -> None:
    support = np.linspace(-5.0, 5.0, Z)
    outputs, next_outputs = RNG.normal(size=(2, N, A, Z))
    actions, next_actions = RNG.integers(A, size=(2, N))
    returns, discounts = RNG.normal(size=N), np.array([0.9, 0.0, 0.9, 0.9, 0.0, 0.9])
    losses, errors = td_losses(
        tensor(outputs), torch.from_numpy(actions), tensor(next_outputs), torch.from_numpy(next_actions),
        tensor(returns), tensor(discounts), distributional="c51", support=tensor(support),
    )  # fmt: skip

    def softmax(x: np.ndarray) -> np.ndarray:
        return np.exp(x) / np.exp(x).sum()

    next_probs = np.stack([softmax(next_outputs[n, next_actions[n]]) for n in range(N)])
    targets = naive_projection(returns, discounts, next_probs, support)
    for n in range(N):
        q = softmax(outputs[n, actions[n]])
        expected = sum(p * np.log(p / q[j]) for j, p in enumerate(targets[n]) if p > 0)
        assert float(losses[n]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert float(errors[n]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_quantile_huber_is_the_double_sum() -> None:
    """Dabney et al. 2018, eq. 9 and 10, kappa = 1."""
    quantiles, targets = RNG.normal(size=(2, N, Z)) * 2
    got = quantile_huber_losses(tensor(quantiles), tensor(targets)).numpy()
    for n in range(N):
        expected = 0.0
        for i in range(Z):
            tau = (2 * i + 1) / (2 * Z)
            for j in range(Z):
                u = targets[n, j] - quantiles[n, i]
                expected += abs(tau - (u < 0)) * huber(u) / Z
        assert got[n] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_temporal_difference_loss(loss: str) -> None:
    outputs, next_outputs = RNG.normal(size=(2, N, A, 1)) * 2
    actions, next_actions = RNG.integers(A, size=(2, N))
    returns, discounts = RNG.normal(size=N), np.array([0.9, 0.0, 0.9, 0.81, 0.0, 0.9])
    online = tensor(outputs).requires_grad_()
    losses, errors = td_losses(
        online, torch.from_numpy(actions), tensor(next_outputs).requires_grad_(), torch.from_numpy(next_actions),
        tensor(returns), tensor(discounts), loss=loss,
    )  # fmt: skip
    losses.sum().backward()
    losses = losses.detach()
    for n in range(N):
        target = returns[n] + discounts[n] * next_outputs[n, next_actions[n], 0]
        error = target - outputs[n, actions[n], 0]
        assert float(errors[n]) == pytest.approx(error, rel=1e-4, abs=1e-6)
        assert float(losses[n]) == pytest.approx(huber(error) if loss == "huber" else 0.5 * error**2, rel=1e-4)
        slope = -np.clip(error, -1, 1) if loss == "huber" else -error
        assert float(online.grad[n, actions[n], 0]) == pytest.approx(slope, rel=1e-4)
    assert online.grad.count_nonzero() == N  # of the other actions nothing is learnt


def test_qr_targets_are_moved_quantiles() -> None:
    outputs, next_outputs = RNG.normal(size=(2, N, A, Z))
    actions, next_actions = RNG.integers(A, size=(2, N))
    returns, discounts = RNG.normal(size=N), np.full(N, 0.9)
    losses, errors = td_losses(
        tensor(outputs), torch.from_numpy(actions), tensor(next_outputs), torch.from_numpy(next_actions),
        tensor(returns), tensor(discounts), distributional="qr",
    )  # fmt: skip
    chosen = np.stack([outputs[n, actions[n]] for n in range(N)])
    targets = np.stack([returns[n] + 0.9 * next_outputs[n, next_actions[n]] for n in range(N)])
    np.testing.assert_allclose(losses, quantile_huber_losses(tensor(chosen), tensor(targets)), rtol=1e-5)
    np.testing.assert_allclose(errors, targets.mean(axis=1) - chosen.mean(axis=1), rtol=1e-4, atol=1e-5)
