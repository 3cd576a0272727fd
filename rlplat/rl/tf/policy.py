"""`TfActorCritic`, `TfQPolicy`: act through TensorFlow, on the CPU; for whatever is more than a plain MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.obs_tree import obs_rows, take_obs
from rlplat.rl.policies.exploration import EpsilonGreedy, largest_legal
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.saved import Saved
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import CPU, resolve_precision, seeded, set_up
from rlplat.rl.tf.networks import check_network, make_network
from rlplat.rl.tf.q_network import check_q_network, make_q_network
from rlplat.rl.tf.tensors import graph, load_weights, obs_signature, obs_tensors, rows

VALUES_BATCH = 256
"""Rows per forward pass of `values`: many last observations at once must not need gigabytes."""


class ActingNetwork(Saved):
    """What policies on TensorFlow have in common: a network on the CPU that is not trained here, and the core's state
    from one `act` to the next."""

    saved = {"core": "core_state"}

    def __init__(self, network: Any, spec: PolicySpec) -> None:
        self.spec = spec
        self._network = network
        self._state_size = int(getattr(network, "state_size", 0))
        self._core_state = np.zeros((0, self._state_size), np.float32)

    @property
    def core_state(self) -> Array:
        """float32[B, S], a copy."""
        return self._core_state.copy()

    @core_state.setter
    def core_state(self, state: Array) -> None:
        """For rows that did not act: where agents take turns, all rows pass through the core."""
        self._core_state = np.array(state, np.float32)

    def reset_core(self, ended: Array) -> None:
        has_state = self._state_size and len(self._core_state) == len(ended)  # else: it begins anew as it is
        if has_state and ended.any():
            self._core_state = self._core_state * ~ended[:, None]

    def _state_of(self, obs: Obs) -> Array:
        """The core's state for these rows: an episode's beginning where their number is new."""
        num_rows = obs_rows(obs)
        is_new = len(self._core_state) != num_rows
        return np.zeros((num_rows, self._state_size), np.float32) if is_new else self._core_state


class TfActorCritic(ActingNetwork):
    """Acts with the weights of a network built from the same spec (see interfaces.Policy)."""

    def __init__(
        self,
        spec: PolicySpec,
        seed: np.random.SeedSequence,
        *,
        precision: str = "auto",
        num_threads: int = 0,
    ) -> None:
        set_up(num_threads, spec)
        with tf.device(CPU):
            with seeded(seed):
                network = make_network(spec, resolve_precision(precision, spec, CPU))
            check_network(network, spec)  # builds Keras layers; their weights come by name
            self._generator = tf.random.Generator.from_seed(
                int(seed.generate_state(1, np.uint64)[0]) >> 1, alg="philox"
            )
        super().__init__(network, spec)
        self._normalize = ObsNormalizer(spec.obs)
        signature = obs_signature(spec.obs), rows(self._state_size)
        self._sample = graph(self._sample_rows, *signature)
        self._choose = graph(self._choose_rows, *signature)
        self._value = graph(self._value_rows, *signature)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self._normalize.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions as in `spec.action`, log_probs float32[B], values float32[B]."""
        act = self._choose if deterministic else self._sample
        actions, log_probs, values, state = act(self._tensors(obs), self._state_of(obs))
        self._core_state = state.numpy()
        return PolicyOutput(actions.numpy(), log_probs.numpy(), values.numpy())

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]."""
        if self._state_size:
            values: Array = self._value(self._tensors(obs), self._state_of(obs)).numpy()
            return values
        num_rows = obs_rows(obs)
        chunks = [take_obs(obs, slice(i, i + VALUES_BATCH)) for i in range(0, num_rows, VALUES_BATCH)]
        empty = np.zeros((min(num_rows, VALUES_BATCH), 0), np.float32)
        return np.concatenate([self._value(self._tensors(chunk), empty[: obs_rows(chunk)]).numpy() for chunk in chunks])

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._generator.reset_from_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"tf_generator": self._generator.state.numpy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Also that of a `TorchActorCritic`: the core goes on, the draws are this policy's own."""
        if "tf_generator" in state:
            self._generator.reset(np.array(state["tf_generator"], np.int64))
        super().set_state(state)

    def _tensors(self, obs: Obs) -> Any:
        return obs_tensors(self._normalize(obs), self.spec)

    def _sample_rows(self, obs: Any, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.device(CPU):
            distribution, values, state = self._network(obs, state)
            actions = distribution.sample(self._generator)
            return actions, distribution.log_prob(actions), values, state

    def _choose_rows(self, obs: Any, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.device(CPU):
            distribution, values, state = self._network(obs, state)
            actions = distribution.mode()
            return actions, distribution.log_prob(actions), values, state

    def _value_rows(self, obs: Any, state: tf.Tensor) -> tf.Tensor:
        with tf.device(CPU):
            return self._network(obs, state)[1]


class TfQPolicy(ActingNetwork):
    """Acts with the weights of a Q-network built from the same specs; see `NumpyQPolicy`."""

    saved = {"**": "exploration"}

    def __init__(
        self,
        spec: PolicySpec,
        q: QSpec,
        seed: np.random.SeedSequence,
        *,
        precision: str = "auto",
        num_threads: int = 0,
        epsilons: Array | None = None,
    ) -> None:
        set_up(num_threads, spec)
        self.q = q
        self.exploration = EpsilonGreedy(seed, epsilons)
        with tf.device(CPU), seeded(seed):
            network = make_q_network(spec, q, resolve_precision(precision, spec, CPU))
            check_q_network(network)
        super().__init__(network, spec)
        self._forward = graph(self._forward_rows, obs_signature(spec.obs), rows(self._state_size))

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self.exploration.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> see `EpsilonGreedy.choose`. `deterministic`: greedy, without noise."""
        is_noisy = self.q.noisy and not deterministic
        if is_noisy:
            self._network.draw_noise(self.exploration.rng)
        q_values, self._core_state = self._advance(obs)
        if is_noisy:
            self._network.clear_noise()
        return self.exploration.choose(q_values, obs, deterministic=deterministic)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]: the largest Q of a legal action; the core's state is used and left as it is."""
        return largest_legal(self.q_values(obs), obs)

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._advance(obs)[0]

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.exploration.rng = np.random.Generator(np.random.PCG64(seed))

    def _advance(self, obs: Obs) -> tuple[Array, Array]:
        """(Q float32[B, A], the core's next state float32[B, S])"""
        q_values, state = self._forward(obs_tensors(obs, self.spec), self._state_of(obs))
        return q_values.numpy(), state.numpy()

    def _forward_rows(self, obs: Any, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(CPU):
            outputs, state = self._network(obs, state)
            return self._network.q_values(outputs), state
