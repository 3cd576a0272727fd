"""`TorchActorCritic`: acts through torch, on the CPU; for encoders that are too large for plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlplat.rl.interfaces import Array, PolicyOutput, Weights
from rlplat.rl.normalization import ObsNormalizer
from rlplat.rl.policy_spec import PolicySpec
from rlplat.rl.torch.device import resolve_precision, use_threads
from rlplat.rl.torch.distributions import (
    categorical_log_probs,
    categorical_sample,
    gaussian_log_probs,
    gaussian_sample,
)
from rlplat.rl.torch.networks import ActorCritic, NatureCNN
from rlplat.rl.torch.weights import load_weights

VALUES_BATCH = 256
"""Observations per forward pass in `values`: bounds the memory of activations."""


class TorchActorCritic:
    """A `Policy` over the network of networks.py, with a random generator of its own."""

    def __init__(
        self, spec: PolicySpec, seed: np.random.SeedSequence, *, precision: str = "auto", num_threads: int = 0
    ) -> None:
        use_threads(num_threads, spec)
        self.spec = spec
        self._network = ActorCritic(spec, resolve_precision(precision, spec, torch.device("cpu")))
        self._network.requires_grad_(False)
        for encoder in (self._network.actor_encoder, self._network.critic_encoder):
            if isinstance(encoder, NatureCNN):
                encoder.hold_in_compute_dtype()
        self._generator = torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
        self._normalize = ObsNormalizer()

    def set_weights(self, weights: Weights) -> None:
        load_weights(self._network, weights)
        self._normalize.set_weights(weights)

    def act(self, obs: Array, *, deterministic: bool = False) -> PolicyOutput:
        """obs: [B, ...] -> actions int64[B] or float32[B, A], log_probs float32[B], values float32[B]."""
        with torch.inference_mode():
            params, values = self._network(self._tensor(obs))
            if self.spec.action_kind == "categorical":
                actions = params.argmax(-1) if deterministic else categorical_sample(params, self._generator)
                log_probs, _ = categorical_log_probs(params, actions)
            else:
                log_std = self._network.log_std
                actions = params if deterministic else gaussian_sample(params, log_std, self._generator)
                log_probs, _ = gaussian_log_probs(params, log_std, actions)
            return PolicyOutput(actions.numpy(), log_probs.numpy(), values.numpy())

    def values(self, obs: Array) -> Array:
        """obs: [B, ...] -> float32[B]."""
        with torch.inference_mode():
            chunks = torch.split(self._tensor(obs), VALUES_BATCH)
            return torch.cat([self._network(chunk)[1] for chunk in chunks]).numpy()

    def get_state(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state().numpy().copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._generator.set_state(torch.from_numpy(np.array(state["generator"], np.uint8)))

    def _tensor(self, obs: Array) -> torch.Tensor:
        normalized = self._normalize(obs)
        if self.spec.encoder == "mlp":
            normalized = normalized.astype(np.float32, copy=False)
        # A read-only array (shared memory) makes torch warn; nothing here writes into observations.
        return torch.from_numpy(normalized if normalized.flags.writeable else normalized.copy())
