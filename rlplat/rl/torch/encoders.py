"""Encoders: from observations to features float32[N, F], F = encoder.num_features."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.class_path import load_class
from rlplat.rl.interfaces import Activation
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec, obs_leaves
from rlplat.rl.torch.device import Linear

_IMAGES_AT_ONCE = 32
"""That fit a core's cache."""

TensorObs = Tensor | dict[str, Tensor]
"""[N, ...], or a dict of such by path, as `interfaces.Obs`."""


def make_encoder(spec: PolicySpec, compute_dtype: torch.dtype = torch.float32) -> Any:
    """The encoder of a spec; `compute_dtype` is that of convolutions (parameters are float32 always).

    `spec.encoder` may name a class, "pkg.mod:Class": an nn.Module made with (spec, compute_dtype) that has
    `num_features`.
    """
    if ":" in spec.encoder:
        return load_class(spec.encoder)(spec, compute_dtype)
    if isinstance(spec.obs, dict):
        return TreeEncoder(spec, compute_dtype)
    if "" not in spec.encoders:
        return MLPEncoder(spec.obs.num_features, spec, leaf=spec.obs)
    return image_encoder(spec, "", compute_dtype)


def initialize_orthogonally(layer: nn.Linear | nn.Conv2d, gain: float, *, keeps: bool) -> None:
    """keeps: what an encoder of the user's own has loaded, drawn or frozen itself stays."""
    if isinstance(layer.weight, nn.UninitializedParameter):
        return  # a lazy one: as torch makes it, once its size is known
    spread = 1.0 / math.sqrt(max(1, layer.weight[0].numel()))
    if not keeps or _is_as_made(layer.weight, spread):
        # Drawn in the default memory order: the same numbers whatever order the kernel is kept in.
        layer.weight.data.copy_(nn.init.orthogonal_(torch.empty(layer.weight.shape), gain))
    if layer.bias is not None and (not keeps or _is_as_made(layer.bias, spread)):
        nn.init.zeros_(layer.bias)


def _is_as_made(values: Tensor, spread: float) -> bool:
    """Whether torch alone has initialised it, uniformly within `spread`. What was written through `.data` changes no
    version, but its largest is beyond, or so far within as torch's is once in 10^9 times: P(max of N < t) = t^N."""
    if not values.requires_grad or values._version != 1 or not values.numel():
        return False
    largest = values.detach().abs().max().item() / spread
    return bool(1e-9 ** (1.0 / values.numel()) <= largest <= 1.0 + 1e-6)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "leaky_relu": F.leaky_relu_,
    "elu": F.elu,
    "selu": F.selu,
    "silu": F.silu,
    "gelu": F.gelu,
    "mish": F.mish,
}
"""Of what a linear layer or a normalisation gave: where the gradient does not need it, it is overwritten (less memory
to move)."""


class MLPEncoder(nn.Module):
    """Linear layers, each normalised (`layer_norm`: Ba et al. 2016) and activated: [N, ...] -> float32[N,
    hidden_sizes[-1]]."""

    def __init__(self, num_inputs: int, spec: PolicySpec, leaf: ObsSpec | None = None) -> None:
        """`leaf`: what the observations are; None: features already."""
        super().__init__()
        sizes = (num_inputs, *spec.hidden_sizes)
        self.leaf = leaf
        self.layers = nn.ModuleList(Linear(sizes[i], sizes[i + 1]) for i in range(len(spec.hidden_sizes)))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:]) if spec.layer_norm else None
        self.activation = ACTIVATIONS[spec.activation]
        self.num_features = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        features = obs.flatten(1) if self.leaf is None else leaf_features(obs, self.leaf)
        for index, layer in enumerate(self.layers):
            features = layer(features)
            features = self.activation(features if self.norms is None else self.norms[index](features))
        return features


class _Pixels(nn.Module):
    """How an encoder of images begins: one order of axes, and pixels as fractions of their bounds.

    That is done by scaling the first kernel instead of every pixel: exact in bfloat16, which holds the integers up to
    256, and one pass over the images less. Of bytes only: floats in their place are normalised, and stay as they are.
    Images stay in channels-last order in memory, which CPU convolutions and GPU tensor cores want. `compute_dtype`
    bfloat16 casts at each call; the parameters stay float32.
    """

    low: Tensor | float
    span: Tensor | float

    def __init__(self, image: ObsSpec, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.layout, self.is_bytes = image.layout, image.dtype == "uint8"
        self.compute_dtype = compute_dtype
        low, high = image.bounds
        self.low, self.span = (low[0], high[0] - low[0]) if low else (0.0, 1.0)
        if len(low) > 1:
            self._constant("low", low)
            self._constant("span", [top - bottom for bottom, top in zip(low, high, strict=True)])

    def _constant(self, name: str, values: Any) -> None:
        """Of every channel; no part of the weights."""
        delattr(self, name)
        self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)

    def pixels(self, obs: Tensor) -> Tensor:
        """[N, *image.shape], or already [N, C, H, W] -> [N, C, H, W] in `compute_dtype`, counted from `low`."""
        images = folded(obs, self.layout)
        if self.scales(obs) and (isinstance(self.low, Tensor) or self.low):
            images = images.float() - self.low
        # Put in order before they are cast: half the time of `to(dtype, memory_format=...)`.
        return channels_last(images).to(self.compute_dtype)

    def scales(self, obs: Tensor) -> bool:
        return obs.dtype == torch.uint8 or not self.is_bytes

    def first_kernel(self, weight: Tensor, obs: Tensor) -> Tensor:
        """The kernel that takes `pixels(obs)`."""
        is_scaled = self.scales(obs) and (isinstance(self.span, Tensor) or self.span != 1.0)
        return weight / self.span if is_scaled else weight


class NatureCNN(_Pixels):
    """The network of Mnih et al. 2015 (Nature): three convolutions and a layer of 512: images -> float32[N, 512]."""

    CONVOLUTIONS: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    """(channels, kernel, stride) of conv1, conv2, ..."""
    NUM_FEATURES = 512
    PADDING = 0

    def __init__(self, image: ObsSpec, compute_dtype: torch.dtype, layer_norm: bool = False) -> None:
        """layer_norm: over the channels of each pixel, before the activation (PQN, Gallici et al. 2024)."""
        super().__init__(image, compute_dtype)
        channels, *sides = image.channels_height_width
        for number, (size, kernel, stride) in enumerate(self.CONVOLUTIONS, 1):
            conv = nn.Conv2d(channels, size, kernel, stride=stride, padding=self.PADDING)
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
            self.add_module(f"conv{number}", conv)
            channels, sides = size, [(side + 2 * self.PADDING - kernel) // stride + 1 for side in sides]
        height, width = sides
        self.linear = nn.Linear(channels * height * width, self.NUM_FEATURES)
        self.num_features = self.NUM_FEATURES
        sizes = [*(size for size, _, _ in self.CONVOLUTIONS), self.NUM_FEATURES]
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes) if layer_norm else None

    @property
    def convs(self) -> list[nn.Conv2d]:
        return [module for module in self.children() if isinstance(module, nn.Conv2d)]

    def hold_in_compute_dtype(self) -> None:
        """For acting: keep the large parameters in the compute dtype, instead of casting them at each call.

        Not the first kernel: its scaling is done in float32, as in the learner.
        """
        for layer in (*self.convs[1:], self.linear):
            layer.to(self.compute_dtype)

    def forward(self, obs: Tensor) -> Tensor:
        dtype = self.compute_dtype
        features = self.pixels(obs)
        for number, conv in enumerate(self.convs):
            assert conv.bias is not None
            kernel = conv.weight if number else self.first_kernel(conv.weight, obs)
            features = F.conv2d(
                features, kernel.to(dtype), conv.bias.to(dtype), stride=conv.stride, padding=self.PADDING
            )
            features = F.relu_(self._normalized(features, number))
        features = F.linear(_flat(features), self.linear.weight.to(dtype), self.linear.bias.to(dtype))
        features = F.relu_(self._normalized(features, -1))
        return features.float()

    def _normalized(self, features: Tensor, number: int) -> Tensor:
        """[N, C, H, W] or [N, C], over C."""
        if self.norms is None:
            return features
        norm: Any = self.norms[number]
        weight, bias = (each.to(self.compute_dtype) for each in (norm.weight, norm.bias))
        return F.layer_norm(features.movedim(1, -1), weight.shape, weight, bias, norm.eps).movedim(-1, 1)


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

    def __init__(self, image: ObsSpec, compute_dtype: torch.dtype) -> None:
        super().__init__(image, compute_dtype)
        channels, height, width = image.channels_height_width
        self.entries = nn.ModuleList()
        self.blocks = nn.ModuleList()
        for size in self.CHANNELS:
            self.entries.append(nn.Conv2d(channels, size, 3, padding=1))
            self.blocks.append(nn.ModuleList(nn.Conv2d(size, size, 3, padding=1) for _ in range(4)))
            channels, height, width = size, (height + 1) // 2, (width + 1) // 2
        self.linear = nn.Linear(channels * height * width, 256)
        self.num_features = 256

    def hold_in_compute_dtype(self) -> None:
        for layer in (*self.entries[1:], *self.blocks, self.linear):
            layer.to(self.compute_dtype)

    def forward(self, obs: Tensor) -> Tensor:
        dtype = self.compute_dtype
        features = self.pixels(obs)
        entry: Any
        convs: Any  # nn.ModuleList's items have no narrower type
        for section, (entry, convs) in enumerate(zip(self.entries, self.blocks, strict=True)):
            kernel = entry.weight if section else self.first_kernel(entry.weight, obs)
            features = F.max_pool2d(self._conv(features, entry, kernel), 3, stride=2, padding=1)
            for first in (0, 2):
                inner = self._conv(F.relu(features), convs[first])
                features = features + self._conv(F.relu(inner), convs[first + 1])
        features = _flat(F.relu(features))
        features = F.linear(features, self.linear.weight.to(dtype), self.linear.bias.to(dtype))
        return F.relu(features).float()

    def _conv(self, features: Tensor, conv: Any, kernel: Tensor | None = None) -> Tensor:
        kernel = conv.weight if kernel is None else kernel
        bias = conv.bias.to(self.compute_dtype)
        return F.conv2d(features, kernel.to(self.compute_dtype), bias, padding=1)


class TreeEncoder(nn.Module):
    """For dict observations: images through a CNN each, all else as numbers beside their features, then an MLP."""

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__()
        assert isinstance(spec.obs, dict)
        self.leaves = {path: leaf for path, leaf in spec.obs.items() if leaf.kind != "mask"}
        self.image_paths = tuple(spec.encoders)
        encoders = [image_encoder(spec, path, compute_dtype) for path in spec.encoders]
        self.images = nn.ModuleList(encoders)
        num_numbers = sum(leaf.num_features for path, leaf in self.leaves.items() if path not in spec.encoders)
        num_inputs = num_numbers + sum(each.num_features for each in encoders)
        self.mlp = MLPEncoder(num_inputs, spec)
        self.num_features = self.mlp.num_features

    def hold_in_compute_dtype(self) -> None:
        encoder: Any
        for encoder in self.images:
            encoder.hold_in_compute_dtype()

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [encoder(obs[path]) for path, encoder in zip(self.image_paths, self.images, strict=True)]
        parts += [leaf_features(obs[path], leaf) for path, leaf in self.leaves.items() if path not in self.image_paths]
        return self.mlp(torch.cat(parts, dim=1))


def leaf_features(obs: Tensor, leaf: ObsSpec) -> Tensor:
    """One leaf as numbers: float32[N, leaf.num_features]; choices become one-hot, pixels fractions of their bounds."""
    if leaf.kind == "discrete":
        return F.one_hot(obs.long(), leaf.nvec[0]).float()
    if leaf.kind == "multi_discrete":
        parts = [F.one_hot(obs[:, i].long(), n) for i, n in enumerate(leaf.nvec)]
        return torch.cat(parts, dim=1).float()
    features = obs.float()
    if leaf.kind == "image" and (obs.dtype == torch.uint8 or leaf.dtype != "uint8"):  # else they are normalised
        low, span = (
            torch.from_numpy(each).to(obs.device) if isinstance(each, np.ndarray) else each for each in leaf.pixel_scale
        )
        features = (features - low) / span
    return features.flatten(1)


IMAGE_ENCODERS: dict[str, type[NatureCNN | ImpalaCNN]] = {
    "nature_cnn": NatureCNN,
    "small_cnn": SmallCNN,
    "grid_cnn": GridCNN,
    "impala_cnn": ImpalaCNN,
}


def image_encoder(spec: PolicySpec, path: str, compute_dtype: torch.dtype) -> Any:
    """Of the image at this path."""
    spec.require_used()
    leaf, more = obs_leaves(spec.obs)[path], {"layer_norm": True} if spec.layer_norm else {}
    return IMAGE_ENCODERS[spec.encoders[path]](leaf, compute_dtype, **more)


def folded(obs: Tensor, layout: str) -> Tensor:
    """Images [N, *shape] of a layout -> [N, C, H, W], the frames of a stack side by side as channels; what has
    that form already as it is, if `layout` is no "HWC"."""
    if layout == "HWC":
        return obs.permute(0, 3, 1, 2)
    if obs.dim() == 4:
        return obs
    return obs.flatten(1, 2) if layout == "TCHW" else obs.permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)


def _flat(features: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, C * H * W]. The gradient goes back in the order that the features have in memory: through a
    ReLU, one in another order takes twenty times as long."""
    if features.requires_grad:
        features.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
    return features.flatten(1)


def channels_last(images: Tensor) -> Tensor:
    """[N, C, H, W], the same numbers in the order [N, H, W, C] in memory.

    Four bytes, a stack of frames, are put together as one number of 32 bits: three times as fast as byte by byte.
    """
    is_stack = images.dtype == torch.uint8 and images.shape[1] == 4 and images.device.type == "cpu"
    if (
        not is_stack
        or sys.byteorder != "little"
        or torch.compiler.is_compiling()
        or images.is_contiguous(memory_format=torch.channels_last)
    ):
        return images.contiguous(memory_format=torch.channels_last)
    N, _, H, W = images.shape
    pixels = torch.empty((N, H, W), dtype=torch.int32)
    for some, taken in zip(pixels.split(_IMAGES_AT_ONCE), images.split(_IMAGES_AT_ONCE), strict=True):
        some.copy_(taken[:, 0])
        for c in (1, 2, 3):
            some.add_(taken[:, c].to(torch.int32), alpha=1 << 8 * c)
    return pixels.view(torch.uint8).view(N, H, W, 4).permute(0, 3, 1, 2)
