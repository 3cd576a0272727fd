"""`NumpyQPolicy`: the Q-network of rl/torch/q_network.py in plain numpy, for acting with MLPs.

tests/rl/torch/test_q_network.py holds both against each other.
"""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.numpy_mlp import Layer, forward, layer, layers
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.policies.stateless import Stateless


class NumpyQPolicy(Stateless):
    """Acts epsilon-greedily with the weights of a Q-network built from the same specs (encoder: mlp)."""

    def __init__(
        self, spec: PolicySpec, q: QSpec, seed: np.random.SeedSequence, *, epsilons: Array | None = None
    ) -> None:
        assert spec.is_plain_mlp, f"NumpyQPolicy acts for plain MLPs, not for {spec}"
        self.spec, self.q = spec, q
        super().__init__(seed)
        self.exploration = EpsilonGreedy(seed, epsilons)
        self._rng = self.exploration.rng
        self._weights: Weights = {}
        self._encoder: list[Layer] = []
        self._mean_heads: dict[str, list[Layer]] = {}
        self._normalize = ObsNormalizer()
        self._support = q.support() if q.distributional == "c51" else None

    def set_weights(self, weights: Weights) -> None:
        self._weights = {name: np.array(array) for name, array in weights.items()}
        self._encoder = layers(weights, "encoder", len(self.spec.hidden_sizes))
        self._mean_heads = self._heads(with_noise=False)
        self.exploration.set_weights(weights)
        self._normalize.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> see `EpsilonGreedy.choose`. `deterministic`: greedy, without noise."""
        heads = self._heads(with_noise=True) if self.q.noisy and not deterministic else self._mean_heads
        return self.exploration.choose(self._q_values(obs, heads), obs, deterministic=deterministic)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]: the largest Q."""
        largest: Array = self._q_values(obs, self._mean_heads).max(axis=1)
        return largest

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._q_values(obs, self._mean_heads)

    def _q_values(self, obs: Obs, heads: dict[str, list[Layer]]) -> Array:
        obs = self._normalize(obs)
        assert isinstance(obs, np.ndarray)
        # C order, whoever made the array: matrix products round differently with it.
        features = np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32)
        features = forward(features, self._encoder, self.spec.activation, last=True)
        num_actions, num_outputs = self.spec.action.n, self.q.num_outputs
        outputs = forward(features, heads["advantage_head"], "relu").reshape(-1, num_actions, num_outputs)
        if self.q.dueling:
            values = forward(features, heads["value_head"], "relu").reshape(-1, 1, num_outputs)
            outputs = values + outputs - outputs.mean(axis=1, keepdims=True)
        if self._support is not None:
            exponentials = np.exp(outputs - outputs.max(axis=2, keepdims=True))
            return (exponentials @ self._support) / exponentials.sum(axis=2)
        q_values: Array = outputs.mean(axis=2) if num_outputs > 1 else outputs[:, :, 0]
        return q_values

    def _heads(self, *, with_noise: bool) -> dict[str, list[Layer]]:
        names = ["advantage_head", "value_head"] if self.q.dueling else ["advantage_head"]
        parts = ["hidden", "out"] if self.q.head_hidden_size else ["out"]
        return {
            name: [self._layer(f"{name}.{part}", with_noise=with_noise) for part in parts] for name in names
        }

    def _layer(self, name: str, *, with_noise: bool) -> Layer:
        if not with_noise:
            return layer(self._weights, name)
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        noise_out, noise_in = (self._noise(size) for size in weight.shape)
        weight = weight + self._weights[f"{name}.weight_sigma"] * np.outer(noise_out, noise_in)
        bias = bias + self._weights[f"{name}.bias_sigma"] * noise_out
        return np.ascontiguousarray(weight.T), bias

    def _noise(self, size: int) -> Array:
        """f(x) = sgn(x) sqrt|x| of normal numbers (factorised noise)."""
        noise: Array = self.exploration.rng.standard_normal((size,), np.float32)
        return np.sign(noise) * np.sqrt(np.abs(noise))
