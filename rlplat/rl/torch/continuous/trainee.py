"""`ActorAndCritics`: an actor and twin critics that are trained on torch, with what SAC and TD3 keep beside them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.policies.bounded_actor import ActionScale, ActorSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved
from rlplat.rl.torch.continuous.networks import Actor, TwinCritic, polyak
from rlplat.rl.torch.device import resolve_device, use_threads
from rlplat.rl.torch.optimizers import Adam
from rlplat.rl.torch.tensor_rows import tensor_on
from rlplat.rl.torch.weights import weights_of


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
        trainee.descend_actor(g(trainee.fixed_critics(..., trainee.actor(...))), learning_rate)
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
        self.fixed_critics = copy.deepcopy(self.critics).requires_grad_(False)
        """The critics' own numbers as constants: a loss of the actor goes through them. Autograd does not see them
        change: no step of the critics between such a loss and its `backward`."""
        for fixed, parameter in zip(self.fixed_critics.parameters(), self.critics.parameters(), strict=True):
            fixed.data = parameter.data
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
        """The same for the actor, whose loss goes through `fixed_critics`."""
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
