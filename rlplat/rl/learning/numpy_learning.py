"""Learning in plain numpy: `NumpyTrainee`, a `NumpyNetwork` that is trained, with what every algorithm keeps beside it
(as rl/torch/trainee.py); and optimizers, which parameter servers have, too.

    network = NumpyNetwork(spec, rng)
    distribution, values = network.forward(obs)
    network.backward(*distribution.gradients(d_log_probs, d_entropies), d_values)       # fills network.gradients
    optimizer.step(weights, gradients, learning_rate=7e-4)                              # weights change in place

For matrices this small, torch's calls cost more than their arithmetic: a forward and backward pass takes less than
half as long here (docs/frameworks.md), and a process that learns so never imports torch. All is float32 and done in one
order: the same bits every time. tests/algorithms/test_ppo_numpy.py and test_a3c_numpy.py hold it against torch.

Weights and Adam's moments have the names, shapes and layout that torch's have: a checkpoint of one goes on under the
other. The optimizers' arithmetic is elementwise: one array with all parameters gets the numbers of each, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from rlplat.rl.algorithm_config import weight_decay_of
from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.policies.framework_check import weight_for
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved

LOG_2PI = math.log(2.0 * math.pi)


class NumpyNetwork:
    """Parameters and gradients lie in one array each; `weights` and `gradients` are views by torch's names.

    The encoders of actor and critic have the same form: E = 2 of them (1 where they share it) are one product of
    matrices [E, ...].
    """

    def __init__(self, spec: PolicySpec, rng: np.random.Generator) -> None:
        """Initialised as `ActorCritic` is, with numbers of its own."""
        assert spec.is_plain_mlp and not isinstance(spec.obs, dict), f"NumpyNetwork is a plain MLP, not {spec}"
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

    def __init__(self, *, decay: float = 0.99, epsilon: float = 1e-5, epsilon_inside_root: bool = True) -> None:
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
    """Kingma & Ba 2015, algorithm 1; the same numbers as torch.optim.Adam, with `weight_decay` as torch.optim.AdamW.

    w = w - learning_rate * weight_decay * w
    m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient^2
    w = w - learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
    """

    def __init__(
        self, *, epsilon: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0
    ) -> None:
        self._epsilon, self._betas, self._weight_decay = epsilon, betas, weight_decay
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
                if self._weight_decay:
                    w *= 1.0 - learning_rate * self._weight_decay
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


def optimizer_of(config: Any) -> Optimizer:
    """config: of an algorithm with `optimizer`, `optimizer_epsilon`, `rmsprop_decay` and `epsilon_inside_root`."""
    epsilon = config.optimizer_epsilon
    if config.optimizer == "adam":
        return Adam(epsilon=epsilon, weight_decay=weight_decay_of(config))
    inside = config.epsilon_inside_root
    return RMSProp(decay=config.rmsprop_decay, epsilon=epsilon, epsilon_inside_root=inside)


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


FLAT = "all"
"""By which the optimizer knows the array of all parameters."""


class NumpyTrainee:
    """distribution, values = trainee.network.forward(obs)
    trainee.network.backward(...)
    norm = trainee.descend(learning_rate)
    """

    def __init__(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        """config: of an algorithm; without `adam_epsilon` there is no optimizer: gradients go elsewhere."""
        self.network = NumpyNetwork(spec, np.random.Generator(np.random.PCG64(seed)))
        self._max_norm = config.max_gradient_norm or math.inf
        epsilon = getattr(config, "adam_epsilon", None)
        decay = weight_decay_of(config)
        self._adam = None if epsilon is None else Adam(epsilon=epsilon, weight_decay=decay)
        self._non_finite: list[str] = []

    def descend(self, learning_rate: float) -> float:
        """One step along the network's gradients -> their norm before clipping. One that is not finite changed
        nothing."""
        assert self._adam is not None, "a config without adam_epsilon has no optimizer here"
        gradients = {FLAT: self.network.flat_gradients}
        norm = clip_by_global_norm(gradients, self._max_norm)
        if math.isfinite(norm):
            self._adam.step({FLAT: self.network.flat}, gradients, learning_rate)
        else:
            named = self.network.gradients.items()
            self._non_finite = [name for name, array in named if not np.isfinite(array).all()]
        return norm

    def non_finite_gradients(self) -> list[str]:
        """Names of the parameters whose gradients held NaN or infinity in the last step with such."""
        return self._non_finite

    def weights(self) -> Weights:
        """A copy."""
        return {name: array.copy() for name, array in self.network.weights.items()}

    def set_weights(self, weights: Weights) -> None:
        """Further names (normaliser statistics) are left alone."""
        for name, array in self.network.weights.items():
            array[...] = weight_for(weights, name, array.shape)

    def get_state(self) -> dict[str, Any]:
        assert self._adam is not None
        state = self._adam.get_state()
        step = np.array(state["steps"], np.float32)
        zeros = np.zeros_like(self.network.flat)
        means, squares = (
            views(state["slots"][slot].get(FLAT, zeros), self.network.shapes) for slot in ("means", "squares")
        )
        optimizer = {
            name: {"step": step.copy(), "exp_avg": means[name].copy(), "exp_avg_sq": squares[name].copy()}
            for name in means
        }
        return {"weights": self.weights(), "optimizer": optimizer}

    def set_state(self, state: dict[str, Any]) -> None:
        assert self._adam is not None
        self.set_weights(state["weights"])
        slots = {}
        for slot, key in (("means", "exp_avg"), ("squares", "exp_avg_sq")):
            flat = np.zeros_like(self.network.flat)
            for name, array in views(flat, self.network.shapes).items():
                array[...] = state["optimizer"][name][key]
            slots[slot] = {FLAT: flat}
        steps = max(int(kept["step"]) for kept in state["optimizer"].values())
        self._adam.set_state({"slots": slots, "steps": steps})
