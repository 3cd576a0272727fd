"""`TfQPolicy`: acts epsilon-greedily through TensorFlow, on the CPU; for whatever is more than a plain MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.obs_tree import obs_rows
from rlplat.rl.policies.exploration import EPSILON, choose_actions
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import CPU, resolve_precision, seeded, set_up
from rlplat.rl.tf.q_network import check_q_network, make_q_network
from rlplat.rl.tf.tensors import graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.weights import load_weights


class TfQPolicy:
    """Acts with the weights of a Q-network built from the same specs; see `NumpyQPolicy`."""

    def __init__(
        self,
        spec: PolicySpec,
        q: QSpec,
        seed: np.random.SeedSequence,
        *,
        precision: str = "auto",
        num_threads: int = 0,
    ) -> None:
        set_up(num_threads, spec)
        self.spec, self.q = spec, q
        self.epsilon: Array | float = 1.0
        self.greedy_epsilon = 0.0
        self.follows_weights = True
        with tf.device(CPU), seeded(seed):
            self._network = make_q_network(spec, q, resolve_precision(precision, spec, CPU))
            check_q_network(self._network)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._core_state = np.zeros((0, self._network.state_size), np.float32)
        self._forward = graph(self._forward_rows, obs_signature(spec.obs), rows(self._network.state_size))

    @property
    def core_state(self) -> Array:
        """float32[B, S], a copy."""
        return self._core_state.copy()

    @core_state.setter
    def core_state(self, state: Array) -> None:
        """For rows that did not act: where agents take turns, all rows pass through the core."""
        self._core_state = np.array(state, np.float32)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        if self.follows_weights and EPSILON in weights:
            self.epsilon = float(weights[EPSILON][0])

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions int64[B]; log_probs are 0, values are the largest Q. `deterministic`: greedy."""
        actions, _, q_max = self.choose(obs, deterministic=deterministic)
        return PolicyOutput(actions, np.zeros(len(actions), np.float32), q_max)

    def choose(self, obs: Obs, *, deterministic: bool = False) -> tuple[Array, Array, Array]:
        """(actions int64[B], their Q float32[B], the largest Q float32[B])."""
        is_noisy = self.q.noisy and not deterministic
        if is_noisy:
            self._network.draw_noise(self._rng)
        q_values, self._core_state = self._advance(obs)
        if is_noisy:
            self._network.clear_noise()
        epsilon = self.greedy_epsilon if deterministic else self.epsilon
        return choose_actions(q_values, obs, epsilon, self._rng)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]: the largest Q; the core's state is used and left as it is."""
        largest: Array = self.q_values(obs).max(axis=1)
        return largest

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._advance(obs)[0]

    def reset_core(self, ended: Array) -> None:
        if self._network.state_size and ended.any():
            self._core_state = self._core_state * ~ended[:, None]

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def get_state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "core": self.core_state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Also that of a `TorchQPolicy`, whose noise comes from another generator."""
        self._rng.bit_generator.state = state["rng"]
        self.core_state = state["core"]

    def _advance(self, obs: Obs) -> tuple[Array, Array]:
        """(Q float32[B, A], the core's next state float32[B, S])"""
        num_rows, state = obs_rows(obs), self._core_state
        if len(state) != num_rows:
            state = np.zeros((num_rows, self._network.state_size), np.float32)
        q_values, state = self._forward(obs_tensors(obs, self.spec), state)
        return q_values.numpy(), state.numpy()

    def _forward_rows(self, obs: Any, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(CPU):
            outputs, state = self._network(obs, state)
            return self._network.q_values(outputs), state
