"""`TorchActorCritic`, `TorchQPolicy`, `TorchBoundedActor`: act on the CPU by torch; for more than plain MLPs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplat.rl.interfaces import Array, Obs, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.obs_tree import map_obs, obs_rows
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor
from rlplat.rl.policies.exploration import EpsilonGreedy, StateDependentNoise, largest_legal
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.saved import Saved, state_of
from rlplat.rl.spaces import obs_leaves
from rlplat.rl.torch.continuous_control import Actor
from rlplat.rl.torch.device import resolve_precision, use_threads
from rlplat.rl.torch.encoders import TensorObs
from rlplat.rl.torch.networks import make_network
from rlplat.rl.torch.q_network import make_q_network
from rlplat.rl.torch.tensor_rows import tensor_on
from rlplat.rl.torch.weights import load_weights

on_cpu = partial(tensor_on, torch.device("cpu"))
VALUES_BATCH = 256
"""Rows per forward pass of `values`: many last observations at once must not need gigabytes."""


class ActingNetwork(Saved):
    """What policies on torch have in common: a network on the CPU that is not trained here, a generator, and the core's
    state from one `act` to the next."""

    saved = {"generator": "_generator", "core": "core_state"}

    def __init__(self, network: Any, spec: PolicySpec) -> None:
        self.spec = spec
        self._network = network.requires_grad_(False).eval()  # dropout is for learning
        module: Any
        for module in network.modules():
            if hasattr(module, "hold_in_compute_dtype"):
                module.hold_in_compute_dtype()
        self._generator = torch.Generator()
        self._state_size = int(getattr(network, "state_size", 0))
        self._state = torch.zeros(0, self._state_size)

    @property
    def core_state(self) -> Array:
        """float32[B, S], a copy."""
        return self._state.numpy().copy()

    @core_state.setter
    def core_state(self, state: Array) -> None:
        """For rows that did not act: where agents take turns, all rows pass through the core."""
        self._state = torch.from_numpy(np.array(state, np.float32)).clone()

    def reset_core(self, ended: Array) -> None:
        has_state = self._state_size and len(self._state) == len(ended)  # else: it begins anew as it is
        if has_state and ended.any():
            self._state = self._state * torch.from_numpy(~ended).unsqueeze(-1)

    def set_state(self, state: dict[str, Any]) -> None:
        own = {} if "generator" in state else {"generator": state_of(self._generator)}  # the other framework saves none
        super().set_state(state | own)

    def _state_of(self, obs: Obs) -> Tensor:
        """The core's state for these rows: an episode's beginning where their number is new."""
        num_rows = obs_rows(obs)
        return self._state if len(self._state) == num_rows else torch.zeros(num_rows, self._state_size)


class TorchActorCritic(ActingNetwork):
    """Acts with the weights of a network built from the same spec (see interfaces.Policy)."""

    def __init__(
        self,
        spec: PolicySpec,
        seed: np.random.SeedSequence,
        *,
        precision: str = "auto",
        num_threads: int = 0,
    ) -> None:
        use_threads(num_threads, spec)
        super().__init__(make_network(spec, resolve_precision(precision, spec, torch.device("cpu"))), spec)
        self.seed(seed)
        self._normalize = ObsNormalizer(spec.obs)
        self._exploring = StateDependentNoise(spec.sde_sample_freq)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self._normalize.set_weights(weights)
        self._exploring.forget()

    def act(self, obs: Obs, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions as in `spec.action`, log_probs float32[B], values float32[B]."""
        with torch.inference_mode():
            distribution, values, self._state = self._network(self._tensors(obs), self._state_of(obs))
            if deterministic:
                actions = distribution.mode()
            elif self.spec.use_sde:
                draw = partial(torch.randn, generator=self._generator)
                noise = self._exploring(distribution.explored, self._network.log_std.exp(), draw)
                actions = distribution.sample_from(noise * torch.exp(-distribution.log_std))
            else:
                actions = distribution.sample(self._generator)
            return PolicyOutput(actions.numpy(), distribution.log_prob(actions).numpy(), values.numpy())

    def values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B]."""
        with torch.inference_mode():
            if self._state_size:
                values: Array = self._network(self._tensors(obs), self._state_of(obs))[1].numpy()
                return values
            chunks = [
                self._network(self._tensors(map_obs(lambda leaf, i=i: leaf[i : i + VALUES_BATCH], obs)))[1]
                for i in range(0, obs_rows(obs), VALUES_BATCH)
            ]
            return torch.cat(chunks).numpy()

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._generator.manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)

    def _tensors(self, obs: Obs) -> TensorObs:
        """In the dtypes that the learner's network sees (`TensorRows`): vectors float32, everything else as it is."""
        obs, leaves = self._normalize(obs), obs_leaves(self.spec.obs)
        arrays = obs if isinstance(obs, dict) else {"": obs}
        tensors = {
            path: on_cpu(array.astype(np.float32, copy=False) if leaves[path].kind == "vector" else array)
            for path, array in arrays.items()
        }
        return tensors if isinstance(obs, dict) else tensors[""]


class TorchQPolicy(ActingNetwork):
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
        use_threads(num_threads, spec)
        super().__init__(make_q_network(spec, q, resolve_precision(precision, spec, torch.device("cpu"))), spec)
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
        """obs: [B, ...] -> float32[B]: the largest Q of a legal action; the core's state is used and left as it is."""
        return largest_legal(self.q_values(obs), obs)

    def q_values(self, obs: Obs) -> Array:
        """obs: [B, ...] -> float32[B, A], without noise."""
        return self._forward(obs)[0]

    def seed(self, seed: np.random.SeedSequence) -> None:
        numpy_seed, torch_seed = np.random.SeedSequence(seed.entropy, spawn_key=seed.spawn_key).spawn(2)
        self.exploration.rng = np.random.Generator(np.random.PCG64(numpy_seed))
        self._generator.manual_seed(int(torch_seed.generate_state(1, np.uint64)[0]) >> 1)

    def _forward(self, obs: Obs) -> tuple[Array, Tensor]:
        with torch.inference_mode():
            tensors: TensorObs = map_obs(on_cpu, self._normalize(obs))
            outputs, state = self._network(tensors, self._state_of(obs))
            return self._network.q_values(outputs).numpy(), state


class TorchBoundedActor(BoundedActor):
    """Of observations with images."""

    def __init__(self, spec: PolicySpec, actor: ActorSpec, seed: np.random.SeedSequence, num_threads: int = 0) -> None:
        use_threads(num_threads, spec)
        super().__init__(spec, actor, seed)
        self._network = Actor(spec, actor, is_alone=True).requires_grad_(False).eval()

    def set_network(self, weights: Weights) -> None:
        load_weights(self._network, weights)

    def features(self, obs: Obs) -> Array:
        with torch.inference_mode():
            features: Array = self._network.encoder(self._network.features(map_obs(on_cpu, obs))).numpy()
            return features

    def head(self, features: Array) -> Array:
        with torch.inference_mode():
            outputs: Array = self._network.head(on_cpu(features)).numpy()
            return outputs
