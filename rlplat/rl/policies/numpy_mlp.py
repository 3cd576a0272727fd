"""The forward pass of every MLP that acts in plain numpy: actor-critics, Q-networks, perturbed MLPs.

Over a handful of observations a forward pass is all overhead: numpy needs a fifth of torch's time for it, and a rollout
worker that never imports torch starts a second sooner. Learners compute gradients in a framework; there is no backward
pass here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rlplat.rl.interfaces import Array, Weights

Layer = tuple[Array, Array]
"""Weight float32[in, out] and bias float32[out]; or one network per row: float32[B, in, out] and float32[B, out]."""


def layer(weights: Weights, name: str) -> Layer:
    """A copy, which lets go of the shared memory that weights came through."""
    # torch keeps [out, in]; a matrix product likes the transpose contiguous.
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.array(weight.T, np.float32, order="C"), np.array(bias, np.float32)


def layers(weights: Weights, name: str, num_layers: int) -> list[Layer]:
    """`<name>.layers.0` and on: an encoder."""
    return [layer(weights, f"{name}.layers.{index}") for index in range(num_layers)]


def forward(
    x: Array, layers: Sequence[Layer], activation: Literal["tanh", "relu"], *, last: bool = False
) -> Array:
    """x: float32[B, in] -> float32[B, out]; last: activate after the last layer, too (an encoder)."""
    left = len(layers) if last else len(layers) - 1
    is_tanh, is_shared = activation == "tanh", layers[0][0].ndim == 2
    for weight, bias in layers:
        x = x @ weight if is_shared else (weight.swapaxes(1, 2) @ x[:, :, None])[:, :, 0]
        x += bias
        if left:
            left -= 1
            if is_tanh:
                np.tanh(x, out=x)
            else:
                np.maximum(x, 0.0, out=x)
    return x
