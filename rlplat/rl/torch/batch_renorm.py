"""Batch renormalisation (Ioffe 2017, arXiv:1702.03275), and an MLP with it: CrossQ's, in place of target networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.policies.bounded_actor import RENORM_EPSILON, Renorm
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.torch.encoders import MLPEncoder

MAX_SCALE, MAX_SHIFT = 3.0, 5.0
"""r_max and d_max of the paper, where they end; there they grow from 1 and 0, CrossQ has them at once."""


class BatchRenorm(nn.Module):
    """float32[N, F] -> float32[N, F]:

        y = gamma * ((x - mean_B) / std_B * r + d) + beta
        r = clip(std_B / std, 1 / r_max, r_max),  d = clip((mean_B - mean) / std, +-d_max),  without gradients

    of the batch (B) and running statistics; so that y is, within the clips, that of `eval()`, which uses the running
    ones alone. During the warm-up r = 1, d = 0: batch normalisation. Statistics are parameters without gradients, so
    that they are where weights are.
    """

    def __init__(self, size: int, renorm: Renorm) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.mean = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(size), requires_grad=False)
        self.steps = nn.Parameter(torch.zeros(1), requires_grad=False)
        self._renorm = renorm

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=RENORM_EPSILON)
        r, d = self._corrections(x.detach())
        # The kernel's (x - mean_B) / std_B * weight + bias
        return F.batch_norm(
            x, None, None, self.weight * r, self.weight * d + self.bias, training=True, eps=RENORM_EPSILON
        )

    def _corrections(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """r and d; then the running statistics go on, unless the batch has NaN or infinity. Reads nothing from the
        device."""
        mean = x.mean(dim=0)
        variance = (x - mean).square().mean(dim=0)  # of 512 x 2048 in a tenth of the time that torch.var_mean takes
        std, batch_std = (self.variance + RENORM_EPSILON).sqrt(), (variance + RENORM_EPSILON).sqrt()
        warms_up = self.steps < self._renorm.warmup
        r = (batch_std / std).clamp(1.0 / MAX_SCALE, MAX_SCALE).where(~warms_up, 1.0)
        d = ((mean - self.mean) / std).clamp(-MAX_SHIFT, MAX_SHIFT).where(~warms_up, 0.0)
        weight = self._renorm.momentum * (mean + variance).isfinite().all()
        self.mean.lerp_(mean.nan_to_num(), weight)
        self.variance.lerp_(variance.nan_to_num(), weight)
        self.steps.add_(1.0)
        return r, d


class RenormedEncoder(MLPEncoder):
    """With batch renormalisation before the first layer and after every activation."""

    def __init__(self, renorm: Renorm, num_inputs: int, spec: PolicySpec) -> None:
        super().__init__(num_inputs, spec)
        self.renorms = nn.ModuleList(BatchRenorm(size, renorm) for size in (num_inputs, *spec.hidden_sizes))

    def forward(self, obs: Tensor) -> Tensor:
        first, *others = self.renorms
        features: Tensor = first(obs)
        for layer, renorm in zip(self.layers, others, strict=True):
            features = renorm(self.activation(layer(features)))
        return features
