"""`NumpyNetwork`: the actor-critic MLP of rl/torch/networks.py with its gradient, in plain numpy.

    network = NumpyNetwork(spec, rng)
    distribution, values = network.forward(obs)
    network.backward(*distribution.gradients(d_log_probs, d_entropies), d_values)       # fills network.gradients

For matrices this small, torch's calls cost more than their arithmetic: a forward and backward pass takes less than
half as long here (docs/frameworks.md), and a process that learns so never imports torch. All is float32 and done in one
order: the same bits every time. tests/algorithms/test_ppo_numpy.py and test_a3c_numpy.py hold it against torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.policies.spec import PolicySpec

LOG_2PI = math.log(2.0 * math.pi)


class NumpyNetwork:
    """Parameters and gradients lie in one array each; `weights` and `gradients` are views by torch's names.

    The encoders of actor and critic have the same form: E = 2 of them (1 where they share it) are one product of
    matrices [E, ...].
    """

    def __init__(self, spec: PolicySpec, rng: np.random.Generator) -> None:
        """Initialised as `ActorCritic` is, with numbers of its own."""
        assert spec.is_plain_mlp and not isinstance(spec.obs, dict), (
            f"NumpyNetwork is a plain MLP, not {spec}"
        )
        self.spec = spec
        names = ["actor_encoder"] if spec.share_encoder else ["actor_encoder", "critic_encoder"]
        sizes = [spec.obs.num_features, *spec.hidden_sizes]
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (num_in, num_out) in enumerate(pairwise(sizes)):
            shapes |= {f"{name}.layers.{i}.weight": (num_out, num_in) for name in names}
            shapes |= {f"{name}.layers.{i}.bias": (num_out,) for name in names}
        for head, num_out in (("actor_head", spec.num_params), ("critic_head", 1)):
            shapes |= {f"{head}.weight": (num_out, sizes[-1]), f"{head}.bias": (num_out,)}
        if spec.num_gaussian:
            shapes["log_std"] = (spec.num_gaussian,)
        self.flat = np.zeros(sum(map(math.prod, shapes.values())), np.float32)
        """float32[P]: all parameters."""
        self.flat_gradients = np.zeros_like(self.flat)
        self.weights = views(self.flat, shapes)
        self.gradients = views(self.flat_gradients, shapes)
        self.shapes: Mapping[str, tuple[int, ...]] = shapes
        self._layers = self._stacked(self.flat, sizes, len(names))
        self._layer_gradients = self._stacked(self.flat_gradients, sizes, len(names))
        self._is_tanh = spec.activation == "tanh"
        self._obs = np.zeros((0, sizes[0]), np.float32)
        self._features: list[Array] = []
        self._buffers = [np.zeros((len(names), 0, size), np.float32) for size in sizes[1:]]
        self._ones = np.zeros(0, np.float32)
        self._initialize(rng)

    def forward(self, obs: Array) -> tuple[NumpyDistribution, Array]:
        """obs: float32[M, D] -> (the distribution of M actions, values float32[M]); both until the next call."""
        self._reserve(len(obs))
        self._obs, self._features, inputs = obs, [], obs
        for (weight, bias), buffer in zip(self._layers, self._buffers, strict=True):
            features = np.matmul(inputs, weight.swapaxes(1, 2), out=buffer[:, : len(obs)])
            features += bias
            if self._is_tanh:
                np.tanh(features, out=features)
            else:
                np.maximum(features, 0.0, out=features)
            self._features.append(features)
            inputs = features
        weights = self.weights
        params = inputs[0] @ weights["actor_head.weight"].T
        params += weights["actor_head.bias"]
        values = inputs[-1] @ weights["critic_head.weight"][0]
        values += weights["critic_head.bias"]
        return NumpyDistribution(self.spec, params, weights.get("log_std")), values

    def backward(self, d_params: Array, d_log_std: Array | None, d_values: Array) -> None:
        """The gradients of a loss whose derivatives by the outputs of the last `forward` are these: float32[M, A],
        [G] (of Gaussian heads), [M]. They replace those of before."""
        ones, features, weights, gradients = (
            self._ones[: len(d_values)],
            self._features,
            self.weights,
            self.gradients,
        )
        np.matmul(d_params.T, features[-1][0], out=gradients["actor_head.weight"])
        np.matmul(ones, d_params, out=gradients["actor_head.bias"])
        np.matmul(d_values, features[-1][-1], out=gradients["critic_head.weight"][0])
        gradients["critic_head.bias"][0] = d_values.sum()
        if d_log_std is not None:
            gradients["log_std"][:] = d_log_std
        delta = np.empty_like(features[-1])
        np.matmul(d_params, weights["actor_head.weight"], out=delta[0])
        of_values = np.multiply.outer(d_values, weights["critic_head.weight"][0])
        if len(delta) == 1:
            delta[0] += of_values
        else:
            delta[1] = of_values
        for i in range(len(features) - 1, -1, -1):
            output = features[i]  # of no use any more: overwritten by the slope of the activation
            if self._is_tanh:
                np.multiply(output, output, out=output)
                np.subtract(1.0, output, out=output)
                delta *= output
            else:
                delta *= output > 0.0
            weight, bias = self._layer_gradients[i]
            np.matmul(delta.swapaxes(1, 2), features[i - 1] if i else self._obs, out=weight)
            np.matmul(ones, delta, out=bias[:, 0])
            if i:
                delta = delta @ self._layers[i][0]

    def _reserve(self, num_rows: int) -> None:
        """Room for so many rows; kept, so that a minibatch asks the system for no memory."""
        if num_rows > len(self._ones):
            self._ones = np.ones(num_rows, np.float32)
            self._buffers = [np.empty((len(b), num_rows, b.shape[2]), np.float32) for b in self._buffers]

    @staticmethod
    def _stacked(flat: Array, sizes: list[int], num_encoders: int) -> list[tuple[Array, Array]]:
        """Views of (weight [E, out, in], bias [E, 1, out]) of every layer of the encoders; they lie first in `flat`."""
        layers, start = [], 0
        for num_in, num_out in pairwise(sizes):
            middle = start + num_encoders * num_in * num_out
            stop = middle + num_encoders * num_out
            weight = flat[start:middle].reshape(num_encoders, num_out, num_in)
            layers.append((weight, flat[middle:stop].reshape(num_encoders, 1, num_out)))
            start = stop
        return layers

    def _initialize(self, rng: np.random.Generator) -> None:
        gains = {"actor_head": 0.01, "critic_head": 1.0}
        for name, weight in self.weights.items():
            layer, _, part = name.rpartition(".")
            if name == "log_std":
                weight[:] = self.spec.initial_log_std
            elif not self.spec.orthogonal_init:  # torch's own: uniform within +-1 / sqrt(in), biases as well
                bound = 1.0 / math.sqrt(self.shapes[f"{layer}.weight"][1])
                weight[:] = rng.uniform(-bound, bound, weight.shape)
            elif part == "weight":
                weight[:] = gains.get(layer, math.sqrt(2.0)) * _orthogonal(weight.shape, rng)


class NumpyDistribution:
    """The distribution of M actions that parameters float32[M, A] describe: one categorical or one Gaussian head.

    log_probs, entropies = distribution.evaluate(actions)               # float32[M] each
    d_params, d_log_std = distribution.gradients(d_log_probs, d_entropies)
    """

    def __init__(self, spec: PolicySpec, params: Array, log_std: Array | None) -> None:
        self._params, self._log_std = params, log_std
        head = spec.heads[0]
        self._bounds = (np.array(head.low, np.float32), np.array(head.high, np.float32)) if head.low else None

    def evaluate(self, actions: Array) -> tuple[Array, Array]:
        """actions: int64[M] or float32[M, A] -> (log pi(actions), entropies), float32[M] each."""
        if self._log_std is None:
            self._rows = np.arange(len(actions))
            self._actions = actions
            shifted = self._params - self._params.max(axis=1, keepdims=True)
            exponentials = np.exp(shifted)
            sums = exponentials.sum(axis=1, keepdims=True)
            self._probs, self._log_probs = exponentials / sums, shifted - np.log(sums)
            self._entropies = -(self._probs * self._log_probs).sum(axis=1)
            return self._log_probs[self._rows, actions], self._entropies
        constant = self._log_std.sum() + np.float32(0.5 * LOG_2PI * len(self._log_std))
        if self._bounds is not None:  # of a rescaled head: the slope is the same everywhere
            low, high = self._bounds
            actions = (actions - low) / (high - low) * np.float32(2.0) - np.float32(1.0)
            constant += np.log((high - low) / np.float32(2.0)).sum()
        self._inverse_std = np.exp(-self._log_std)
        self._normalized = (actions - self._params) * self._inverse_std
        log_probs = np.float32(-0.5) * np.square(self._normalized).sum(axis=1) - constant
        entropy = constant + np.float32(0.5 * len(self._log_std))
        return log_probs, np.full(len(actions), entropy, np.float32)

    def gradients(self, d_log_probs: Array, d_entropies: Array) -> tuple[Array, Array | None]:
        """Of a loss whose derivatives by what `evaluate` gave are these, float32[M] each: (by the parameters
        float32[M, A], by log_std float32[A] of a Gaussian head)."""
        d_log_probs = d_log_probs[:, None]
        if self._log_std is None:
            # d log p_a / d z_j = [a = j] - p_j;  d H / d z_j = -p_j (log p_j + H)
            slopes = self._log_probs + self._entropies[:, None]
            slopes *= d_entropies[:, None]
            slopes += d_log_probs
            slopes *= -self._probs
            slopes[self._rows, self._actions] += d_log_probs[:, 0]
            return slopes, None
        # d log p / d mu = n / sigma and d log p / d log sigma = n^2 - 1, n = (a - mu) / sigma;  d H / d log sigma = 1
        d_means = self._normalized * self._inverse_std * d_log_probs
        d_log_std = ((np.square(self._normalized) - np.float32(1.0)) * d_log_probs).sum(axis=0)
        return d_means, d_log_std + d_entropies.sum()


def views(flat: Array, shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    """Arrays of these shapes, which lie in `flat` one after the other."""
    arrays: Weights = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        arrays[name] = flat[start:stop].reshape(shape)
        start = stop
    return arrays


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Orthogonal rows or columns of length 1, uniformly drawn (Saxe et al. 2014)."""
    q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    q *= np.sign(np.diag(r))
    return q.T if shape[0] < shape[1] else q
