"""`NumpyQPolicy`: the Q-network of rl/torch/q_network.py in plain numpy, for acting with MLPs.

A forward pass over a handful of observations is all overhead: numpy needs a fifth of torch's time for it.
tests/rl/torch/test_q_network.py holds both against each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec

Layer = tuple[Array, Array]
"""Weight float32[in, out] and bias float32[out]."""


class NumpyQPolicy:
    """Acts epsilon-greedily with the weights of a Q-network built from the same specs (encoder: mlp)."""

    def __init__(
        self, spec: PolicySpec, q: QSpec, seed: np.random.SeedSequence, *, epsilons: Array | None = None
    ) -> None:
        assert spec.is_plain_mlp, f"NumpyQPolicy acts for plain MLPs, not for {spec}"
        self.spec, self.q = spec, q
        self.exploration = EpsilonGreedy(seed, epsilons)
        self.core_state = np.zeros((0, 0), np.float32)
        self._weights: Weights = {}
        self._encoder: list[Layer] = []
        self._mean_heads: dict[str, list[Layer]] = {}
        self._support = q.support() if q.distributional == "c51" else None

    def set_weights(self, weights: Weights) -> None:
        self._weights = {name: np.array(array) for name, array in weights.items()}
        self._encoder = [
            self._layer(f"encoder.layers.{i}", is_noisy=False) for i in range(len(self.spec.hidden_sizes))
        ]
        self._mean_heads = self._heads(with_noise=False)
        self.exploration.set_weights(weights)

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

    def reset_core(self, ended: Array) -> None:
        """Nothing is carried from step to step."""

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.exploration.rng = np.random.Generator(np.random.PCG64(seed))

    def get_state(self) -> dict[str, Any]:
        return {"rng": self.exploration.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.exploration.rng.bit_generator.state = state["rng"]

    def _q_values(self, obs: Obs, heads: dict[str, list[Layer]]) -> Array:
        assert isinstance(obs, np.ndarray)
        # C order, whoever made the array: matrix products round differently with it.
        features = np.ascontiguousarray(obs.reshape(len(obs), -1), np.float32)
        for weight, bias in self._encoder:
            features = features @ weight
            features += bias
            if self.spec.activation == "tanh":
                np.tanh(features, out=features)
            else:
                np.maximum(features, 0.0, out=features)
        num_actions, num_outputs = self.spec.action.n, self.q.num_outputs
        outputs = _through(features, heads["advantage_head"]).reshape(-1, num_actions, num_outputs)
        if self.q.dueling:
            values = _through(features, heads["value_head"]).reshape(-1, 1, num_outputs)
            outputs = values + outputs - outputs.mean(axis=1, keepdims=True)
        if self._support is not None:
            exponentials = np.exp(outputs - outputs.max(axis=2, keepdims=True))
            return (exponentials @ self._support) / exponentials.sum(axis=2)
        q_values: Array = outputs.mean(axis=2) if num_outputs > 1 else outputs[:, :, 0]
        return q_values

    def _heads(self, *, with_noise: bool) -> dict[str, list[Layer]]:
        names = ["advantage_head", "value_head"] if self.q.dueling else ["advantage_head"]
        layers = ["hidden", "out"] if self.q.head_hidden_size else ["out"]
        return {
            name: [
                self._layer(f"{name}.{layer}", is_noisy=self.q.noisy, with_noise=with_noise)
                for layer in layers
            ]
            for name in names
        }

    def _layer(self, name: str, *, is_noisy: bool, with_noise: bool = False) -> Layer:
        # torch keeps [out, in]; a matrix product likes the transpose contiguous.
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        if is_noisy and with_noise:
            noise_out, noise_in = (self._noise(size) for size in weight.shape)
            weight = weight + self._weights[f"{name}.weight_sigma"] * np.outer(noise_out, noise_in)
            bias = bias + self._weights[f"{name}.bias_sigma"] * noise_out
        return np.ascontiguousarray(weight.T), bias

    def _noise(self, size: int) -> Array:
        """f(x) = sgn(x) sqrt|x| of normal numbers (factorised noise)."""
        noise: Array = self.exploration.rng.standard_normal((size,), np.float32)
        return np.sign(noise) * np.sqrt(np.abs(noise))


def _through(features: Array, layers: list[Layer]) -> Array:
    for index, (weight, bias) in enumerate(layers):
        features = features @ weight + bias
        if index + 1 < len(layers):
            features = np.maximum(features, 0.0)
    return features
