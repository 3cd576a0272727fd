"""A trained agent's network as one `torch.nn.Module` of raw observations: for torch programs, distillation, export.

module = agent.torch_module()
logits = module(torch.as_tensor(obs_batch))             # float32[N, P]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplat.errors import UsageError
from rlplat.rl.interfaces import Policy, Weights
from rlplat.rl.normalization import CLIP, EPSILON, OBS_MEAN, OBS_VAR, vector_leaves
from rlplat.rl.policies.bounded_actor import BoundedActor
from rlplat.rl.policies.perturbed_mlp import MLPPolicy, MLPShape
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.action_distributions import ActionDistribution
from rlplat.rl.torch.continuous_control import Actor
from rlplat.rl.torch.encoders import ACTIVATIONS, TensorObs
from rlplat.rl.torch.networks import make_network
from rlplat.rl.torch.q_network import make_q_network
from rlplat.rl.torch.weights import load_weights


class AgentModule(nn.Module):
    """Normaliser and network: from raw observations to what actions are chosen by.

        outputs = module(obs)                           # float32[N, P]
        outputs, state = module(obs, state)             # with a core: state_size > 0; None where episodes begin

    obs: [N, ...] as `agent.spaces.read` gives them: as the environment does where that is one array, else by path,
    discrete leaves int64 from 0, "action_mask" bool. P: PPO, A3C: logits and means of `spec.heads` side by side
    (illegal actions -1e8; `log_std`: float32[G], or None; means are those before squashing or rescaling). DQN: Q. ES:
    logits, or the actions themselves. SAC: means and log deviations; TD3: actions; both before tanh.
    """

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, network: nn.Module, kind: str, weights: Weights) -> None:
        super().__init__()
        self.network, self.kind = network.eval(), kind  # as the agent acts
        self.state_size = int(getattr(network, "state_size", 0))
        self.is_normalized = OBS_MEAN in weights
        if self.is_normalized:
            self.register_buffer("mean", torch.zeros(weights[OBS_MEAN].shape))
            self.register_buffer("inverse_std", torch.ones(weights[OBS_VAR].shape))
            self._use_statistics(weights)

    def set_weights(self, weights: Weights) -> None:
        """Newer ones, normalised where the first ones were."""
        load_weights(self.network, weights)
        if self.is_normalized:
            self._use_statistics(weights)

    def _use_statistics(self, weights: Weights) -> None:
        inverse_std = (1.0 / np.sqrt(weights[OBS_VAR] + EPSILON)).astype(np.float32)
        self.mean.copy_(torch.from_numpy(np.array(weights[OBS_MEAN], np.float32)))
        self.inverse_std.copy_(torch.from_numpy(inverse_std))

    @property
    def log_std(self) -> Tensor | None:
        """float32[G]: log of the standard deviations of Gaussian heads; None where there are none."""
        return getattr(self.network, "log_std", None)

    def prepare(self, obs: TensorObs) -> TensorObs:
        """obs as `forward` takes them -> as the network does: normalised, vectors in float32."""
        if self.is_normalized:
            obs = self._normalized(obs)
        if self.kind == "mlp":
            assert isinstance(obs, Tensor)
            return obs.float()
        if self.kind == "actor":
            return self.network.features(obs)  # type: ignore[operator]
        return _as_floats(obs, self.network.spec)  # type: ignore[arg-type]

    def _normalized(self, obs: TensorObs) -> TensorObs:
        """As `ObsNormalizer`."""
        if isinstance(obs, Tensor):
            return _scaled(obs, self.mean, self.inverse_std)
        leaves = vector_leaves(self.network.spec.obs)  # type: ignore[union-attr, arg-type]
        result, start = dict(obs), 0
        for path, leaf in leaves.items():
            own = slice(start, start := start + leaf.flat_size)
            if path not in obs:
                continue
            mean, inverse_std = self.mean[own], self.inverse_std[own]
            result[path] = _scaled(obs[path], mean.reshape(leaf.shape), inverse_std.reshape(leaf.shape))
        return result

    def forward(self, obs: TensorObs, state: Tensor | None = None) -> Any:
        obs = self.prepare(obs)
        if self.kind in ("mlp", "actor"):
            return self.network(obs)
        if self.kind == "q":
            outputs, state = self.network(obs, state)
            outputs = self.network.q_values(outputs)  # type: ignore[operator]
        else:
            distribution, _, state = self.network(obs, state)
            if not isinstance(distribution, ActionDistribution):
                raise UsageError(
                    f"{type(self.network).__name__} gives a distribution of its own ({type(distribution).__name__}): "
                    "use agent.torch_module().network"
                )
            outputs = distribution.params
        return (outputs, state) if self.state_size else outputs


def _scaled(obs: Tensor, mean: Tensor, inverse_std: Tensor) -> Tensor:
    obs = obs if obs.is_floating_point() else obs.float()  # torch subtracts nothing from booleans
    return ((obs - mean) * inverse_std).clamp(-CLIP, CLIP)


def agent_module(policy: Policy, weights: Weights, framework: str) -> AgentModule:
    """policy: what acts with these weights; UsageError where it has no form in torch."""
    if isinstance(policy, MLPPolicy):
        return AgentModule(_mlp(policy.shape, weights), "mlp", weights)
    if isinstance(policy, BoundedActor):
        actor = Actor(policy.spec, policy.actor, is_alone=True)
        load_weights(actor, weights)
        return AgentModule(actor, "actor", weights)
    spec = getattr(policy, "spec", None)
    if not isinstance(spec, PolicySpec):
        raise UsageError(
            f"this agent acts by {type(policy).__name__}, which has no form in torch: use agent.act, or serve the run "
            "itself (rlplat serve RUN)"
        )
    own = spec.custom or (spec.encoder if ":" in spec.encoder else "")
    if framework == "tf" and own:
        raise UsageError(
            f"{own} is a TensorFlow network, which cannot become a torch module: use agent.act, or rewrite it and load "
            "agent.weights()"
        )
    q = getattr(policy, "q", None)
    network: nn.Module = make_network(spec) if q is None else make_q_network(spec, q)
    load_weights(network, weights)
    return AgentModule(network, "actor_critic" if q is None else "q", weights)


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function


def _mlp(shape: MLPShape, weights: Weights) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    names = [name.removesuffix(".weight") for name in shape.places if name.endswith(".weight")]
    for index, name in enumerate(names):
        if index:
            layers.append(_Function(ACTIVATIONS[shape.activation]))
        num_outputs, num_inputs = weights[f"{name}.weight"].shape
        linear = nn.Linear(num_inputs, num_outputs)
        load_weights(linear, {part: weights[f"{name}.{part}"] for part in ("weight", "bias")})
        layers.append(linear)
    return nn.Sequential(*layers)


def _as_floats(obs: TensorObs, spec: PolicySpec) -> TensorObs:
    """Vectors, and images that are no bytes, in float32; everything else as it is."""
    if isinstance(obs, dict):
        assert isinstance(spec.obs, dict)
        return {path: _as_float(leaf, spec.obs[path]) for path, leaf in obs.items()}
    assert isinstance(spec.obs, ObsSpec)
    return _as_float(obs, spec.obs)


def _as_float(leaf: Tensor, spec: ObsSpec) -> Tensor:
    is_float = spec.kind == "vector" or (spec.kind == "image" and spec.dtype != "uint8")
    return leaf.float() if is_float else leaf
