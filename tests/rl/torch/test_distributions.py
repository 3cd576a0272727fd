"""Against torch.distributions, and samples against the probabilities."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rlplat.rl.torch.distributions import (  # noqa: E402
    categorical_log_probs,
    categorical_sample,
    gaussian_log_probs,
    gaussian_sample,
)


def test_categorical() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5, generator=generator) * 3
    actions = torch.randint(0, 5, (64,), generator=generator)
    log_probs, entropies = categorical_log_probs(logits, actions)
    reference = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(log_probs, reference.log_prob(actions))
    torch.testing.assert_close(entropies, reference.entropy())


def test_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    means, actions = torch.randn(64, 3, generator=generator), torch.randn(64, 3, generator=generator)
    log_std = torch.tensor([-1.0, 0.0, 0.7])
    log_probs, entropies = gaussian_log_probs(means, log_std, actions)
    reference = torch.distributions.Independent(torch.distributions.Normal(means, log_std.exp()), 1)
    torch.testing.assert_close(log_probs, reference.log_prob(actions))
    torch.testing.assert_close(entropies, reference.entropy())


def test_samples_follow_the_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.tensor([0.7, 0.25, 0.05])
    actions = categorical_sample(probabilities.log().expand(20_000, 3), generator)
    frequencies = torch.bincount(actions, minlength=3) / 20_000
    torch.testing.assert_close(frequencies, probabilities, atol=0.015, rtol=0)

    log_std = torch.tensor([-0.7, 0.7])
    samples = gaussian_sample(torch.tensor([1.0, -3.0]).expand(20_000, 2), log_std, generator)
    torch.testing.assert_close(samples.mean(dim=0), torch.tensor([1.0, -3.0]), atol=0.07, rtol=0)
    torch.testing.assert_close(samples.std(dim=0), log_std.exp(), atol=0, rtol=0.03)
