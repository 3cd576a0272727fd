"""Encoders: from observations to features float32[N, F], F = encoder.num_features; those of rl/torch/encoders.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.class_path import load_class
from rlplat.rl.interfaces import Activation
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec, obs_leaves
from rlplat.rl.tf import tf
from rlplat.rl.tf.layers import Conv, LayerNorm, Linear

TensorObs = Any
"""A tensor [N, ...], or a dict of such by path, as `interfaces.Obs`."""


def make_encoder(spec: PolicySpec, compute_dtype: tf.DType = tf.float32) -> Any:
    """The encoder of a spec; `compute_dtype` is that of convolutions (parameters are float32 always).

    `spec.encoder` may name a class, "pkg.mod:Class": a tf.Module (or Keras layer) made with (spec, compute_dtype) that
    has `num_features`.
    """
    if ":" in spec.encoder:
        return load_class(spec.encoder)(spec, compute_dtype)
    if isinstance(spec.obs, dict):
        return TreeEncoder(spec, compute_dtype)
    if "" not in spec.encoders:
        return MLPEncoder(spec.obs.num_features, spec, leaf=spec.obs)
    return _image_encoder(spec, "", compute_dtype)


ACTIVATIONS: dict[Activation, Any] = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, alpha=0.01),
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "silu": tf.nn.silu,
    "gelu": tf.nn.gelu,
    "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
}


class MLPEncoder(tf.Module):
    """As rl/torch's: [N, ...] -> float32[N, hidden_sizes[-1]]."""

    def __init__(self, num_inputs: int, spec: PolicySpec, leaf: ObsSpec | None = None) -> None:
        """`leaf`: what the observations are; None: features already."""
        super().__init__()
        sizes = (num_inputs, *spec.hidden_sizes)
        self.leaf = leaf
        self.layers = [Linear(sizes[i], sizes[i + 1]) for i in range(len(spec.hidden_sizes))]
        self.norms = [LayerNorm(size) for size in sizes[1:]] if spec.layer_norm else None
        self.activation = ACTIVATIONS[spec.activation]
        self.num_features = sizes[-1]

    def __call__(self, obs: tf.Tensor) -> tf.Tensor:
        features = obs if self.leaf is None else leaf_features(obs, self.leaf)
        for index, layer in enumerate(self.layers):
            features = layer(features)
            features = self.activation(features if self.norms is None else self.norms[index](features))
        return features


class _Pixels(tf.Module):
    """How an encoder of images begins: one order of axes, and pixels as fractions of their bounds by scaling the first
    kernel; as in rl/torch/encoders.py."""

    def __init__(self, image: ObsSpec, compute_dtype: tf.DType) -> None:
        super().__init__()
        self.layout = image.layout
        self.compute_dtype = compute_dtype
        low, high = (np.array(bound, np.float32) for bound in image.bounds)
        self._low = low if low.any() else None
        self.scale: Any = 1.0
        """Of the first kernel: a number, or float32[1, C, 1, 1] of every channel."""
        if len(low):
            scale = 1.0 / (high - low)
            self.scale = float(scale[0]) if len(scale) == 1 else scale.reshape(1, -1, 1, 1)

    def pixels(self, obs: tf.Tensor) -> tf.Tensor:
        """[N, *image.shape] -> [N, H, W, C], counted from `low`."""
        images = _channels_last(obs, self.layout)
        return images if self._low is None else tf.cast(images, tf.float32) - self._low


class NatureCNN(_Pixels):
    """The network of Mnih et al. 2015 (Nature): three convolutions and a layer of 512: images -> float32[N, 512]."""

    CONVOLUTIONS: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """(channels, kernel, stride) of conv1, conv2, ..."""
    NUM_FEATURES = 512
    PADDING = 0

    def __init__(self, image: ObsSpec, compute_dtype: tf.DType, layer_norm: bool = False) -> None:
        super().__init__(image, compute_dtype)
        channels, *sides = image.channels_height_width
        for number, (size, kernel, stride) in enumerate(self.CONVOLUTIONS, 1):
            setattr(self, f"conv{number}", Conv(channels, size, kernel, stride=stride))
            channels, sides = size, [(side + 2 * self.PADDING - kernel) // stride + 1 for side in sides]
        height, width = sides
        self.linear = Linear(channels * height * width, self.NUM_FEATURES)
        self.num_features = self.NUM_FEATURES
        sizes = [*(size for size, _, _ in self.CONVOLUTIONS), self.NUM_FEATURES]
        self.norms = [LayerNorm(size) for size in sizes] if layer_norm else None

    def __call__(self, obs: tf.Tensor) -> tf.Tensor:
        dtype = self.compute_dtype
        features, scale = self.pixels(obs), self.scale
        edges = ((0, 0), (self.PADDING, self.PADDING), (self.PADDING, self.PADDING), (0, 0))
        for number in range(1, len(self.CONVOLUTIONS) + 1):
            if self.PADDING:  # not padding="SAME": see ImpalaCNN
                features = tf.pad(features, edges)
            features = getattr(self, f"conv{number}")(features, dtype, scale=scale)
            features = tf.nn.relu(features if self.norms is None else self.norms[number - 1](features))
            scale = 1.0
        features = self.linear(_flattened(features), dtype)
        features = tf.nn.relu(features if self.norms is None else self.norms[-1](features))
        return tf.cast(features, tf.float32)


class SmallCNN(NatureCNN):
    """The network of Mnih et al. 2013 (arXiv:1312.5602) and of A3C (Mnih et al. 2016): two convolutions and a layer of
    256: images -> float32[N, 256]."""

    CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
    NUM_FEATURES = 256


class GridCNN(NatureCNN):
    """For images of few pixels, boards and grids, from 5 a side on: three convolutions of 3x3 with a border of zeros,
    the last two with stride 2, and a layer of 256: images -> float32[N, 256]."""

    CONVOLUTIONS = ((32, 3, 1), (64, 3, 2), (64, 3, 2))
    NUM_FEATURES = 256
    PADDING = 1


class ImpalaCNN(_Pixels):
    """The deep network of Espeholt et al. 2018 (IMPALA, figure 3): sections of 16, 32, 32 channels (a convolution,
    3x3/2 max pooling, two residual blocks), then a layer of 256: images -> float32[N, 256]."""

    CHANNELS = (16, 32, 32)

    def __init__(self, image: ObsSpec, compute_dtype: tf.DType) -> None:
        super().__init__(image, compute_dtype)
        channels, height, width = image.channels_height_width
        self.entries: list[Conv] = []
        self.blocks: list[list[Conv]] = []
        for size in self.CHANNELS:
            self.entries.append(Conv(channels, size, 3))
            self.blocks.append([Conv(size, size, 3) for _ in range(4)])
            channels, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.linear = Linear(channels * height * width, 256)
        self.num_features = 256

    def __call__(self, obs: tf.Tensor) -> tf.Tensor:
        dtype = self.compute_dtype
        features, scale = self.pixels(obs), self.scale
        for entry, convs in zip(self.entries, self.blocks, strict=True):
            features = entry(features, dtype, padding="SAME", scale=scale)
            # Not padding="SAME", which puts all of an odd padding on one side, where torch has one on both.
            edges = ((0, 0), (1, 1), (1, 1), (0, 0))
            features = tf.nn.max_pool2d(tf.pad(features, edges, constant_values=features.dtype.min), 3, 2, "VALID")
            for first in (0, 2):
                inner = convs[first](tf.nn.relu(features), dtype, padding="SAME")
                features = features + convs[first + 1](tf.nn.relu(inner), dtype, padding="SAME")
            scale = 1.0
        features = self.linear(_flattened(tf.nn.relu(features)), dtype)
        return tf.cast(tf.nn.relu(features), tf.float32)


class TreeEncoder(tf.Module):
    """For dict observations: images through a CNN each, all else as numbers beside their features, then an MLP."""

    def __init__(self, spec: PolicySpec, compute_dtype: tf.DType) -> None:
        super().__init__()
        assert isinstance(spec.obs, dict)
        # Private: TensorFlow would wrap a dict whose keys have slashes, and a spec holds no variables.
        self._leaves = tuple((path, leaf) for path, leaf in spec.obs.items() if leaf.kind != "mask")
        self._image_paths = tuple(spec.encoders)
        self.images = [_image_encoder(spec, path, compute_dtype) for path in spec.encoders]
        num_numbers = sum(leaf.num_features for path, leaf in self._leaves if path not in self._image_paths)
        num_inputs = num_numbers + sum(encoder.num_features for encoder in self.images)
        self.mlp = MLPEncoder(num_inputs, spec)
        self.num_features = self.mlp.num_features

    def __call__(self, obs: dict[str, tf.Tensor]) -> tf.Tensor:
        parts = [encoder(obs[path]) for path, encoder in zip(self._image_paths, self.images, strict=True)]
        parts += [leaf_features(obs[path], leaf) for path, leaf in self._leaves if path not in self._image_paths]
        return self.mlp(tf.concat(parts, axis=1))


def leaf_features(obs: tf.Tensor, leaf: ObsSpec) -> tf.Tensor:
    """One leaf as numbers: float32[N, leaf.num_features]; choices become one-hot, pixels fractions of their bounds."""
    if leaf.kind == "discrete":
        return tf.one_hot(obs, leaf.nvec[0])
    if leaf.kind == "multi_discrete":
        return tf.concat([tf.one_hot(obs[:, i], n) for i, n in enumerate(leaf.nvec)], axis=1)
    features = tf.cast(obs, tf.float32)
    if leaf.kind == "image":
        low, span = leaf.pixel_scale
        features = (features - low) / span
    return tf.reshape(features, (-1, leaf.flat_size))


_ENCODERS: dict[str, type[NatureCNN | ImpalaCNN]] = {
    "nature_cnn": NatureCNN,
    "small_cnn": SmallCNN,
    "grid_cnn": GridCNN,
    "impala_cnn": ImpalaCNN,
}


def _image_encoder(spec: PolicySpec, path: str, compute_dtype: tf.DType) -> Any:
    spec.require_used()
    leaf, more = obs_leaves(spec.obs)[path], {"layer_norm": True} if spec.layer_norm else {}
    return _ENCODERS[spec.encoders[path]](leaf, compute_dtype, **more)


def _channels_last(images: tf.Tensor, layout: str) -> tf.Tensor:
    """[N, *shape] of a layout -> [N, H, W, C], the frames of a stack side by side as channels."""
    if layout == "HWC":
        return images
    if layout == "CHW":
        return tf.transpose(images, (0, 2, 3, 1))
    order = [1 + layout.index(axis) for axis in "HWTC"]
    stacked = tf.transpose(images, (0, *order))
    _, height, width, num_frames, channels = stacked.shape
    return tf.reshape(stacked, (-1, height, width, num_frames * channels))


def _flattened(features: tf.Tensor) -> tf.Tensor:
    """[N, H, W, C] -> [N, C*H*W]: the order in which torch's weights of the next layer are."""
    return tf.reshape(tf.transpose(features, (0, 3, 1, 2)), (-1, features.shape[1:].num_elements()))
