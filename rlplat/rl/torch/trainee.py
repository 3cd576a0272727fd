"""`Trainee`: a network that is trained on torch, with what every algorithm keeps beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplat.data_parallel.torch import process_group
from rlplat.rl.interfaces import Weights
from rlplat.rl.policies.framework_check import GradientNorms
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved
from rlplat.rl.torch.device import resolve_device, resolve_precision, use_threads
from rlplat.rl.torch.network_check import (
    check_network,
    own_class,
    persistent_buffers,
    require_made_alike,
)
from rlplat.rl.torch.network_probe import probe
from rlplat.rl.torch.networks import make_network
from rlplat.rl.torch.optimizers import Adam, RMSProp, adam_of
from rlplat.rl.torch.weights import load_weights, weights_of


class Trainee(GradientNorms, Saved):
    """The network on its device and in its precision; its optimizer; weights and state as numpy.

    trainee = Trainee(config, spec, seed, lambda precision: make_network(spec, precision))
    check_network(trainee.network, spec, trainee.device)
    norm = trainee.descend(f(trainee.network(...)), learning_rate)

    Many steps, none of which waits for the device: `start_descent` for each, then `norms_of` once.
    """

    saved = {"weights": "network", "optimizer": "_optimizer"}

    def __init__(
        self,
        config: Any,
        spec: PolicySpec,
        seed: np.random.SeedSequence,
        make: Callable[[torch.dtype], Any],
        *,
        device: str | None = None,
        num_threads: int | None = None,
        optimizer: Callable[[nn.Module], Adam | RMSProp] | None = None,
    ) -> None:
        """config: of an algorithm; device, num_threads: others than `learner` says; optimizer: of the network, if it is
        not Adam with the config's `adam_epsilon`. Without either gradients go elsewhere."""
        learner = config.learner
        use_threads(learner.num_threads if num_threads is None else num_threads, spec)
        if config.deterministic:
            torch.use_deterministic_algorithms(True)
        self.device = resolve_device(device or learner.device, spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed.generate_state(1)[0]))
            precision = resolve_precision(learner.precision, spec, self.device)
            network = make(precision)
            own = own_class(spec)
            if own or persistent_buffers(network):
                other = make(precision)
                require_made_alike(spec, network, other)
                if own:
                    probe(spec, network, other)
            self.network: Any = network.to(self.device)
        self.names = [name for name, parameter in self.network.named_parameters() if parameter.requires_grad]
        if optimizer is None and getattr(config, "adam_epsilon", None) is not None:
            optimizer = partial(adam_of, config)
        self._optimizer = None if optimizer is None else optimizer(self.network)
        self._max_norm = config.max_gradient_norm or math.inf
        self._group: GradientGroup | None = None

    def join_group(self, address: tuple[str, int], rank: int, num_members: int) -> None:
        """Sum gradients with the other learners from now on (`start_descent`)."""
        self._group = GradientGroup(address, rank, num_members, self.device)

    def descend(self, loss: Tensor, learning_rate: float) -> float:
        """One gradient step -> the norm before clipping. One that is not finite changed nothing."""
        norms = self.start_descent(loss, learning_rate, loss[None])[1]
        return float(self.norms_of(norms.numpy(force=True)[None])[0])

    def start_descent(
        self,
        loss: Tensor,
        learning_rate: float,
        stats: Tensor,
        share: float = 1.0,
        critic_rate: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The same for a minibatch that a group of learners may divide -> (stats of the whole minibatch, what
        `norms_of` takes), both on the device, which is not waited for.

        stats: float32[K], means over this learner's part; share: how large that part is, 1 without a group;
        critic_rate: of `Adam.step`.
        """
        assert self._optimizer is not None, "no optimizer: none was given, and the config has no adam_epsilon"
        self._optimizer.zero_grad()
        if self._group is None:
            loss.backward()
        else:
            (loss * share).backward()
            stats = self._group.sum_gradients(self.network, stats * share)
        own = () if critic_rate is None else (critic_rate,)
        return stats, self._optimizer.step(learning_rate, self._max_norm, *own)

    def gradients(self, loss: Tensor) -> Weights:
        """By name, zeros of what took no part in the loss or is frozen; the network keeps none."""
        named = dict(self.network.named_parameters())
        trained = [parameter for parameter in named.values() if parameter.requires_grad]
        gradients = iter(torch.autograd.grad(loss, trained, materialize_grads=True))
        of_all = [next(gradients) if each.requires_grad else torch.zeros_like(each) for each in named.values()]
        # A convolution's gradient may lie in another order of memory than C's.
        return {name: np.ascontiguousarray(g.numpy()) for name, g in zip(named, of_all, strict=True)}

    def weights(self) -> Weights:
        return weights_of(self.network)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self.network, weights)


def actor_critic_trainee(config: Any, spec: PolicySpec, seed: np.random.SeedSequence, **where: Any) -> Trainee:
    """Of an actor-critic network, which was tried; where: `device`, `num_threads`, `optimizer` of `Trainee`."""
    trainee = Trainee(config, spec, seed, lambda precision: make_network(spec, precision), **where)
    check_network(trainee.network, spec, trainee.device)
    return trainee


class GradientGroup:
    """One member of several processes that sum the gradients of one network: gloo on CPUs, NCCL on GPUs.

    group = GradientGroup((host, port), rank=0, num_members=2, device=torch.device("cpu"))
    (loss * share).backward()                      # share: this member's part of the minibatch's rows
    stats = group.sum_gradients(network, stats * share)
    """

    def __init__(self, address: tuple[str, int], rank: int, num_members: int, device: torch.device) -> None:
        backend = "nccl" if device.type == "cuda" else "gloo"
        process_group.join(*address, rank=rank, world_size=num_members, backend=backend)

    def sum_gradients(self, module: nn.Module, stats: Tensor) -> Tensor:
        """Replace every member's gradients by their sum; returns the sum of `stats` (one message for both)."""
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), stats.detach()])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        parts = flat.split([*sizes, len(stats)])
        for gradient, part in zip(gradients, parts[:-1], strict=True):
            gradient.copy_(part.view_as(gradient))
        return parts[-1]

    def close(self) -> None:
        process_group.leave()
