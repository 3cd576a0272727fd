"""Adam on torch's fused kernel, with the clipping of the gradient norm folded into its pass over the gradients, and
RMSProp.

Why not `torch.optim.Adam`: making one imports `torch._dynamo`, a second of every start, and its Python around the same
kernel costs as much as the whole backward pass of a small network. Same numbers: a test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

SILENT, SILENCE_PERIOD = 1e-33, 100
"""As in rlplat.rl.learning.numpy_optimizers: every so many steps moments smaller than this become 0."""


class Adam:
    """Kingma & Ba 2015, algorithm 1 (no weight decay), for the parameters of one module."""

    def __init__(
        self, module: nn.Module, *, epsilon: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[torch.Tensor] = list(module.parameters())
        self._epsilon, self._betas = epsilon, betas
        # empty_like keeps a parameter's memory order (channels_last): the kernel reads both side by side.
        self._means = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]
        self._steps = 0

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def descend(self, loss: torch.Tensor, learning_rate: float, max_norm: float = math.inf) -> float:
        """`step` along the gradient of this loss alone."""
        self.zero_grad()
        loss.backward()
        return self.step(learning_rate, max_norm)

    def step(self, learning_rate: float, max_norm: float = math.inf) -> float:
        """Clip the gradients to the global norm `max_norm` (Pascanu et al. 2013) and descend.

        Returns the norm before clipping; when that is not finite nothing is changed.
        """
        gradients, norm = _gradients(self._parameters)
        if not bool(norm.isfinite()):
            return float(norm)
        # The kernel divides the gradients by `grad_scale` on the way.
        scale = torch.clamp((norm + 1e-6) / max_norm, min=1.0) if math.isfinite(max_norm) else None
        self._steps += 1
        step = torch.full((), float(self._steps), device=norm.device)
        torch._fused_adam_(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            [step] * len(self._parameters),
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
        )
        if self._steps % SILENCE_PERIOD == 0:
            _silence(self._means + self._squares)
        return float(norm)

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step`, `exp_avg` (first moment), `exp_avg_sq` (second) by parameter name, as numpy."""
        parts = zip(self._names, self._means, self._squares, strict=True)
        return {
            name: {"step": np.array(self._steps), "exp_avg": _array(mean), "exp_avg_sq": _array(square)}
            for name, mean, square in parts
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, mean, square in zip(self._names, self._means, self._squares, strict=True):
            kept = state[name]
            self._steps = int(kept["step"])
            for tensor, key in ((mean, "exp_avg"), (square, "exp_avg_sq")):
                tensor.copy_(torch.from_numpy(np.array(kept[key])))


class RMSProp:
    """The numbers of `numpy_optimizers.RMSProp` (no momentum, not centred), for the parameters of one module."""

    def __init__(self, module: nn.Module, *, decay: float, epsilon: float, epsilon_inside_root: bool) -> None:
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[torch.Tensor] = list(module.parameters())
        self._decay, self._epsilon, self._epsilon_inside_root = decay, epsilon, epsilon_inside_root
        self._steps = 0
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, learning_rate: float, max_norm: float = math.inf) -> float:
        """As `Adam.step`; gradients are scaled in place."""
        gradients, norm = _gradients(self._parameters)
        if not bool(norm.isfinite()):
            return float(norm)
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
        return float(norm)

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step` and `square_avg` by parameter name, as numpy."""
        return {
            name: {"step": np.array(self._steps), "square_avg": _array(square)}
            for name, square in zip(self._names, self._squares, strict=True)
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, square in zip(self._names, self._squares, strict=True):
            square.copy_(torch.from_numpy(np.array(state[name]["square_avg"])))
            self._steps = int(state[name]["step"])


def _silence(moments: list[torch.Tensor]) -> None:
    """`torch.set_flush_denormal` would reach only the calling thread, not those that share its work. A GPU is as fast
    with denormals."""
    for moment in moments:
        if moment.device.type == "cpu":
            moment.copy_(nn.functional.hardshrink(moment, SILENT))


def _gradients(parameters: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(the gradients of all parameters, their global norm)"""
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert len(gradients) == len(parameters), "a parameter took no part in the loss"
    return gradients, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().numpy(), order="C")
