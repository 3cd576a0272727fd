"""Adam, AdamW and RAdam on torch's fused kernels, with the clipping of the gradient norm folded into the pass over the
gradients, and RMSProp.

Why not `torch.optim.Adam`: making one imports `torch._dynamo`, a second of every start, and its Python around the same
kernel costs as much as the whole backward pass of a small network. Same numbers: a test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from rlplat.rl.algorithm_config import weight_decay_of

SILENT, SILENCE_PERIOD = 1e-33, 100
"""As in rlplat.rl.learning.numpy_learning: every so many steps moments smaller than this become 0."""


class Adam:
    """Kingma & Ba 2015, algorithm 1, for the parameters of one module; with `weight_decay` AdamW (Loshchilov & Hutter
    2019, algorithm 2): each step takes learning_rate * weight_decay of every parameter away as well."""

    def __init__(
        self,
        module: nn.Module,
        *,
        epsilon: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._names = list(trained)
        self._parameters: list[torch.Tensor] = list(trained.values())
        self._of_critic = [i for i, name in enumerate(self._names) if name.startswith("critic_")]
        self._others = [i for i, name in enumerate(self._names) if not name.startswith("critic_")]
        self._epsilon, self._betas, self._weight_decay = epsilon, betas, weight_decay
        self._descend = torch._fused_adamw_ if weight_decay else torch._fused_adam_
        # zeros_like keeps a parameter's memory order (channels_last): the kernel reads both side by side.
        self._means = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]
        self._calls = 0
        self._skipped = torch.zeros((), device=self._parameters[0].device)
        """Calls of `step` that changed nothing: a number on the device, which the host does not wait for."""

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def descend(self, loss: torch.Tensor, learning_rate: float, max_norm: float = math.inf) -> float:
        """`step` along the gradient of this loss alone, which no other parameters get; waits for the norm of all."""
        self.zero_grad()
        loss.backward(inputs=self._parameters)
        return float(self.step(learning_rate, max_norm)[-1])

    def step(self, learning_rate: float, max_norm: float = math.inf, critic_rate: float | None = None) -> torch.Tensor:
        """Clip the gradients to the global norm `max_norm` (Pascanu et al. 2013) and descend. Reads nothing from the
        device. critic_rate: another learning rate for the parameters called critic_*.

        Returns norms before clipping, float32[P + 1]: of every parameter's gradient, and of all together. When the last
        is not finite nothing is changed.
        """
        gradients, norms = _gradients(self._parameters)
        norm = norms[-1]
        # The kernel divides the gradients by `grad_scale` on the way, and does nothing where `found_inf` is 1.
        scale = torch.clamp((norm + 1e-6) / max_norm, min=1.0) if math.isfinite(max_norm) else None
        is_skipped = (~norm.isfinite()).float()
        self._calls += 1
        self._skipped += is_skipped
        step = self._calls - self._skipped
        factor, epsilon = self._pace()
        columns = (self._parameters, gradients, self._means, self._squares)
        groups: list[tuple[Any, float]] = [(columns, learning_rate * factor)]
        if critic_rate is not None:
            groups = [
                ([[column[index] for index in indices] for column in columns], rate)
                for indices, rate in ((self._others, learning_rate), (self._of_critic, critic_rate))
            ]
        for (parameters, gradients, means, squares), rate in groups:
            self._descend(
                parameters,
                gradients,
                means,
                squares,
                [],
                [step] * len(parameters),
                lr=rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                weight_decay=self._weight_decay,
                eps=epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
                found_inf=is_skipped,
            )
        if self._calls % SILENCE_PERIOD == 0:
            _silence(self._means + self._squares)
        return norms

    def _pace(self) -> tuple[float, float]:
        """(what this step's learning rate is multiplied by, its epsilon)"""
        return 1.0, self._epsilon

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step`, `exp_avg` (first moment), `exp_avg_sq` (second) by parameter name, as numpy."""
        parts = zip(self._names, self._means, self._squares, strict=True)
        steps = self._calls - int(self._skipped)
        return {
            name: {"step": np.array(steps), "exp_avg": _array(mean), "exp_avg_sq": _array(square)}
            for name, mean, square in parts
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        self._skipped.zero_()
        for name, mean, square in zip(self._names, self._means, self._squares, strict=True):
            kept = state[name]
            self._calls = int(kept["step"])
            for tensor, key in ((mean, "exp_avg"), (square, "exp_avg_sq")):
                tensor.copy_(torch.from_numpy(np.array(kept[key])))


class RAdam(Adam):
    """Liu et al. 2020, algorithm 2: no warm-up of the learning rate is needed. Steps that changed nothing count in the
    rectification: how many there were is known to the device alone."""

    INFINITE = 1e12
    """As an epsilon it outweighs the root of the second moment: what is left of the step is momentum."""

    def _pace(self) -> tuple[float, float]:
        beta, t = self._betas[1], self._calls
        longest = 2.0 / (1.0 - beta) - 1.0
        length = longest - 2.0 * t * beta**t / (1.0 - beta**t)
        if length <= 5.0:  # the variance of the adaptive learning rate is not known yet
            return self.INFINITE, self.INFINITE
        rectified = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        return math.sqrt(rectified), self._epsilon

    def get_state(self) -> dict[str, dict[str, Any]]:
        calls = {"calls": np.array(self._calls)}
        return {name: kept | calls for name, kept in super().get_state().items()}

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        super().set_state(state)
        calls = int(state[self._names[0]]["calls"])
        self._skipped += calls - self._calls
        self._calls = calls


class RMSProp:
    """The numbers of `numpy_learning.RMSProp` (no momentum, not centred), for the parameters of one module."""

    def __init__(self, module: nn.Module, *, decay: float, epsilon: float, epsilon_inside_root: bool) -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._names = list(trained)
        self._parameters: list[torch.Tensor] = list(trained.values())
        self._decay, self._epsilon, self._epsilon_inside_root = decay, epsilon, epsilon_inside_root
        self._steps = 0
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, learning_rate: float, max_norm: float = math.inf) -> torch.Tensor:
        """As `Adam.step`, but it waits for the norm; gradients are scaled in place."""
        gradients, norms = _gradients(self._parameters)
        norm = norms[-1]
        if not bool(norm.isfinite()):
            return norms
        self._steps += 1
        with torch.no_grad():
            if math.isfinite(max_norm):
                torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
            torch._foreach_mul_(self._squares, self._decay)
            torch._foreach_addcmul_(self._squares, gradients, gradients, value=1.0 - self._decay)
            if self._epsilon_inside_root:
                roots = torch._foreach_sqrt(torch._foreach_add(self._squares, self._epsilon))
            else:
                roots = torch._foreach_add(torch._foreach_sqrt(self._squares), self._epsilon)
            torch._foreach_addcdiv_(self._parameters, gradients, roots, value=-learning_rate)
        if self._steps % SILENCE_PERIOD == 0:
            _silence(self._squares)
        return norms

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step` and `square_avg` by parameter name, as numpy."""
        return {
            name: {"step": np.array(self._steps), "square_avg": _array(square)}
            for name, square in zip(self._names, self._squares, strict=True)
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, square in zip(self._names, self._squares, strict=True):
            square.copy_(torch.from_numpy(np.array(state[name]["square_avg"])))
            self._steps = int(state[name].get("step", 0))  # earlier versions kept none


def adam_of(config: Any, module: nn.Module) -> Adam:
    """config: of an algorithm with `adam_epsilon` or `optimizer_epsilon`, and maybe `adam_beta1`."""
    epsilon = getattr(config, "adam_epsilon", None) or config.optimizer_epsilon
    betas = getattr(config, "adam_beta1", 0.9), 0.999
    return Adam(module, epsilon=epsilon, betas=betas, weight_decay=weight_decay_of(config))


def optimizer_of(config: Any, module: nn.Module) -> Adam | RMSProp:
    """config: of an algorithm with `optimizer`, `optimizer_epsilon`, `rmsprop_decay` and `epsilon_inside_root`."""
    epsilon = config.optimizer_epsilon
    if config.optimizer == "adam":
        return adam_of(config, module)
    inside = config.epsilon_inside_root
    return RMSProp(module, decay=config.rmsprop_decay, epsilon=epsilon, epsilon_inside_root=inside)


def _silence(moments: list[torch.Tensor]) -> None:
    """`torch.set_flush_denormal` would reach only the calling thread, not those that share its work. A GPU is as fast
    with denormals."""
    for moment in moments:
        if moment.device.type == "cpu":
            moment.copy_(nn.functional.hardshrink(moment, SILENT))


def _gradients(parameters: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(the gradients of all parameters, zeros of those that took no part in the loss; float32[P + 1]: the norm of each
    and of all together)"""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    norms = torch.stack(torch._foreach_norm(gradients))
    return gradients, torch.cat([norms, torch.linalg.vector_norm(norms)[None]])


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().numpy(), order="C")
