"""Linear layers, convolutions and layer normalisation with torch's parameters: names, layouts and initialisation.

TensorFlow wants kernels [in, out] and [kh, kw, in, out]; they are kept in torch's order, so that weights, gradients and
Adam's moments are the same arrays in both frameworks, and are transposed in the graph (a matrix product takes either
order; the largest convolution kernel of ours is 36,864 numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from rlplat.rl.tf import tf


class Linear(tf.Module):
    """x W^T + b: weight float32[out, in], bias float32[out]."""

    def __init__(self, num_inputs: int, num_outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight, self.bias = _uniform_parameters((num_outputs, num_inputs), num_inputs, bias)

    def __call__(self, x: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """float32[..., in] -> [..., out] in `dtype`."""
        y = tf.linalg.matmul(tf.cast(x, dtype), tf.cast(self.weight, dtype), transpose_b=True)
        return y if self.bias is None else y + tf.cast(self.bias, dtype)


class Conv(tf.Module):
    """A convolution of images [N, H, W, C] (the only order that CPUs compute): weight float32[out, in, k, k]."""

    def __init__(self, num_inputs: int, num_outputs: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        fan_in = num_inputs * kernel * kernel
        self.weight, self.bias = _uniform_parameters((num_outputs, num_inputs, kernel, kernel), fan_in, True)

    def __call__(
        self, images: tf.Tensor, dtype: tf.DType, *, padding: str = "VALID", scale: float | np.ndarray = 1.0
    ) -> tf.Tensor:
        """scale: of the inputs, applied to the kernel; a number, or float32[1, in, 1, 1]."""
        is_one = isinstance(scale, float) and scale == 1.0
        kernel = self.weight if is_one else self.weight * scale
        kernel = tf.cast(tf.transpose(kernel, (2, 3, 1, 0)), dtype)
        return tf.nn.bias_add(
            tf.nn.conv2d(tf.cast(images, dtype), kernel, self.stride, padding), tf.cast(self.bias, dtype)
        )


class LayerNorm(tf.Module):
    """Ba et al. 2016 over the last axis: weight, bias float32[size]."""

    EPSILON = 1e-5

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = tf.Variable(tf.ones(size)), tf.Variable(tf.zeros(size))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), axis=-1, keepdims=True)
        weight, bias = tf.cast(self.weight, x.dtype), tf.cast(self.bias, x.dtype)
        return (x - mean) * tf.math.rsqrt(variance + self.EPSILON) * weight + bias


def orthogonal(shape: tuple[int, ...], gain: float) -> np.ndarray:
    """float32: orthogonal rows or columns of length `gain` of the kernel as a matrix [out, rest] (Saxe et al. 2014)."""
    num_rows, num_columns = shape[0], math.prod(shape[1:])
    tall = tf.random.normal((max(num_rows, num_columns), min(num_rows, num_columns))).numpy()
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices
    matrix = q.T if num_rows < num_columns else q
    return np.ascontiguousarray(gain * matrix, np.float32).reshape(shape)


def initialize_orthogonally(modules: Iterable[tf.Module], gains: Mapping[int, float] | None = None) -> None:
    """Those that are linear or convolutions; gains: by `id`, sqrt(2) for others; biases 0."""
    for module in modules:
        if isinstance(module, Linear | Conv):
            gain = (gains or {}).get(id(module), math.sqrt(2.0))
            module.weight.assign(orthogonal(tuple(module.weight.shape), gain))
            if module.bias is not None:
                module.bias.assign(tf.zeros_like(module.bias))


def _uniform_parameters(shape: tuple[int, ...], fan_in: int, bias: bool) -> tuple[tf.Variable, tf.Variable | None]:
    """torch's default: everything uniform within +-1 / sqrt(fan_in)."""
    bound = 1.0 / math.sqrt(fan_in)
    weight = tf.Variable(tf.random.uniform(shape, -bound, bound))
    return weight, tf.Variable(tf.random.uniform(shape[:1], -bound, bound)) if bias else None
