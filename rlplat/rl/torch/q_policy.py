"""`TorchQPolicy`: acts epsilon-greedily through torch, on the CPU; for whatever is more than a plain MLP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.torch.device import resolve_precision, use_threads
from rlplat.rl.torch.encoders import TensorObs
from rlplat.rl.torch.policy import ActingNetwork
from rlplat.rl.torch.q_network import make_q_network
from rlplat.rl.torch.weights import load_weights


class TorchQPolicy(ActingNetwork):
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
        use_threads(num_threads, spec)
        super().__init__(
            make_q_network(spec, q, resolve_precision(precision, spec, torch.device("cpu"))), spec
        )
        self.q = q
        self.exploration = EpsilonGreedy(seed, epsilons)
        self._normalize = ObsNormalizer(spec.obs)
        self.seed(seed)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self.exploration.set_weights(weights)
        self._normalize.set_weights(weights)

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> see `EpsilonGreedy.choose`. `deterministic`: greedy, without noise."""
        if self.q.noisy and not deterministic:
            self._network.draw_noise(self._generator)
        q_values, self._state = self._forward(obs)
        self._network.clear_noise()
        return self.exploration.choose(q_values, obs, deterministic=deterministic)

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]: the largest Q; the core's state is used and left as it is."""
        largest: Array = self.q_values(obs).max(axis=1)
        return largest

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._forward(obs)[0]

    def seed(self, seed: np.random.SeedSequence) -> None:
        numpy_seed, torch_seed = np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(2)
        self.exploration.rng = np.random.Generator(np.random.PCG64(numpy_seed))
        self._generator.manual_seed(int(torch_seed.generate_state(1, np.uint64)[0]) >> 1)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"rng": self.exploration.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.exploration.rng.bit_generator.state = state["rng"]
        super().set_state(state)

    def _forward(self, obs: Obs) -> tuple[Array, Tensor]:
        with torch.inference_mode():
            tensors: TensorObs = map_obs(_tensor, self._normalize(obs))
            outputs, state = self._network(tensors, self._state_of(obs))
            return self._network.q_values(outputs).numpy(), state


def _tensor(array: Array) -> Tensor:
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    # A read-only array (shared memory) makes torch warn; nothing here writes into observations.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    # One memory order and alignment whoever made the array: matrix products round differently with either.
    return tensor.clone(memory_format=torch.contiguous_format)
