"""Plain MLPs that act in numpy: `NumpyActorCritic` and `NumpyQPolicy`, the networks of rl/torch/networks.py and
rl/torch/q_network.py, which tests/rl/torch holds against them.

Over a handful of observations a forward pass is all overhead: numpy needs a fifth of torch's time for it, and a rollout
worker that never imports torch starts a second sooner. Learners compute gradients in a framework; there is no backward
pass here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Activation, Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.saved import Saved
from rlplat.rl.seeding import Generators

Layer = tuple[Array, ...]
"""Weight float32[in, out] and bias float32[out]; or one network per row: float32[B, in, out] and float32[B, out]; or
one for each of S blocks of rows: float32[S, in, out] and float32[S, 1, out]. With layer normalisation its scale and
shift as well, float32[out] or [S, 1, out]."""
NORM_EPSILON = 1e-5
"""torch's."""


def _erf(x: Array) -> Array:
    """Abramowitz & Stegun 1964, 7.1.26: exact to 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    powers = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf: Array = np.sign(x) * (1.0 - powers * np.exp(-x * x))
    return erf


def _elu(x: Array) -> Array:
    exponentials: Array = np.expm1(np.minimum(x, 0.0))
    return np.maximum(x, 0.0) + exponentials


def _selu(x: Array) -> Array:
    return 1.0507009873554805 * (np.maximum(x, 0.0) + 1.6732632423543772 * np.expm1(np.minimum(x, 0.0)))


ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "tanh": lambda x: np.tanh(x, x),
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "leaky_relu": lambda x: np.maximum(x, 0.01 * x, out=x),
    "elu": _elu,  # Clevert et al. 2016, eq. 16
    "selu": _selu,  # Klambauer et al. 2017, eq. 2 and 14
    "silu": lambda x: 0.5 * x * (1.0 + np.tanh(0.5 * x)),  # x * sigmoid(x): Elfwing et al. 2018
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))),  # x * Phi(x): Hendrycks & Gimpel 2016
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),  # x * tanh(softplus(x)): Misra 2019
}
"""x: float32, which may be overwritten."""


def layer(weights: Weights, name: str) -> Layer:
    """A copy, which lets go of the shared memory that weights came through."""
    # torch keeps [out, in]; a matrix product likes the transpose contiguous.
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.array(weight.T, np.float32, order="C"), np.array(bias, np.float32)


def layers(weights: Weights, name: str, num_layers: int) -> list[Layer]:
    """`<name>.layers.0` and on: an encoder."""
    made = [layer(weights, f"{name}.layers.{index}") for index in range(num_layers)]
    if f"{name}.norms.0.weight" not in weights:
        return made
    parts = ("weight", "bias")
    norms = [[np.array(weights[f"{name}.norms.{i}.{part}"], np.float32) for part in parts] for i in range(num_layers)]
    return [(*linear, *norm) for linear, norm in zip(made, norms, strict=True)]


def forward(x: Array, layers: Sequence[Layer], activation: Activation, *, last: bool = False) -> Array:
    """x: float32[B, in], of blocks [S, B, in] -> the same with out; last: activate after the last layer, too (an
    encoder)."""
    left = len(layers) if last else len(layers) - 1
    activate, is_shared = ACTIVATIONS[activation], layers[0][0].ndim <= x.ndim
    for parts in layers:
        weight, bias = parts[0], parts[1]
        x = x @ weight if is_shared else (weight.swapaxes(1, 2) @ x[:, :, None])[:, :, 0]
        x += bias
        if left:
            left -= 1
            x = activate(x) if len(parts) == 2 else activate(_normalized(x, *parts[2:]))
    return x


def _normalized(x: Array, scale: Array, shift: Array) -> Array:
    """Layer normalisation (Ba et al. 2016, eq. 4): by the mean and deviation of each row."""
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    normalized: Array = centred / deviation * scale + shift
    return normalized


class Stateless(Saved):
    """A generator of random numbers, and no core (see interfaces.Policy)."""

    saved = {"rng": "_rng"}
    core_state = np.zeros((0, 0), np.float32)

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def reset_core(self, ended: Array) -> None:
        """Nothing is carried from step to step."""

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng.bit_generator.state = np.random.PCG64(seed).state


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
            self._critic[:0] = layers(weights, "critic_encoder", len(self.spec.critic.hidden_sizes))
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
        return self._outputs(inputs if inputs.ndim == 2 else inputs.reshape(len(inputs), -1))

    def _outputs(self, inputs: Array) -> tuple[Array, Array]:
        """inputs: float32[B, F], or blocks [S, B, F] for as many networks."""
        activation = self.spec.activation
        if self._encoder:
            inputs = forward(inputs, self._encoder, activation, last=True)
        return forward(inputs, self._actor, activation), forward(inputs, self._critic, activation)[..., 0]

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
        constant = self._log_std.sum(axis=-1) + 0.5 * math.log(2.0 * math.pi) * self.spec.num_gaussian
        if self._rescale is not None:
            low, half = self._rescale
            actions = low + half * (actions + np.float32(1.0))
            constant += np.log(half).sum()
        log_probs = -0.5 * np.square(noise).sum(axis=1) - constant
        return actions, log_probs.astype(np.float32, copy=False)


class JointActorCritic(NumpyActorCritic):
    """Acts for S policies of one spec, each in its own block of rows, with its own random numbers."""

    def __init__(self, policies: Sequence[NumpyActorCritic]) -> None:
        super().__init__(policies[0].spec, np.random.SeedSequence(0))
        self._each = policies
        self._rng: Any = Generators([policy._rng for policy in policies])

    def gather(self, num_rows: int) -> None:
        """Their weights, as they are now; num_rows: of a block."""
        self._encoder = _stacked([policy._encoder for policy in self._each])
        self._actor = _stacked([policy._actor for policy in self._each])
        self._critic = _stacked([policy._critic for policy in self._each])
        self._log_std = np.repeat(np.stack([policy._log_std for policy in self._each]), num_rows, axis=0)
        self._normalize.take_all([policy._normalize for policy in self._each])

    def _forward(self, obs: Obs) -> tuple[Array, Array]:
        assert not isinstance(obs, dict), "nested observations are for TorchActorCritic"
        count = len(self._each)
        inputs = self._normalize(obs.reshape(count, -1, *obs.shape[1:]))
        assert not isinstance(inputs, dict)
        params, values = self._outputs(inputs.reshape(count, len(obs) // count, -1).astype(np.float32, copy=False))
        return params.reshape(-1, params.shape[-1]), values.reshape(-1)


def _stacked(each: Sequence[list[Layer]]) -> list[Layer]:
    """The layers of all: float32[S, in, out], and [S, 1, out] of what is a row."""
    layers = [[np.stack(parts) for parts in zip(*same, strict=True)] for same in zip(*each, strict=True)]
    return [tuple(part if part.ndim == 3 else part[:, None] for part in layer) for layer in layers]


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
        features = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
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
        return {name: [self._layer(f"{name}.{part}", with_noise=with_noise) for part in parts] for name in names}

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
