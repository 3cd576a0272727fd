"""`TfQPolicy`: acts epsilon-greedily through TensorFlow, on the CPU; for whatever is more than a plain MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import CPU, resolve_precision, seeded, set_up
from rlplat.rl.tf.policy import ActingNetwork
from rlplat.rl.tf.q_network import check_q_network, make_q_network
from rlplat.rl.tf.tensors import graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.weights import load_weights


class TfQPolicy(ActingNetwork):
    """Acts with the weights of a Q-network built from the same specs; see `NumpyQPolicy`."""

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
        """obs: [B, ...] -> float32[B]: the largest Q; the core's state is used and left as it is."""
        largest: Array = self.q_values(obs).max(axis=1)
        return largest

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._advance(obs)[0]

    def seed(self, seed: np.random.SeedSequence) -> None:
        self.exploration.rng = np.random.Generator(np.random.PCG64(seed))

    def get_state(self) -> dict[str, Any]:
        return {"rng": self.exploration.rng.bit_generator.state, "core": self.core_state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Also that of a `TorchQPolicy`, whose noise comes from another generator."""
        self.exploration.rng.bit_generator.state = state["rng"]
        self.core_state = state["core"]

    def _advance(self, obs: Obs) -> tuple[Array, Array]:
        """(Q float32[B, A], the core's next state float32[B, S])"""
        q_values, state = self._forward(obs_tensors(obs, self.spec), self._state_of(obs))
        return q_values.numpy(), state.numpy()

    def _forward_rows(self, obs: Any, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(CPU):
            outputs, state = self._network(obs, state)
            return self._network.q_values(outputs), state
