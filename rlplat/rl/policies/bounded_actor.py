"""Actors of bounded continuous actions (SAC, TD3 and theirs): what they have beside encoder and spaces, and how they
act, in plain numpy.

tests/rl/torch/test_continuous.py holds them against the networks of rl/torch/continuous_control.py.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.obs_tree import flat_features
from rlplat.rl.policies.exploration import EPSILON, StateDependentNoise
from rlplat.rl.policies.numpy_policies import Layer, Stateless, forward, layer, layers
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import SpaceSpec

MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation of a squashed Gaussian (Haarnoja et al. 2018)."""
SDE_EPSILON = 1e-6
"""Of a variance with `use_sde`: features may all be zero."""

RENORM_EPSILON = 1e-3
"""Of variances, as in CrossQ's code."""


@dataclass(frozen=True)
class Renorm:
    """Batch renormalisation (Ioffe 2017) before every layer."""

    momentum: float = 0.01
    """What running statistics take over of those of a minibatch."""
    warmup: int = 100_000
    """Minibatches that are normalised by their own statistics alone."""


@dataclass(frozen=True)
class ActorSpec:
    """The head of an actor whose actions are within (-1, 1), which are then scaled to the bounds of the environment."""

    kind: Literal["squashed_gaussian", "deterministic"]
    """tanh(mean + std * noise), both of the network; or tanh(output) + action_noise * noise, clipped."""
    action_noise: float = 0.0
    """deterministic: standard deviation of the noise that explores, in units of half the width of the bounds."""
    renorm: Renorm | None = None
    """Acting normalises by running statistics, which come with the weights."""

    def num_outputs(self, spec: PolicySpec) -> int:
        """Numbers that the network gives: means and log deviations, or actions before tanh."""
        return spec.action.flat_size * (2 if self.kind == "squashed_gaussian" else 1)


class BoundedActor(Stateless):
    """Acts with the weights of rl/torch/continuous_control.py's `Actor` of the same specs; see `interfaces.Policy`.
    There is no V: values are zeros; so are log-probabilities of deterministic actors and of uniform actions."""

    def __init__(self, spec: PolicySpec, actor: ActorSpec, seed: np.random.SeedSequence) -> None:
        self.spec, self.actor, self._seen = spec, actor, spec.actor.obs
        self.uniform_share = 0.0
        """Share of actions drawn uniformly between the bounds, which comes with the weights: 1 while a run warms up."""
        super().__init__(seed)
        self._normalize = ObsNormalizer(self.spec.obs)
        self._layers: list[Layer] = []
        self._sde_std = np.zeros((0, 0), np.float32)
        self._exploring = StateDependentNoise(spec.sde_sample_freq)
        self._scale = ActionScale(spec)

    def set_network(self, weights: Weights) -> None:
        num_layers = len(self.spec.hidden_sizes)
        self._layers = [*layers(weights, "encoder", num_layers), layer(weights, "head")]
        if self.actor.renorm is not None:
            self._layers = [renormed(each, weights, i) for i, each in enumerate(self._layers)]

    def set_weights(self, weights: Weights) -> None:
        self.set_network(weights)
        self._normalize.set_weights(weights)
        if self.spec.use_sde:
            self._sde_std = np.exp(weights["head.log_std"])
            self._exploring.forget()
        if EPSILON in weights:
            self.uniform_share = float(weights[EPSILON][0])

    def features(self, obs: Obs) -> Array:
        """What the head takes, of observations that are normalised."""
        return forward(flat_features(obs, self._seen), self._layers[:-1], self.spec.activation, last=True)

    def outputs(self, obs: Obs) -> Array:
        """The network's, of observations that are normalised."""
        return self.head(self.features(obs))

    def head(self, features: Array) -> Array:
        """What the head gives."""
        outputs = forward(features, self._layers[-1:], self.spec.activation)
        if not self.spec.use_sde:
            return outputs
        log_std = 0.5 * np.log(np.square(features) @ np.square(self._sde_std) + np.float32(SDE_EPSILON))
        return np.concatenate([outputs, log_std], axis=1)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions float32[B, A] within the bounds. `deterministic`: without noise."""
        features = self.features(self._normalize(obs))
        outputs = self.head(features)
        num_rows, A = len(outputs), self.spec.action.flat_size
        noise = np.zeros((num_rows, A), np.float32)
        log_probs = np.zeros(num_rows, np.float32)
        if not deterministic and self.spec.use_sde:
            draw = partial(self._rng.standard_normal, dtype=np.float32)
            noise = self._exploring(features, self._sde_std, draw) * np.exp(-outputs[:, A:])
        elif not deterministic:
            noise = self._rng.standard_normal((num_rows, A), dtype=np.float32)
        if self.actor.kind == "deterministic":
            actions = np.tanh(outputs)
            if not deterministic:
                actions = np.clip(actions + np.float32(self.actor.action_noise) * noise, -1.0, 1.0)
        else:
            log_std = np.clip(outputs[:, A:], MIN_LOG_STD, MAX_LOG_STD)
            u = outputs[:, :A] + np.exp(log_std) * noise
            actions = np.tanh(u)
            log_probs = self._log_probs(u, noise, log_std)
        if self.uniform_share and not deterministic:
            is_uniform = self._rng.random(num_rows) < self.uniform_share
            uniform = self._rng.uniform(-1.0, 1.0, (num_rows, A)).astype(np.float32)
            actions = np.where(is_uniform[:, None], uniform, actions)
            log_probs = np.where(is_uniform, np.float32(0.0), log_probs)
        return PolicyOutput(self._scale.to_environment(actions), log_probs, np.zeros(num_rows, np.float32))

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> zeros float32[B]."""
        return np.zeros(len(next(iter(obs.values())) if isinstance(obs, dict) else obs), np.float32)

    def _log_probs(self, u: Array, noise: Array, log_std: Array) -> Array:
        """float32[B]: of the actions in the environment's units; see `squashed_log_prob` in rl/torch."""
        gaussian = -0.5 * np.square(noise) - log_std - np.float32(0.5 * math.log(2.0 * math.pi))
        log_slopes = 2.0 * (math.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))
        log_probs: Array = (gaussian - log_slopes - np.log(self._scale.half)).sum(axis=1)
        return log_probs.astype(np.float32, copy=False)


def renormed(plain: Layer, weights: Weights, index: int) -> Layer:
    """The layer with the normalisation of its inputs, which running statistics make affine, in its own numbers."""
    parts = ("weight", "bias", "mean", "variance")
    gamma, beta, mean, variance = (weights[f"encoder.renorms.{index}.{part}"] for part in parts)
    scale, (weight, bias) = gamma / np.sqrt(variance + np.float32(RENORM_EPSILON)), plain
    return scale[:, None] * weight, bias + (beta - scale * mean) @ weight


class ActionScale:
    """Between (-1, 1), in which actors and critics compute, and the bounds of the environment's actions."""

    def __init__(self, spec: PolicySpec) -> None:
        low, high = np.array(spec.action.low, np.float64), np.array(spec.action.high, np.float64)
        self.middle = ((low + high) / 2.0).astype(np.float32)
        self.half = ((high - low) / 2.0).astype(np.float32)

    def to_environment(self, actions: Array) -> Array:
        """float32[N, A] in [-1, 1] -> in the bounds."""
        scaled: Array = self.middle + self.half * actions
        return scaled

    def from_environment(self, actions: Array) -> Array:
        """The other way round."""
        scaled: Array = (actions - self.middle) / self.half
        return scaled


def require_bounded(spaces: SpaceSpec, env: str, algo: str, instead: str = "") -> None:
    """Raises UsageError where actions are not a bounded Box: it names who takes them. instead: an algorithm that does,
    where dqn and ppo are no choice."""
    action, name = spaces.action, algo.upper()
    use = instead or ("dqn" if action.kind == "discrete" else "ppo")
    command = f"use {use.upper()}: rlplat train --algo {use} --env {shlex.quote(env)}"
    if action.kind != "box":
        raise UsageError(f"{name} decides continuous actions (Box), but {env} has actions {action}; {command}")
    if not np.isfinite([*action.low, *action.high]).all():
        raise UsageError(
            f"{name} scales its actions to their bounds, but {env} has actions {action}; give its Box finite bounds, "
            f"or {command}"
        )
