"""`NumpyActorCritic`: the actor-critic MLP of rl/torch/networks.py in plain numpy, for acting.

tests/rl/torch/test_policy.py holds both against each other.
"""

from __future__ import annotations

import math

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.policies.numpy_mlp import Layer, forward, layer, layers
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.policies.stateless import Stateless


class NumpyActorCritic(Stateless):
    """Acts with the weights of a torch `ActorCritic` built from the same spec (encoder: mlp)."""

    def __init__(self, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        assert spec.is_plain_mlp, f"NumpyActorCritic acts for plain MLPs, not for {spec}"
        self.spec = spec
        super().__init__(seed)
        self._normalize = ObsNormalizer()
        self._encoder: list[Layer] = []
        """Where both share it: then the two below are their heads alone."""
        self._actor: list[Layer] = []
        self._critic: list[Layer] = []
        self._is_categorical = spec.heads[0].kind == "categorical"
        self._log_std = np.zeros(spec.num_gaussian, np.float32)
        self._rescale: tuple[Array, Array] | None = None
        """(low, half the width) of the bounds that are -1 and 1 to the policy."""
        if spec.heads[0].is_gaussian and spec.heads[0].low:
            low, high = np.array(spec.heads[0].low, np.float32), np.array(spec.heads[0].high, np.float32)
            self._rescale = (low, (high - low) / np.float32(2.0))

    def set_weights(self, weights: Weights) -> None:
        num_layers = len(self.spec.hidden_sizes)
        self._actor, self._critic = [layer(weights, "actor_head")], [layer(weights, "critic_head")]
        encoder = layers(weights, "actor_encoder", num_layers)
        if self.spec.share_encoder:
            self._encoder = encoder
        else:
            self._actor[:0] = encoder
            self._critic[:0] = layers(weights, "critic_encoder", num_layers)
        if not self._is_categorical:
            self._log_std = np.array(weights["log_std"], np.float32)
        self._normalize.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions int64[B] or float32[B, A], log_probs float32[B], values float32[B]."""
        params, values = self._forward(obs)
        if self._is_categorical:
            actions, log_probs = self._categorical(params, deterministic)
        else:
            actions, log_probs = self._gaussian(params, deterministic)
        return PolicyOutput(actions, log_probs, values)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]."""
        return self._forward(obs)[1]

    def _forward(self, obs: Obs) -> tuple[Array, Array]:
        """(logits or means float32[B, A], values float32[B])"""
        normalized = self._normalize(obs)
        assert not isinstance(normalized, dict), "nested observations are for TorchActorCritic"
        inputs = normalized.astype(np.float32, copy=False)
        if inputs.ndim != 2:
            inputs = inputs.reshape(len(inputs), -1)
        activation = self.spec.activation
        if self._encoder:
            inputs = forward(inputs, self._encoder, activation, last=True)
        return forward(inputs, self._actor, activation), forward(inputs, self._critic, activation)[:, 0]

    def _categorical(self, logits: Array, deterministic: bool) -> tuple[Array, Array]:
        if deterministic:
            actions = logits.argmax(axis=1)
        else:
            # Gumbel-max: argmax(logits + G) is a draw from softmax(logits), and -log(Exponential) is such a G.
            actions = (logits - np.log(self._rng.standard_exponential(logits.shape))).argmax(axis=1)
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_normalizers = np.log(np.exp(shifted).sum(axis=1))
        return actions, shifted[np.arange(len(actions)), actions] - log_normalizers

    def _gaussian(self, means: Array, deterministic: bool) -> tuple[Array, Array]:
        if deterministic:
            noise = np.zeros_like(means)
        else:
            noise = self._rng.standard_normal(means.shape, dtype=np.float32)
        actions = means + noise * np.exp(self._log_std)
        constant = self._log_std.sum() + 0.5 * math.log(2.0 * math.pi) * self.spec.num_gaussian
        if self._rescale is not None:
            low, half = self._rescale
            actions = low + half * (actions + np.float32(1.0))
            constant += np.log(half).sum()
        log_probs = -0.5 * np.square(noise).sum(axis=1) - constant
        return actions, log_probs.astype(np.float32, copy=False)
