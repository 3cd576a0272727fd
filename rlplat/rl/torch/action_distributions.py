"""The distribution over one action array that a network's heads describe, whatever the action space is."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.errors import UsageError
from rlplat.rl.policies.bounded_actor import SDE_EPSILON
from rlplat.rl.policies.spec import PolicySpec

LOG_2PI = math.log(2.0 * math.pi)
MASKED_LOGIT = -1e8
"""Of an illegal action: its probability is exactly 0 in float32, and 0 * log 0 stays 0 instead of NaN."""
MAX_SQUASHED = 1.0 - 1e-6
"""Actions at the very bound have no finite pre-image under tanh."""
MIN_UNIFORM, MAX_UNIFORM = 1e-7, 1.0 - 6e-8
"""Between them log(-log u) is finite in float32."""


def sde_log_std(features: Tensor, log_std: Tensor) -> Tensor:
    """float32[N, A]: log deviations of noise that is a linear function of the features [N, F], whose weights are drawn
    with deviations exp(log_std), [F, A]: sqrt(sum_f (features_f * deviation_f)^2) (Raffin et al. 2021, equation 7)."""
    return 0.5 * torch.log(features.square() @ (2.0 * log_std).exp() + SDE_EPSILON)


class ActionDistribution:
    """Independent parts, one per `Head`: categorical, Bernoulli, Gaussian (also rescaled) or tanh-squashed Gaussian.

        distribution = ActionDistribution(spec, params, log_std, mask)
        actions = distribution.sample(generator)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()

    params: float32[N, P], the heads' logits and means side by side; log_std: float32[G] (or [N, G]) for all Gaussian
    dimensions; mask: bool[N, L] (True: legal) over the logits of the categorical heads, or None. Actions are arrays as
    in `spec.action`: int64[N] for one categorical head, int64[N, K] for several or for bits, float32[N, A] otherwise.
    What torch.distributions would compute, without its validation, which costs more than the arithmetic.
    """

    explored: Tensor | None = None
    """float32[N, F]: with `use_sde`, the features that noise is a function of."""

    def __init__(
        self, spec: PolicySpec, params: Tensor, log_std: Tensor | None = None, mask: Tensor | None = None
    ) -> None:
        if params.shape[-1] != spec.num_params:
            raise UsageError(
                f"the policy head gives {params.shape[-1]} numbers for each action, but actions {spec.action} need "
                f"{spec.num_params}: make it nn.Linear(..., spec.num_params)"
            )
        self._spec = spec
        self._num_rows = params.shape[0]
        heads = spec.heads
        self._params = [params] if len(heads) == 1 else list(params.split([h.size for h in heads], dim=-1))
        self._log_stds: list[Tensor | None] = [None] * len(heads)
        gaussian = [i for i, head in enumerate(heads) if head.is_gaussian]
        if gaussian:
            assert log_std is not None, "Gaussian heads need log_std"
            parts = log_std.split([heads[i].size for i in gaussian], dim=-1)
            for i, part in zip(gaussian, parts, strict=True):
                self._log_stds[i] = part
        if mask is not None:
            categorical = [i for i, head in enumerate(heads) if head.kind == "categorical"]
            parts = mask.split([heads[i].size for i in categorical], dim=-1)
            for i, part in zip(categorical, parts, strict=True):
                self._params[i] = self._params[i].masked_fill(~part, MASKED_LOGIT)
        # Of categorical heads, once for log_prob and entropy.
        self._log_softmax: list[Tensor | None] = [None] * len(heads)

    @property
    def params(self) -> Tensor:
        """float32[N, P]: logits (of illegal actions MASKED_LOGIT) and means, as the heads have them side by side."""
        return torch.cat(self._params, dim=-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw per row."""
        return self._join([self._sample_head(i, generator) for i in range(len(self._params))])

    def sample_from(self, noise: Tensor) -> Tensor:
        """The same from standard normal numbers float32[N, P] in the place of a generator; of zeros, the mode."""
        parts = noise.split([head.size for head in self._spec.heads], dim=-1)
        return self._join([self._draw_head(i, part) for i, part in enumerate(parts)])

    @property
    def log_std(self) -> Tensor | None:
        """float32[N, G]: log of the standard deviations of all Gaussian dimensions; None where there are none."""
        found = [log_std for log_std in self._log_stds if log_std is not None]
        return torch.cat(found, dim=-1).expand(self._num_rows, -1) if found else None

    def mode(self) -> Tensor:
        """The most likely action of every row (squashed: the squashed mean)."""
        return self._join([self._mode_head(i) for i in range(len(self._params))])

    def log_prob(self, actions: Tensor) -> Tensor:
        """float32[N]: log pi(actions)."""
        columns = self._split(actions)
        log_probs = self._log_prob_head(0, columns[0])
        for i in range(1, len(columns)):
            log_probs = log_probs + self._log_prob_head(i, columns[i])
        return log_probs

    def entropy(self) -> Tensor:
        """float32[N]; exact but for squashed heads (see `_entropy_head`)."""
        entropies = self._entropy_head(0)
        for i in range(1, len(self._params)):
            entropies = entropies + self._entropy_head(i)
        return entropies

    def _sample_head(self, i: int, generator: torch.Generator) -> Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            # Gumbel-max: argmax(logits + G) is a draw from softmax(logits), and -log(Exponential) is such a G.
            exponentials = torch.empty_like(params).exponential_(generator=generator)
            return (params - exponentials.log()).argmax(dim=-1)
        if kind == "bernoulli":
            return (torch.empty_like(params).uniform_(generator=generator) < params.sigmoid()).long()
        noise = torch.empty_like(params).normal_(generator=generator)
        return self._squash(i, params + noise * self._log_std(i).exp())

    def _draw_head(self, i: int, noise: Tensor) -> Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            return (params + normal_to_gumbel(noise)).argmax(dim=-1)
        if kind == "bernoulli":
            return (normal_to_uniform(noise) < params.sigmoid()).long()
        return self._squash(i, params + noise * self._log_std(i).exp())

    def _mode_head(self, i: int) -> Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            return params.argmax(dim=-1)
        if kind == "bernoulli":
            return (params > 0).long()
        return self._squash(i, params)

    def _log_prob_head(self, i: int, actions: Tensor) -> Tensor:
        """actions: [N] (categorical) or [N, size] -> float32[N]."""
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            return self._log_probs(i).gather(1, actions.long().unsqueeze(1)).squeeze(1)
        if kind == "bernoulli":
            # log sigma(l) where the bit is 1, log sigma(-l) where it is 0.
            return F.logsigmoid(torch.where(actions > 0.5, params, -params)).sum(dim=-1)
        log_std = self._log_std(i)
        correction = None
        if self._spec.heads[i].low:
            actions, correction = self._unsquash(i, actions)
        # sum_i -((a_i - mu_i) / sigma_i)^2 / 2 - log sigma_i - log(2 pi) / 2
        normalized = (actions - params) * torch.exp(-log_std)
        size = params.shape[-1]
        log_probs = -0.5 * normalized.square().sum(dim=-1) - log_std.sum(dim=-1) - 0.5 * LOG_2PI * size
        return log_probs if correction is None else log_probs - correction

    def _entropy_head(self, i: int) -> Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            log_probs = self._log_probs(i)
            return -(log_probs.exp() * log_probs).sum(dim=-1)
        if kind == "bernoulli":
            ones = params.sigmoid()
            return (ones * F.softplus(-params) + (1.0 - ones) * F.softplus(params)).sum(dim=-1)
        size, log_std = params.shape[-1], self._log_std(i)
        entropy = log_std.sum(dim=-1) + 0.5 * (1.0 + LOG_2PI) * size
        if self._spec.heads[i].low:
            # H(squash(u)) = H(u) + E[log |d squash / du|]; the expectation, for want of a closed form, at the mean
            # (of a rescaled head, the slope is the same everywhere).
            return entropy + self._log_slope(i, params)
        return entropy.expand(self._num_rows)

    def _log_probs(self, i: int) -> Tensor:
        log_probs = self._log_softmax[i]
        if log_probs is None:
            log_probs = self._log_softmax[i] = torch.log_softmax(self._params[i], dim=-1)
        return log_probs

    def _log_std(self, i: int) -> Tensor:
        log_std = self._log_stds[i]
        assert log_std is not None
        return log_std

    def _bounds(self, i: int) -> tuple[Tensor, Tensor]:
        head, like = self._spec.heads[i], self._params[i]
        return like.new_tensor(head.low), like.new_tensor(head.high)

    def _squash(self, i: int, u: Tensor) -> Tensor:
        """low + (high - low) (tanh u + 1) / 2 for squashed heads, without the tanh for rescaled ones, u for others."""
        if not self._spec.heads[i].low:
            return u
        low, high = self._bounds(i)
        if self._spec.heads[i].kind == "gaussian":
            return low + (high - low) * (u + 1.0) / 2.0
        return low + (high - low) * (torch.tanh(u) + 1.0) / 2.0

    def _unsquash(self, i: int, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(the u that is squashed to the actions, log of the slope there: float32[N])."""
        low, high = self._bounds(i)
        u = (actions - low) / (high - low) * 2.0 - 1.0
        if self._spec.heads[i].kind == "squashed_gaussian":
            u = torch.atanh(u.clamp(-MAX_SQUASHED, MAX_SQUASHED))
        return u, self._log_slope(i, u)

    def _log_slope(self, i: int, u: Tensor) -> Tensor:
        """float32[N]: sum of log d squash / du = log((high - low) / 2) + log(1 - tanh(u)^2), the latter in the form
        2 (log 2 - u - softplus(-2u)), which does not cancel (Haarnoja et al. 2018, appendix C)."""
        low, high = self._bounds(i)
        if self._spec.heads[i].kind == "gaussian":
            return torch.log((high - low) / 2.0).sum().expand(u.shape[0])
        log_slopes = torch.log((high - low) / 2.0) + 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
        return log_slopes.sum(dim=-1)

    def _split(self, actions: Tensor) -> list[Tensor]:
        """The columns of every head: [N] for categorical ones, [N, size] for others."""
        heads = self._spec.heads
        if len(heads) == 1:
            one_column = heads[0].kind == "categorical" and actions.ndim == 2
            return [actions.squeeze(-1) if one_column else actions]
        parts = actions.split([head.num_columns for head in heads], dim=-1)
        return [
            part.squeeze(-1) if head.kind == "categorical" else part for part, head in zip(parts, heads, strict=True)
        ]

    def _join(self, parts: list[Tensor]) -> Tensor:
        """The heads' actions as the one array of `spec.action`."""
        if self._spec.action.kind == "discrete":
            return parts[0]
        columns = [part.unsqueeze(-1) if part.ndim == 1 else part for part in parts]
        if self._spec.action.kind == "composite":
            columns = [column.float() for column in columns]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)


def normal_to_uniform(noise: Tensor) -> Tensor:
    """Standard normal numbers -> uniform in (0, 1): their cumulative distribution; 0 -> 1/2."""
    uniform: Tensor = 0.5 * (1.0 + torch.erf(noise * math.sqrt(0.5)))
    return uniform.clamp(MIN_UNIFORM, MAX_UNIFORM)


def normal_to_gumbel(noise: Tensor) -> Tensor:
    """Standard normal numbers -> Gumbel: argmax(logits + G) is a draw from softmax(logits)."""
    return -(-normal_to_uniform(noise).log()).log()
