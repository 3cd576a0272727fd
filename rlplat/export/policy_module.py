"""`PolicyModule`: a trained agent as one torch module, from raw observations to actions as environments take them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplat.acting import MASK, Leaf
from rlplat.errors import UsageError
from rlplat.export.contract import NOISE, POLICY_ACTION, STARTS, STATE_IN, Contract
from rlplat.rl.interfaces import Policy
from rlplat.rl.policies.bounded_actor import ActionScale, BoundedActor
from rlplat.rl.policies.perturbed_mlp import MLPPolicy
from rlplat.rl.spaces import ActionSpec, SpaceSpec, action_leaves, obs_leaves
from rlplat.rl.torch.action_distributions import ActionDistribution
from rlplat.rl.torch.agent_module import AgentModule
from rlplat.rl.torch.continuous_control import squashed_sample


class PolicyModule(nn.Module):
    """outputs = module(*inputs), in the order of the contract's `input_names` and `output_names`."""

    def __init__(self, module: AgentModule, policy: Policy, contract: Contract, spaces: SpaceSpec) -> None:
        super().__init__()
        self.module, self.contract, self.spaces = module, contract, spaces
        self.choose = _chooser(module, policy)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.contract.input_names, inputs, strict=True))
        num_rows = inputs[0].shape[0]
        leaves = {
            path: _as_policies_count(given[leaf.name("obs")], leaf, (num_rows, *spec.shape))
            for leaf, (path, spec) in zip(self.contract.obs, self._obs_specs(), strict=True)
        }
        if MASK in given:
            leaves[MASK] = given[MASK]
        state = given.get(STATE_IN)
        if state is not None:
            state = state.masked_fill(given[STARTS].unsqueeze(-1), 0.0)
        obs = leaves if isinstance(self.spaces.obs, dict) else leaves[""]
        drawn, greedy, outputs = self.choose(self.module.prepare(obs), state, given.get(NOISE))
        outputs[POLICY_ACTION] = drawn
        actions = [self._as_environments_take(each) for each in (drawn, greedy)]
        return (*actions[0], *actions[1], *(outputs[name] for name in self.contract.outputs))

    def _obs_specs(self) -> list[tuple[str, Any]]:
        specs = {path: spec for path, spec in obs_leaves(self.spaces.obs).items() if spec.kind != "mask"}
        if len(self.contract.obs) == len(specs):
            return list(specs.items())
        # Those of an actor, by name; "obs" is what stands alone but for what its critic sees.
        return [(path, specs[path]) for path in (leaf.path or "obs" for leaf in self.contract.obs)]

    def _as_environments_take(self, actions: Tensor) -> list[Tensor]:
        """A policy's actions as one tensor for each part; see `envs.gym_spaces.action_converter`."""
        parts, start = [], 0
        for leaf, spec in zip(self.contract.action, action_leaves(self.spaces.action), strict=True):
            columns = actions.reshape(actions.shape[0], -1)[:, start : start + spec.flat_size]
            parts.append(_environment_action(columns, leaf, spec))
            start += spec.flat_size
        return parts


class _ActorCriticChoice(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Any, state: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        assert noise is not None
        distribution, values, state = self.network(obs, state)
        if not isinstance(distribution, ActionDistribution):
            raise UsageError(
                f"{type(self.network).__name__} gives a distribution of its own ({type(distribution).__name__}), which "
                "has no place in the contract: export its network with rlplat.export.torch_module"
            )
        drawn = distribution.sample_from(noise)
        outputs = {
            "params": distribution.params,
            "log_std": distribution.log_std,
            "log_prob": distribution.log_prob(drawn),
            "value": values,
            "state_out": state,
        }
        return drawn, distribution.mode(), outputs


class _QChoice(nn.Module):
    """Epsilon-greedy, with the share of random actions that the checkpoint says; see `policies.exploration`."""

    epsilon: Tensor

    def __init__(self, network: Any, epsilon: float) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("epsilon", torch.tensor(epsilon, dtype=torch.float32))

    def forward(self, obs: Any, state: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        assert noise is not None
        outputs, following = self.network(obs, state)
        q_values = self.network.q_values(outputs)
        noisy_q = q_values
        num_actions = q_values.shape[1]
        if noise.shape[1] > 1 + num_actions:
            self.network.use_noise(noise[:, 1 + num_actions :])
            noisy_q = self.network.q_values(self.network(obs, state)[0])
            self.network.clear_noise()
        legal = obs[MASK].bool() if isinstance(obs, dict) and MASK in obs else torch.ones_like(q_values) > 0
        greedy_q = q_values.masked_fill(~legal, -torch.inf)
        # Of equally distributed numbers each is the largest with equal probability.
        random = noise[:, 1 : 1 + num_actions].masked_fill(~legal, -torch.inf).argmax(dim=1)
        explores = torch.erf(noise[:, 0].abs() * math.sqrt(0.5)) > 1.0 - self.epsilon
        drawn = torch.where(explores, random, noisy_q.masked_fill(~legal, -torch.inf).argmax(dim=1))
        found = {"q_values": q_values, "value": greedy_q.amax(dim=1), "state_out": following}
        return drawn, greedy_q.argmax(dim=1), found


class _MLPChoice(nn.Module):
    def __init__(self, network: nn.Module, policy: MLPPolicy) -> None:
        super().__init__()
        self.network, self.is_discrete = network, policy.shape.is_discrete

    def forward(self, obs: Any, state: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        params = self.network(obs)
        actions = params.argmax(dim=1) if self.is_discrete else params
        return actions, actions, {"params": params}


class _ActorChoice(nn.Module):
    """Actions within (-1, 1), scaled to the bounds; see `policies.bounded_actor`."""

    middle: Tensor
    half_width: Tensor

    def __init__(self, network: nn.Module, policy: BoundedActor) -> None:
        super().__init__()
        self.network, self.actor = network, policy.actor
        scale = ActionScale(policy.spec)
        self.register_buffer("middle", torch.from_numpy(scale.middle))
        self.register_buffer("half_width", torch.from_numpy(scale.half))

    def forward(self, obs: Any, state: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        assert noise is not None
        params = self.network(obs)
        found = {"params": params}
        if self.actor.kind == "squashed_gaussian":
            drawn, log_probs = squashed_sample(params, noise)
            found["log_prob"] = log_probs - self.half_width.log().sum()
            greedy = params.chunk(2, dim=-1)[0].tanh()
        else:
            greedy = params.tanh()
            drawn = (greedy + self.actor.action_noise * noise).clamp(-1.0, 1.0)
        return self.middle + self.half_width * drawn, self.middle + self.half_width * greedy, found


def choice_outputs(module: AgentModule, policy: Any) -> tuple[tuple[str, ...], int]:
    """(the outputs beside the actions, the size of the noise) of a trained agent."""
    if isinstance(policy, MLPPolicy):
        return ("params",), 0
    if isinstance(policy, BoundedActor):
        log_prob = ("log_prob",) if policy.actor.kind == "squashed_gaussian" else ()
        return ("params", *log_prob), policy.spec.action.flat_size
    state = ("state_out",) if module.state_size else ()
    if module.kind == "q":
        network: Any = module.network
        return ("q_values", "value", *state), 1 + policy.spec.action.n + network.noise_size
    log_std = ("log_std",) if policy.spec.num_gaussian else ()
    value = () if policy.spec.is_privileged else ("value",)
    return ("params", *log_std, "log_prob", *value, *state), policy.spec.num_params


def run_module(module: PolicyModule, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output by name, of every input by name."""
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(feeds[name]) for name in module.contract.input_names))
    return {name: each.numpy() for name, each in zip(module.contract.output_names, outputs, strict=True)}


def _chooser(module: AgentModule, policy: Any) -> nn.Module:
    if isinstance(policy, MLPPolicy):
        return _MLPChoice(module.network, policy)
    if isinstance(policy, BoundedActor):
        return _ActorChoice(module.network, policy)
    if module.kind == "q":
        return _QChoice(module.network, float(np.max(policy.exploration.epsilon)))
    return _ActorCriticChoice(module.network)


def _as_policies_count(array: Tensor, leaf: Leaf, shape: tuple[int, ...]) -> Tensor:
    """As `AgentSpaces.read` gives it: in the policy's shape, discrete leaves from 0."""
    if leaf.nvec:
        array = array.long().reshape(shape)
        return array - torch.tensor(leaf.start).reshape(shape[1:]) if any(leaf.start) else array
    return array.reshape(shape)


def _environment_action(columns: Tensor, leaf: Leaf, spec: ActionSpec) -> Tensor:
    """columns: [N, flat_size] -> [N, *leaf.shape]"""
    dtype = getattr(torch, leaf.dtype)
    shape = (columns.shape[0], *leaf.shape)
    if spec.kind != "box":
        whole = columns.round().long() if columns.is_floating_point() else columns.long()
        return (whole + torch.tensor(leaf.start) if any(leaf.start) else whole).to(dtype).reshape(shape)
    actions = columns.to(dtype)
    if any(map(math.isfinite, (*spec.low, *spec.high))):
        low, high = torch.tensor(spec.low, dtype=dtype), torch.tensor(spec.high, dtype=dtype)
        actions = torch.minimum(torch.maximum(actions, low), high)
    return actions.reshape(shape)
