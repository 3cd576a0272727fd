"""`TorchQPolicy`: acts epsilon-greedily through torch, on the CPU; for whatever is more than a plain MLP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.obs_tree import map_obs, obs_rows
from rlplat.rl.policies.exploration import EpsilonGreedy
from rlplat.rl.policies.q_spec import QSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.torch.device import resolve_precision, use_threads
from rlplat.rl.torch.encoders import TensorObs
from rlplat.rl.torch.q_network import make_q_network
from rlplat.rl.torch.weights import load_weights


class TorchQPolicy:
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
        self.spec, self.q = spec, q
        self.exploration = EpsilonGreedy(seed, epsilons)
        self._network = make_q_network(spec, q, resolve_precision(precision, spec, torch.device("cpu")))
        self._network.requires_grad_(False)
        for module in self._network.modules():
            hold: Any = getattr(module, "hold_in_compute_dtype", None)
            if hold is not None:
                hold()
        self._generator = torch.Generator()
        self.seed(seed)
        self._state = torch.zeros(0, self._network.state_size)

    @property
    def core_state(self) -> Array:
        """float32[B, S], a copy."""
        return self._state.numpy().copy()

    @core_state.setter
    def core_state(self, state: Array) -> None:
        """For rows that did not act: where agents take turns, all rows pass through the core."""
        self._state = torch.from_numpy(np.array(state, np.float32)).clone()

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self.exploration.set_weights(weights)

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

    def reset_core(self, ended: Array) -> None:
        if self._network.state_size and ended.any():
            self._state = self._state * torch.from_numpy(~ended).unsqueeze(-1)

    def seed(self, seed: np.random.SeedSequence) -> None:
        numpy_seed, torch_seed = np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(2)
        self.exploration.rng = np.random.Generator(np.random.PCG64(numpy_seed))
        self._generator.manual_seed(int(torch_seed.generate_state(1, np.uint64)[0]) >> 1)

    def get_state(self) -> dict[str, Any]:
        return {
            "rng": self.exploration.rng.bit_generator.state,
            "generator": self._generator.get_state().numpy().copy(),
            "core": self.core_state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.exploration.rng.bit_generator.state = state["rng"]
        if "generator" in state:  # not where the other framework saved it
            self._generator.set_state(torch.from_numpy(np.array(state["generator"], np.uint8)))
        self.core_state = state["core"]

    def _forward(self, obs: Obs) -> tuple[Array, Tensor]:
        num_rows = obs_rows(obs)
        state = self._state
        if len(state) != num_rows:
            state = torch.zeros(num_rows, self._network.state_size)
        with torch.inference_mode():
            tensors: TensorObs = map_obs(_tensor, obs)
            outputs, state = self._network(tensors, state)
            return self._network.q_values(outputs).numpy(), state


def _tensor(array: Array) -> Tensor:
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    # A read-only array (shared memory) makes torch warn; nothing here writes into observations.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    # One memory order and alignment whoever made the array: matrix products round differently with either.
    return tensor.clone(memory_format=torch.contiguous_format)
