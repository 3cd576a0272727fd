"""Optimizers in plain numpy, for parameter servers and other processes that never import a framework.

    optimizer = RMSProp(decay=0.99, epsilon=1e-5)
    optimizer.step(weights, gradients, learning_rate=7e-4)          # weights change in place

State is kept by parameter name and made when a name is first seen. All arithmetic is elementwise float32, so that a
parameter that is cut into pieces gets the same numbers, bit for bit, as one that is whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.saved import Saved

BLOCK = 1 << 14
"""Elements at a time: a block of each operand stays in the cache through all passes over it."""
SILENT, SILENCE_PERIOD = 1e-33, 100
"""Every so many steps statistics smaller than this become 0, far below what a step of float32 weights can show. Where
a ReLU is silent they would decay to denormals, with which a CPU computes many times more slowly."""


class Optimizer(Protocol):
    def step(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        """Descend: changes `weights` in place. Both: float32 by name, C-contiguous, equal shapes."""
        ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class _Slots(Saved):
    """Statistics by slot, then by parameter name; and how often `step` was called."""

    saved = {"slots": "_slots", "steps": "_steps"}


class RMSProp(_Slots):
    """Shared RMSProp of Mnih et al. 2016 (eq. S2, S3; non-centred, g starts at 0).

    g = decay * g + (1 - decay) * gradient^2
    w = w - learning_rate * gradient / sqrt(g + epsilon)          # epsilon_inside_root: the paper, TensorFlow
    w = w - learning_rate * gradient / (sqrt(g) + epsilon)        # not: the same numbers as torch.optim.RMSprop
    """

    def __init__(
        self, *, decay: float = 0.99, epsilon: float = 1e-5, epsilon_inside_root: bool = True
    ) -> None:
        self._decay, self._epsilon, self._epsilon_inside_root = decay, epsilon, epsilon_inside_root
        self._slots: dict[str, Weights] = {"squares": {}}
        self._steps = 0

    def step(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        self._steps += 1
        decay, scratch = self._decay, np.empty(BLOCK, np.float32)
        squares = self._slots["squares"]
        for name, gradient in gradients.items():
            if name not in squares:
                squares[name] = np.zeros(gradient.shape, np.float32)
            if self._steps % SILENCE_PERIOD == 0:
                _silence(squares[name])
            for w, d, g in _blocks(weights[name], gradient, squares[name]):
                delta = scratch[: len(d)]
                np.multiply(d, d, out=delta)
                delta *= 1.0 - decay
                g *= decay
                g += delta
                if self._epsilon_inside_root:
                    np.add(g, self._epsilon, out=delta)
                    np.sqrt(delta, out=delta)
                else:
                    np.sqrt(g, out=delta)
                    delta += self._epsilon
                np.divide(d, delta, out=delta)
                delta *= learning_rate
                w -= delta


class Adam(_Slots):
    """Kingma & Ba 2015, algorithm 1 (no weight decay); the same numbers as torch.optim.Adam.

    m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient^2
    w = w - learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
    """

    def __init__(self, *, epsilon: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._epsilon, self._betas = epsilon, betas
        self._slots: dict[str, Weights] = {"means": {}, "squares": {}}
        self._steps = 0

    def step(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        self._steps += 1
        (beta1, beta2), scratch = self._betas, np.empty(BLOCK, np.float32)
        means, squares = self._slots["means"], self._slots["squares"]
        step_size = learning_rate / (1.0 - beta1**self._steps)
        root_correction = math.sqrt(1.0 - beta2**self._steps)
        for name, gradient in gradients.items():
            if name not in means:
                means[name] = np.zeros(gradient.shape, np.float32)
                squares[name] = np.zeros(gradient.shape, np.float32)
            if self._steps % SILENCE_PERIOD == 0:
                _silence(means[name], squares[name])
            for w, d, m, v in _blocks(weights[name], gradient, means[name], squares[name]):
                delta = scratch[: len(d)]
                np.multiply(d, 1.0 - beta1, out=delta)
                m *= beta1
                m += delta
                np.multiply(d, d, out=delta)
                delta *= 1.0 - beta2
                v *= beta2
                v += delta
                np.sqrt(v, out=delta)
                delta /= root_correction
                delta += self._epsilon
                np.divide(m, delta, out=delta)
                delta *= step_size
                w -= delta


class Momentum(Saved):
    """SGD as torch.optim.SGD(momentum=) has it: v = momentum * v + gradient;  w = w - learning_rate * v."""

    saved = {"velocities": "_velocities"}

    def __init__(self, momentum: float) -> None:
        self._momentum = np.float32(momentum)
        self._velocities: Weights = {}

    def step(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        for name, gradient in gradients.items():
            velocity = self._velocities.setdefault(name, np.zeros_like(gradient))
            velocity *= self._momentum
            velocity += gradient
            weights[name] -= np.float32(learning_rate) * velocity


def clip_by_global_norm(gradients: Weights, max_norm: float = math.inf) -> float:
    """Scale the gradients in place to the global norm `max_norm` where theirs is larger (Pascanu et al. 2013).

    Returns the norm before; when that is not finite nothing is changed.
    """
    norm = math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients.values()))
    if math.isfinite(norm) and norm > max_norm:
        for gradient in gradients.values():
            gradient *= max_norm / norm
    return norm


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The flattened arrays, side by side, BLOCK elements at a time; views."""
    first = arrays[0]
    assert all(a.shape == first.shape and a.flags.c_contiguous for a in arrays), [a.shape for a in arrays]
    flat = tuple(array.reshape(-1) for array in arrays)
    if first.size <= BLOCK:
        yield flat
        return
    for start in range(0, first.size, BLOCK):
        yield tuple(array[start : start + BLOCK] for array in flat)


def _silence(*statistics: Array) -> None:
    for array in statistics:
        array[np.abs(array) < SILENT] = 0.0
