"""Many perturbations of one MLP at once, in plain numpy: what evolution strategies act with.

    shape = MLPShape(spaces, hidden_sizes=(16,), activation="tanh")
    mlps = PerturbedMLPs(shape, num_slots=32, noise=table)
    mlps.set_weights(weights)
    mlps.load(3, index=1_234_567, scale=-0.05)                  # slot 3 acts with theta - 0.05 * noise from there on
    actions = mlps.act(obs)                                     # row b of obs through network b

`MLPPolicy` is the same network unperturbed, one for all rows, as an `interfaces.Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Activation, Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.policies.numpy_policies import Layer, Stateless, forward
from rlplat.rl.spaces import ObsSpec, SpaceSpec

MAX_SIZE = 1 << 32
"""Indices travel as uint32."""
BLOCK_FLOATS = 1 << 20
"""Of slices side by side in `weighted_sum`: 4 MB, whatever the number of slices."""


def make_noise(size: int, seed: np.random.SeedSequence) -> Array:
    """float32[size] from N(0, 1)."""
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(size, dtype=np.float32)


class NoiseTable:
    def __init__(self, noise: Array) -> None:
        """noise: float32[size]; never written to."""
        assert noise.ndim == 1 and noise.dtype == np.float32 and len(noise) <= MAX_SIZE, (
            noise.shape,
            noise.dtype,
        )
        self._noise = noise

    def draw(self, rng: np.random.Generator, num_params: int, count: int) -> Array:
        """uint32[count], uniform over all indices whose slice lies within the table; repetitions happen."""
        last = len(self._noise) - num_params
        if last < 0:
            raise ConfigError(
                f"a noise table of {len(self._noise):,} floats is too small for {num_params:,} parameters; raise "
                "noise_table_size (a hundred times the parameters and more) or make the network smaller"
            )
        return rng.integers(0, last, size=count, dtype=np.uint32, endpoint=True)

    def slice(self, index: int, num_params: int) -> Array:
        """float32[num_params], a view: the perturbation that begins at `index`."""
        index = int(index)
        assert 0 <= index <= len(self._noise) - num_params, (index, num_params, len(self._noise))
        return self._noise[index : index + num_params]

    def weighted_sum(self, indices: Array, weights: Array, num_params: int) -> Array:
        """sum_i weights[i] * slice(indices[i]) -> float32[num_params]; equal input, equal bits."""
        assert indices.shape == weights.shape, (indices.shape, weights.shape)
        total = np.zeros(num_params, np.float32)
        rows_at_a_time = max(1, BLOCK_FLOATS // num_params)
        for start in range(0, len(indices), rows_at_a_time):
            part = indices[start : start + rows_at_a_time]
            rows = np.stack([self.slice(index, num_params) for index in part])
            total += weights[start : start + rows_at_a_time].astype(np.float32) @ rows
        return total


class MLPShape:
    """Layers of an MLP for a vector and Discrete or Box actions, and where each lies in theta: float32[num_params].

    Layers are called and laid out as the actor's in an actor-critic network of this form (torch's [out, in]).
    """

    def __init__(self, spaces: SpaceSpec, *, hidden_sizes: Sequence[int], activation: Activation = "tanh") -> None:
        assert isinstance(spaces.obs, ObsSpec) and spaces.action.kind in ("discrete", "box"), spaces
        self.obs_shape = spaces.obs.shape
        self.is_discrete = spaces.action.kind == "discrete"
        self.activation = activation
        num_outputs = spaces.action.n if self.is_discrete else spaces.action.flat_size
        sizes = [spaces.obs.flat_size, *hidden_sizes, num_outputs]
        names = [f"actor_encoder.layers.{index}" for index in range(len(hidden_sizes))] + ["actor_head"]
        self.places: dict[str, tuple[tuple[int, ...], slice]] = {}
        """Shape, and slice of theta, by parameter name."""
        start = 0
        for name, num_in, num_out in zip(names, sizes, sizes[1:], strict=False):
            for part, shape in ((f"{name}.weight", (num_out, num_in)), (f"{name}.bias", (num_out,))):
                stop = start + math.prod(shape)
                self.places[part] = (shape, slice(start, stop))
                start = stop
        self.num_params = start

    def initial(self, seed: np.random.SeedSequence) -> Array:
        """Rows of length 1, those of the head 0.01 (normc, as in the code of Salimans et al. 2017); biases are 0, and
        so is everything where there is no hidden layer (Mania et al. 2018)."""
        rng = np.random.Generator(np.random.PCG64(seed))
        theta = np.zeros(self.num_params, np.float32)
        has_hidden = len(self.places) > 2
        for name, (shape, place) in self.places.items():
            if name.endswith("weight") and has_hidden:
                rows = rng.standard_normal(shape)
                rows /= np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
                theta[place] = (rows * (0.01 if name.startswith("actor_head") else 1.0)).reshape(-1)
        return theta

    def split(self, theta: Array) -> list[Layer]:
        """theta: [..., num_params] -> its layers, views; weights are [..., in, out]."""
        views = [theta[..., place].reshape(*theta.shape[:-1], *shape) for shape, place in self.places.values()]
        return [(weight.swapaxes(-1, -2), bias) for weight, bias in zip(views[::2], views[1::2], strict=True)]

    def named(self, theta: Array) -> Weights:
        """theta: [num_params] by parameter name, copies."""
        return {name: theta[place].reshape(shape).copy() for name, (shape, place) in self.places.items()}

    def flat(self, weights: Mapping[str, Array]) -> Array:
        """What `named` took apart; other entries are left alone."""
        for name, (shape, _) in self.places.items():
            there = weights[name].shape if name in weights else "missing"
            if there != shape:
                raise ConfigError(f"weights of another network: {name} is {there} there, and {shape} in this policy")
        return np.concatenate([weights[name].reshape(-1) for name in self.places]).astype(np.float32)


class PerturbedMLPs:
    """B networks side by side, network b for row b: matrices [B, out, in] times observations [B, in]."""

    def __init__(self, shape: MLPShape, num_slots: int, noise: NoiseTable) -> None:
        self._shape, self._noise = shape, noise
        self._theta = np.zeros(shape.num_params, np.float32)
        self._params = np.zeros((num_slots, shape.num_params), np.float32)
        self._layers = shape.split(self._params)
        self._normalize = ObsNormalizer()

    def set_weights(self, weights: Weights) -> None:
        """What `load` perturbs from now on, and how observations are normalised."""
        self._theta = self._shape.flat(weights)
        self._normalize.set_weights(weights)

    def load(self, slot: int, index: int, scale: float) -> None:
        """From now on `slot` acts with theta + scale * (the noise at `index`)."""
        row = self._params[slot]
        np.multiply(self._noise.slice(index, self._shape.num_params), np.float32(scale), out=row)
        row += self._theta

    def act(self, obs: Array) -> Array:
        """obs: [B, ...] -> int64[B] or float32[B, A]."""
        x = forward(_features(self._normalize, obs), self._layers, self._shape.activation)
        return x.argmax(axis=1) if self._shape.is_discrete else x


class MLPPolicy(Stateless):
    """One network for all rows: evaluates and plays. There is no critic: log_probs and values are zeros."""

    def __init__(self, shape: MLPShape, seed: np.random.SeedSequence) -> None:
        self.shape = shape
        super().__init__(seed)
        self._layers: list[Layer] = []
        self._normalize = ObsNormalizer()

    def set_weights(self, weights: Weights) -> None:
        self._layers = self.shape.split(self.shape.flat(weights))
        self._normalize.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """Its own actions, `deterministic` or not."""
        assert isinstance(obs, np.ndarray)
        x = forward(_features(self._normalize, obs), self._layers, self.shape.activation)
        actions = x.argmax(axis=1) if self.shape.is_discrete else x
        zeros = np.zeros(len(obs), np.float32)
        return PolicyOutput(actions, zeros, zeros)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> zeros float32[B]."""
        assert isinstance(obs, np.ndarray)
        return np.zeros(len(obs), np.float32)


def _features(normalize: ObsNormalizer, obs: Array) -> Array:
    """float32[B, inputs]"""
    features = np.asarray(normalize(obs), np.float32)
    return features.reshape(len(obs), -1)
