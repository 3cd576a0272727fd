"""`LivePolicy`: the policy of a running training as an ONNX file, anew for every version of its weights.

live = LivePolicy(policy, observation_space, action_space, framework)
data = live.to_bytes(weights)           # the contract of an exported file, and `policy_action` among its outputs

Tracing takes seconds, so it happens once, with the weights as inputs of the graph; a file has those of its version as
constants. What the first file computes is compared to the policy's own network.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import rlplat
from rlplat.errors import UsageError
from rlplat.export import golden, onnx_writing
from rlplat.export.contract import POLICY_ACTION, STATE_IN
from rlplat.export.examples import ExampleRows
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.model_file import CONTRACT
from rlplat.export.policy_export import contract_of
from rlplat.export.policy_module import PolicyModule, choice_outputs, run_module
from rlplat.rl.interfaces import Policy, Weights
from rlplat.rl.policies.bounded_actor import BoundedActor
from rlplat.rl.run.agent_spaces import AgentSpaces
from rlplat.rl.torch.agent_module import agent_module

WHAT = "the policy for simulators that act by themselves (inference: local)"
WITHOUT_NOISE = ("params", "log_std", "q_values", "value")
"""Outputs that no draw decides on."""
Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""(dtype, shape of one row) by name."""


class LivePolicy:
    def __init__(self, policy: Policy, observation_space: Any, action_space: Any, framework: str) -> None:
        """policy: who acts with the weights in a rollout worker. UsageError where it cannot act elsewhere."""
        onnx_writing.require_packages("env_kwargs.inference: local")
        if isinstance(policy, BoundedActor):
            raise UsageError(
                "env_kwargs.inference: local is for ppo, impala, a3c and dqn: while sac and td3 warm up, actions are "
                "drawn uniformly, which their exported policy cannot do; set it to remote"
            )
        if np.ndim(getattr(getattr(policy, "exploration", None), "epsilon", 0.0)):
            raise UsageError(
                "asynchronous gives every environment an epsilon of its own, which one exported policy cannot have: "
                "set it to false, or env_kwargs.inference to remote"
            )
        self._policy, self._framework = policy, framework
        self._spaces = AgentSpaces(observation_space, action_space)
        self._traced_with: set[str] = set()
        self.recorded: Shapes = {}
        """What the training wants to know of every step, after the first `to_bytes`: outputs, and the state before it
        where there is one."""

    def to_bytes(self, weights: Weights) -> bytes:
        """The policy has been given these weights already. UsageError where its network has no form in ONNX."""
        if self._traced_with != set(weights):  # statistics of observations come some time after the first weights
            self._trace(weights)
        self._module.module.set_weights(weights)
        choose: Any = self._module.choose
        if hasattr(choose, "epsilon"):
            choose.epsilon.fill_(float(cast(Any, self._policy).exploration.epsilon))
        return self._file()

    def _trace(self, weights: Weights) -> None:
        agent, spaces = agent_module(self._policy, weights, self._framework), self._spaces
        outputs, noise_size = choice_outputs(agent, self._policy)
        contract = contract_of(spaces, agent.state_size, (*outputs, POLICY_ACTION), noise_size)
        module = PolicyModule(agent, self._policy, contract, spaces.spec).eval().requires_grad_(False)
        examples = ExampleRows(contract, spaces.observation_space, seed=0)
        feeds = examples.rows(3)
        self._module, self._contract = module, contract
        inputs = [torch.from_numpy(feeds[name]) for name in contract.input_names]
        self._proto = onnx_writing.to_model(
            module, inputs, contract.input_names, contract.output_names, WHAT, self._weights()
        )
        feeds = examples.rows(7)
        expected = run_module(module, feeds)
        found = ExportedPolicy("the policy", data=self._file()).run(feeds)
        for name in WITHOUT_NOISE:
            if name in expected and golden.difference(expected[name], found[name]) > golden.TOLERANCE:
                raise UsageError(f"{WHAT} gives another '{name}' in onnxruntime than in the training: set it to remote")
        named = [name for name in (POLICY_ACTION, "log_prob", "value", "q_values", "state_out") if name in expected]
        arrays = {name: expected[name] for name in named}
        if contract.state_size:
            arrays[STATE_IN] = feeds[STATE_IN]
        self.recorded = {name: (each.dtype.name, each.shape[1:]) for name, each in arrays.items()}
        self._traced_with = set(weights)

    def _weights(self) -> dict[str, Tensor]:
        """By their names in the module; one that two parts share has one of them."""
        return dict(self._module.named_parameters()) | dict(self._module.named_buffers())

    def _file(self) -> bytes:
        metadata = {CONTRACT: self._contract.to_json(), "rlplat.version": rlplat.__version__}
        return onnx_writing.to_bytes(onnx_writing.with_weights(self._proto, self._weights()), metadata)
