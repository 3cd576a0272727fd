"""Actor-critic networks: encoder (MLP or Nature CNN), a head for the action distribution and one for the value."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.policy_spec import PolicySpec
from rlplat.rl.torch.distributions import categorical_log_probs, gaussian_log_probs


class MLPEncoder(nn.Module):
    """Linear layers with tanh or ReLU: [N, ...] -> float32[N, hidden_sizes[-1]]."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        sizes = (spec.obs_size, *spec.hidden_sizes)
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(spec.hidden_sizes)))
        self.activation = torch.tanh if spec.activation == "tanh" else torch.relu
        self.num_features = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        features = obs.flatten(1)
        for layer in self.layers:
            features = self.activation(layer(features))
        return features


class NatureCNN(nn.Module):
    """The network of Mnih et al. 2015 (Nature): three convolutions and a layer of 512.

    uint8[N, C, H, W] (or [N, H, W, C]) -> float32[N, 512]. Pixels are taken as fractions of 255 by scaling the first
    kernel instead of every pixel: exact in bfloat16, which holds the integers up to 256, and one pass over the images
    less. Images stay in channels-last order in memory, which CPU convolutions and GPU tensor cores want.
    `compute_dtype` bfloat16 casts at each call; the parameters stay float32.
    """

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.channels_last = spec.obs_layout == "HWC"
        channels, height, width = (
            spec.obs_shape[i] for i in ((2, 0, 1) if self.channels_last else (0, 1, 2))
        )
        self.compute_dtype = compute_dtype
        self.conv1 = nn.Conv2d(channels, 32, 8, stride=4)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=1)
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.linear = nn.Linear(64 * height * width, 512)
        self.num_features = 512
        for conv in (self.conv1, self.conv2, self.conv3):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def hold_in_compute_dtype(self) -> None:
        """For acting: keep the large parameters in the compute dtype, instead of casting them at each call.

        Not the first kernel: its scaling by 1/255 is done in float32, as in the learner.
        """
        for layer in (self.conv2, self.conv3, self.linear):
            layer.to(self.compute_dtype)

    def forward(self, obs: Tensor) -> Tensor:
        dtype = self.compute_dtype
        images = obs.permute(0, 3, 1, 2) if self.channels_last else obs
        features = images.to(dtype, memory_format=torch.channels_last)
        for conv in (self.conv1, self.conv2, self.conv3):
            assert conv.bias is not None
            kernel = conv.weight / 255.0 if conv is self.conv1 else conv.weight
            features = F.conv2d(features, kernel.to(dtype), conv.bias.to(dtype), stride=conv.stride)
            features = F.relu_(features)
        features = F.linear(features.flatten(1), self.linear.weight.to(dtype), self.linear.bias.to(dtype))
        features = F.relu_(features)
        return features.float()


class ActorCritic(nn.Module):
    """Policy and value network of a `PolicySpec`: one encoder for both heads (`share_encoder`) or one for each.

    Initialised as in Huang et al. 2022 (core detail 2): orthogonal, gain sqrt(2) in the encoder, 0.01 in the policy
    head (so that the first policy is nearly uniform) and 1 in the value head; biases 0.
    """

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec = spec
        self.actor_encoder = _encoder(spec, compute_dtype)
        self.critic_encoder = None if spec.share_encoder else _encoder(spec, compute_dtype)
        self.actor_head = nn.Linear(self.actor_encoder.num_features, spec.action_size)
        self.critic_head = nn.Linear(self.actor_encoder.num_features, 1)
        if spec.action_kind == "gaussian":
            self.log_std = nn.Parameter(torch.full((spec.action_size,), spec.initial_log_std))
        if spec.orthogonal_init:
            self._initialize_orthogonally()

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs: [N, ...] -> (logits or means float32[N, A], values float32[N])."""
        features = self.actor_encoder(obs)
        critic_features = features if self.critic_encoder is None else self.critic_encoder(obs)
        return self.actor_head(features), self.critic_head(critic_features).squeeze(-1)

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(log pi(actions | obs), entropy of pi(. | obs), V(obs)), float32[N] each."""
        params, values = self(obs)
        if self.spec.action_kind == "categorical":
            log_probs, entropies = categorical_log_probs(params, actions)
        else:
            log_probs, entropies = gaussian_log_probs(params, self.log_std, actions)
        return log_probs, entropies, values

    def _initialize_orthogonally(self) -> None:
        gains: dict[nn.Module, float] = {self.actor_head: 0.01, self.critic_head: 1.0}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                # Drawn in the default memory order: the same numbers whatever order the kernel is kept in.
                weight = torch.empty(module.weight.shape)
                nn.init.orthogonal_(weight, gains.get(module, math.sqrt(2.0)))
                module.weight.data.copy_(weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)


def _encoder(spec: PolicySpec, compute_dtype: torch.dtype) -> MLPEncoder | NatureCNN:
    return NatureCNN(spec, compute_dtype) if spec.encoder == "nature_cnn" else MLPEncoder(spec)
