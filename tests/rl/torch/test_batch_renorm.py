"""Batch renormalisation beside a reference in numpy, and acting by it in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rlplat.rl.interfaces import Array
from rlplat.rl.policies.bounded_actor import RENORM_EPSILON, Renorm
from rlplat.rl.torch.batch_renorm import BatchRenorm
from rlplat.rl.torch.optimizers import Adam
from rlplat.rl.torch.weights import load_weights, weights_of

STATISTICS = ("mean", "variance", "steps")


class Reference:
    """Ioffe 2017, algorithm 1, with variances where it has deviations of the running statistics."""

    def __init__(self, renorm: Renorm, gamma: Array, beta: Array) -> None:
        self.renorm, self.gamma, self.beta = renorm, gamma, beta
        self.mean, self.variance, self.steps = np.zeros(len(gamma)), np.ones(len(gamma)), 0

    def train(self, x: Array) -> Array:
        mean, std = x.mean(0), np.sqrt(x.var(0) + RENORM_EPSILON)
        running = np.sqrt(self.variance + RENORM_EPSILON)
        r, d = np.clip(std / running, 1 / 3, 3), np.clip((mean - self.mean) / running, -5, 5)
        if self.steps < self.renorm.warmup:
            r, d = np.ones_like(r), np.zeros_like(d)
        self.mean += self.renorm.momentum * (mean - self.mean)
        self.variance += self.renorm.momentum * (x.var(0) - self.variance)
        self.steps += 1
        y: Array = ((x - mean) / std * r + d) * self.gamma + self.beta
        return y

    def act(self, x: Array) -> Array:
        y: Array = (x - self.mean) / np.sqrt(self.variance + RENORM_EPSILON) * self.gamma + self.beta
        return y


def made(renorm: Renorm, size: int) -> tuple[BatchRenorm, Reference]:
    module, rng = BatchRenorm(size, renorm), np.random.default_rng(3)
    gamma, beta = rng.normal(size=(2, size)).astype(np.float32)
    load_weights(module, weights_of(module) | {"weight": gamma, "bias": beta})
    return module, Reference(renorm, gamma, beta)


@pytest.mark.parametrize("warmup", [0, 2, 100])
def test_training_and_acting_are_the_references(warmup: int) -> None:
    """Within the clips (r < 3, |d| < 5) and beyond them; before the end of the warm-up and after it."""
    rng = np.random.default_rng(0)
    module, reference = made(Renorm(momentum=0.25, warmup=warmup), 4)
    scale, shift = np.array([0.01, 1.0, 9.0, 1.0]), np.array([0.0, -1.0, 0.0, 30.0])
    for step in range(5):
        x = (rng.normal(size=(7, 4)) * scale + shift).astype(np.float32)
        module.train()
        y = module(torch.from_numpy(x))
        np.testing.assert_allclose(y.detach().numpy(), reference.train(x.astype(np.float64)), rtol=1e-4, atol=1e-4)
        module.eval()
        acted = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(acted, reference.act(x.astype(np.float64)), rtol=1e-4, atol=1e-4)
        statistics = {name: getattr(reference, name) for name in STATISTICS}
        for name, expected in statistics.items():
            np.testing.assert_allclose(getattr(module, name).numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert module.steps == step + 1


def test_beyond_the_warmup_training_is_acting_where_nothing_is_clipped() -> None:
    rng = np.random.default_rng(1)
    module, _ = made(Renorm(momentum=0.5, warmup=3), 3)
    batches = [torch.from_numpy(rng.normal(size=(50, 3)).astype(np.float32)) for _ in range(5)]
    for x in batches:
        expected = module.eval()(x)
        y = module.train()(x)
        if module.steps > 3:
            torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        else:
            assert (y - expected).abs().max() > 0.01


def test_gradients_take_the_corrections_as_constants() -> None:
    """Of x, gamma and beta, beside autograd through the formula."""
    module, _ = made(Renorm(momentum=0.1, warmup=0), 3)
    rng = np.random.default_rng(2)
    module.mean.copy_(torch.tensor([0.5, -3.0, 40.0]))
    module.variance.copy_(torch.tensor([2.0, 0.1, 1.0]))
    x = torch.from_numpy(rng.normal(size=(6, 3)).astype(np.float32)).requires_grad_()
    running = (module.variance + RENORM_EPSILON).sqrt()
    std = (x.var(0, correction=0) + RENORM_EPSILON).sqrt()
    r = (std / running).clamp(1 / 3, 3).detach()
    d = ((x.mean(0) - module.mean) / running).clamp(-5, 5).detach()
    y = ((x - x.mean(0)) / std * r + d) * module.weight + module.bias
    wanted = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    inputs: list[Any] = [x, module.weight, module.bias]
    expected = torch.autograd.grad((y * wanted).sum(), inputs)
    for own, other in zip(torch.autograd.grad((module(x) * wanted).sum(), inputs), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_a_batch_that_is_not_finite_leaves_the_statistics() -> None:
    module, _ = made(Renorm(momentum=0.1, warmup=0), 2)
    module(torch.randn(5, 2))
    before = [getattr(module, name).clone() for name in STATISTICS[:2]]
    for bad in (float("nan"), float("inf")):
        x = torch.randn(5, 2)
        x[3, 1] = bad
        module(x)
    for name, old in zip(STATISTICS, before, strict=False):
        torch.testing.assert_close(getattr(module, name), old, rtol=0, atol=0)


def test_statistics_travel_with_the_weights_and_are_not_trained() -> None:
    module, _ = made(Renorm(momentum=0.1, warmup=0), 2)
    module(torch.randn(5, 2))
    weights = weights_of(module)
    assert weights.keys() == {"weight", "bias", *STATISTICS}
    other = BatchRenorm(2, Renorm())
    load_weights(other, weights)
    x = torch.randn(3, 2)
    torch.testing.assert_close(other.eval()(x), module.eval()(x), rtol=0, atol=0)
    adam = Adam(module, epsilon=1e-8, weight_decay=0.1)
    assert adam.get_state().keys() == {"weight", "bias"}
    adam.descend(module(x).square().sum(), 0.1)
    for name in STATISTICS[:2]:
        np.testing.assert_array_equal(getattr(module, name).numpy(), weights[name])
