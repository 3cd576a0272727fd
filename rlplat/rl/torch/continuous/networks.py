"""`Actor` and `TwinCritic`: the MLPs of SAC and TD3, of features (`policies.features`) and actions in (-1, 1)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.policies.bounded_actor import MAX_LOG_STD, MIN_LOG_STD, ActorSpec
from rlplat.rl.policies.features import num_features
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.device import linear
from rlplat.rl.torch.encoders import MLPEncoder, TensorObs, leaf_features

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Actor(nn.Module):
    """float32[N, F] -> float32[N, 2 A], means and log deviations, or float32[N, A], actions before tanh."""

    def __init__(self, spec: PolicySpec, actor: ActorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = MLPEncoder(num_features(spec.obs), spec)
        self.head = nn.Linear(self.encoder.num_features, actor.num_outputs(spec))
        self._activation = (
            torch.tanh_ if spec.activation == "tanh" else torch.relu_
        )  # in place: less memory to move

    def forward(self, features: Tensor) -> Tensor:
        for layer in self.encoder.layers:
            features = self._activation(layer(features))
        outputs: Tensor = self.head(features)
        return outputs


def features(obs: TensorObs, spec: ObsSpec | dict[str, ObsSpec]) -> Tensor:
    """obs: [N, ...] (or a dict of such) -> float32[N, F], as `policies.features.flat_features` makes them."""
    if not isinstance(spec, dict):
        assert isinstance(obs, Tensor)
        return leaf_features(obs, spec)
    assert isinstance(obs, dict)
    return torch.cat([leaf_features(obs[path], leaf) for path, leaf in spec.items()], dim=1)


def squashed_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(actions float32[N, A] in (-1, 1), their log-probabilities float32[N]) of a squashed Gaussian.

        u = mean + std * noise;  a = tanh u;  log pi(a) = log N(u; mean, std) - sum log(1 - tanh(u)^2)

    (Haarnoja et al. 2018b, appendix C), the latter as 2 (log 2 - u - softplus(-2u)), which does not cancel.
    outputs: float32[N, 2 A] of an `Actor`; noise: float32[N, A], standard normal.
    """
    mean, log_std = outputs.chunk(2, dim=-1)
    log_std = log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)
    u = mean + log_std.exp() * noise
    log_slopes = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    log_probs = (-0.5 * noise.square() - log_std - HALF_LOG_2PI - log_slopes).sum(dim=-1)
    return u.tanh(), log_probs


class Critic(nn.Module):
    """float32[N, F + A], features and actions -> float32[N]. Initialised as `nn.Linear` is; weights are [in, out]: the
    gradient of the first layer's, which has few inputs, takes half the time."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        sizes = (num_features(spec.obs) + spec.action.flat_size, *spec.hidden_sizes, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for num_in, num_out in pairwise(sizes):
            bound = 1.0 / math.sqrt(num_in)
            self.weights.append(nn.Parameter(torch.empty(num_in, num_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(num_out).uniform_(-bound, bound)))
        self._layers = list(zip(self.weights, self.biases, strict=True))  # a ParameterList is slow to walk
        self._activation = torch.tanh_ if spec.activation == "tanh" else torch.relu_

    def forward(self, x: Tensor) -> Tensor:
        *hidden, (weight, bias) = self._layers
        for hidden_weight, hidden_bias in hidden:
            x = self._activation(linear(x, hidden_weight.t(), hidden_bias))
        return linear(x, weight.t(), bias).squeeze(-1)


class TwinCritic(nn.Module):
    """(features float32[N, F], actions float32[N, A]) -> float32[2, N], the values by two `Critic`s."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.first, self.second = Critic(spec), Critic(spec)

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([features, actions], dim=-1)
        return torch.stack([self.first(inputs), self.second(inputs)])


def polyak(target: nn.Module, online: nn.Module, tau: float) -> None:
    """target = (1 - tau) * target + tau * online, in place."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), tau)
