"""Adam on torch's fused kernel, with the clipping of the gradient norm folded into its pass over the gradients, and
RMSProp.

Why not `torch.optim.Adam`: making one imports `torch._dynamo`, a second of every start, and its Python around the same
kernel costs as much as the whole backward pass of a small network. Same numbers: a test compares the two.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


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
        self._steps = [torch.zeros((), device=p.device) for p in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, learning_rate: float, max_norm: float = math.inf) -> float:
        """Clip the gradients to the global norm `max_norm` (Pascanu et al. 2013) and descend.

        Returns the norm before clipping; when that is not finite nothing is changed.
        """
        gradients, norm = _gradients(self._parameters)
        if not bool(norm.isfinite()):
            return float(norm)
        # The kernel divides the gradients by `grad_scale` on the way.
        scale = torch.clamp((norm + 1e-6) / max_norm, min=1.0) if math.isfinite(max_norm) else None
        torch._foreach_add_(self._steps, 1)
        with _tiny_is_zero():
            torch._fused_adam_(
                self._parameters,
                gradients,
                self._means,
                self._squares,
                [],
                self._steps,
                lr=learning_rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                weight_decay=0.0,
                eps=self._epsilon,
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
            )
        return float(norm)

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step`, `exp_avg` (first moment), `exp_avg_sq` (second) by parameter name, as numpy."""
        parts = zip(self._names, self._steps, self._means, self._squares, strict=True)
        return {
            name: {"step": _array(step), "exp_avg": _array(mean), "exp_avg_sq": _array(square)}
            for name, step, mean, square in parts
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, step, mean, square in zip(
            self._names, self._steps, self._means, self._squares, strict=True
        ):
            kept = state[name]
            for tensor, key in ((step, "step"), (mean, "exp_avg"), (square, "exp_avg_sq")):
                tensor.copy_(torch.from_numpy(np.array(kept[key])))


class RMSProp:
    """The numbers of `numpy_optimizers.RMSProp` (no momentum, not centred), for the parameters of one module."""

    def __init__(self, module: nn.Module, *, decay: float, epsilon: float, epsilon_inside_root: bool) -> None:
        self._names = [name for name, _ in module.named_parameters()]
        self._parameters: list[torch.Tensor] = list(module.parameters())
        self._decay, self._epsilon, self._epsilon_inside_root = decay, epsilon, epsilon_inside_root
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self._parameters]

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, learning_rate: float, max_norm: float = math.inf) -> float:
        """As `Adam.step`; gradients are scaled in place."""
        gradients, norm = _gradients(self._parameters)
        if not bool(norm.isfinite()):
            return float(norm)
        with torch.no_grad(), _tiny_is_zero():
            if math.isfinite(max_norm):
                torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
            torch._foreach_mul_(self._squares, self._decay)
            torch._foreach_addcmul_(self._squares, gradients, gradients, value=1.0 - self._decay)
            if self._epsilon_inside_root:
                roots = torch._foreach_sqrt(torch._foreach_add(self._squares, self._epsilon))
            else:
                roots = torch._foreach_add(torch._foreach_sqrt(self._squares), self._epsilon)
            torch._foreach_addcdiv_(self._parameters, gradients, roots, value=-learning_rate)
        return float(norm)

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`square_avg` by parameter name, as numpy."""
        return {
            name: {"square_avg": _array(square)}
            for name, square in zip(self._names, self._squares, strict=True)
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, square in zip(self._names, self._squares, strict=True):
            square.copy_(torch.from_numpy(np.array(state[name]["square_avg"])))


@contextlib.contextmanager
def _tiny_is_zero() -> Iterator[None]:
    """Numbers below 1.2e-38 are 0 here. Where a ReLU is silent the gradient is 0 and the moments decay, without it to
    numbers that never become 0 (rounded up) and with which a CPU computes twenty times more slowly."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _gradients(parameters: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(the gradients of all parameters, their global norm)"""
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert len(gradients) == len(parameters), "a parameter took no part in the loss"
    return gradients, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().numpy(), order="C")
