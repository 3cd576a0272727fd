"""The networks of SAC and TD3 on torch: an actor and twin critics, MLPs of features (`obs_tree.flat_features`) and
actions in (-1, 1), and `ActorAndCritics`, which trains them with what both keep beside."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.obs_tree import num_features
from rlplat.rl.policies.bounded_actor import MAX_LOG_STD, MIN_LOG_STD, ActionScale, ActorSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.device import linear, resolve_device, use_threads
from rlplat.rl.torch.encoders import MLPEncoder, TensorObs, leaf_features
from rlplat.rl.torch.optimizers import Adam
from rlplat.rl.torch.tensor_rows import tensor_on
from rlplat.rl.torch.weights import weights_of

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
    """obs: [N, ...] (or a dict of such) -> float32[N, F], as `obs_tree.flat_features` makes them."""
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


@contextmanager
def fixed(module: nn.Module) -> Iterator[None]:
    """Its numbers are constants: what is computed within gives it no gradients."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


class Transitions(NamedTuple):
    """A minibatch of N transitions of up to n steps, as tensors."""

    features: Tensor
    """float32[N, F]"""
    actions: Tensor
    """float32[N, A] within [-1, 1]"""
    returns: Tensor
    """float32[N]: the discounted rewards of the window."""
    discounts: Tensor
    """float32[N]: what the value of the next state counts; 0 where the episode terminated."""
    next_features: Tensor
    """float32[N, F]"""


class ActorAndCritics(Saved):
    """The networks on their device, an Adam for each, target critics, and a generator of noise.

    for batch in trainee.minibatches(features, actions, returns, discounts, next_features):
        norm = trainee.descend_critics(f(trainee.critics(...)), learning_rate)
        with fixed(trainee.critics):
            loss = g(trainee.critics(..., trainee.actor(...)))
        trainee.descend_actor(loss, learning_rate)
        trainee.update_targets()
    """

    saved = {
        "weights": "actor",
        "critics": "critics",
        "target_critics": "target_critics",
        "actor_optimizer": "_actor_adam",
        "critic_optimizer": "_critic_adam",
        "noise": "_generator",
    }

    def __init__(self, config: Any, spec: PolicySpec, actor: ActorSpec, seed: np.random.SeedSequence) -> None:
        """config: an `OffPolicyConfig`."""
        use_threads(config.learner.num_threads, spec)
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        self.device = resolve_device(config.learner.device, spec)
        network_seed, noise_seed = (int(each) for each in seed.generate_state(2))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed)
            self.actor = Actor(spec, actor).to(self.device)
            self.critics = TwinCritic(spec).to(self.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._generator = torch.Generator().manual_seed(noise_seed)
        self._scale, self._batch_size, self._tau = ActionScale(spec), config.batch_size, config.target_tau
        self._max_norm = config.max_gradient_norm or math.inf
        self._actor_adam = Adam(self.actor, epsilon=config.adam_epsilon)
        self._critic_adam = Adam(self.critics, epsilon=config.adam_epsilon)

    def minibatches(
        self, features: Array, actions: Array, returns: Array, discounts: Array, next_features: Array
    ) -> Iterator[Transitions]:
        """Many transitions, `batch_size` at a time; actions in the environment's units."""
        columns = (features, self._scale.from_environment(actions), returns, discounts, next_features)
        tensors = [tensor_on(self.device, column) for column in columns]
        for parts in zip(*(tensor.split(self._batch_size) for tensor in tensors), strict=True):
            yield Transitions(*parts)

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers float32[N, A], for N rows of actions as `like` has them."""
        return torch.randn(like.shape, generator=self._generator).to(self.device)

    def descend_critics(self, loss: Tensor, learning_rate: float) -> float:
        """One gradient step -> the norm before clipping. One that is not finite changed nothing."""
        return self._critic_adam.descend(loss, learning_rate, self._max_norm)

    def descend_actor(self, loss: Tensor, learning_rate: float) -> float:
        """The same for the actor, whose loss goes through the critics, `fixed`."""
        return self._actor_adam.descend(loss, learning_rate, self._max_norm)

    def update_targets(self) -> None:
        """target = (1 - tau) * target + tau * online"""
        polyak(self.target_critics, self.critics, self._tau)

    def non_finite_gradients(self) -> list[str]:
        """Names of the parameters whose gradients hold NaN or infinity."""
        named = [*self.actor.named_parameters("actor"), *self.critics.named_parameters("critics")]
        return [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]

    def weights(self) -> Weights:
        """The actor's: what policies act with."""
        return weights_of(self.actor)

    def set_state(self, state: dict[str, Any]) -> None:
        if "all" in state["actor_optimizer"]:
            raise CheckpointError(
                "the checkpoint is of an earlier rlplat, which kept both critics as one network: it cannot be resumed; "
                "begin a new run with its actor: --init-from RUN"
            )
        super().set_state(state)
