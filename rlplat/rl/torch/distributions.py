"""Log-probabilities and entropies as plain functions: what torch.distributions computes, without its validation and
caches, which cost more than the arithmetic in a small network's update."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)


def categorical_log_probs(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """logits: float32[N, A], actions: int64[N] -> (log p(actions), entropy), float32[N] each."""
    log_probs = torch.log_softmax(logits, dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(dim=-1)
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropies


def gaussian_log_probs(means: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """means, actions: float32[N, A], log_std: float32[A] -> (log p(actions), entropy), float32[N] each.

    Independent dimensions: log p = sum_i -((a_i - mu_i) / sigma_i)^2 / 2 - log sigma_i - log(2 pi) / 2;
    entropy = sum_i log sigma_i + (1 + log(2 pi)) / 2.
    """
    normalized = (actions - means) * torch.exp(-log_std)
    size = means.shape[-1]
    log_probs = -0.5 * normalized.square().sum(dim=-1) - log_std.sum() - 0.5 * LOG_2PI * size
    entropy = log_std.sum() + 0.5 * (1.0 + LOG_2PI) * size
    return log_probs, entropy.expand(len(means))


def categorical_sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """logits: float32[N, A] -> int64[N], by Gumbel-max: argmax(logits + G) is a draw from softmax(logits)."""
    exponentials = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - exponentials.log()).argmax(dim=-1)


def gaussian_sample(means: Tensor, log_std: Tensor, generator: torch.Generator) -> Tensor:
    """means: float32[N, A], log_std: float32[A] -> float32[N, A]."""
    noise = torch.empty_like(means).normal_(generator=generator)
    return means + noise * log_std.exp()
