"""`ExportedAgent`: a file that `rlplat export` wrote, with what serving asks of an agent; onnxruntime, no torch.

agent = ExportedAgent("policy.onnx")
rows, is_batch = agent.spaces.read(obs, mask)
output, state = agent.act_on_rows(rows, state=agent.initial_state(len(rows)))
action = agent.spaces.actions(output.actions, is_batch)

The file has no environment; its spaces are made of its contract. Bounds of observations are not in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.acting import MASK, Keys, Leaf
from rlplat.export.contract import STATE_OUT, Contract, nested
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.rl.envs.external.spaces_file import make_space
from rlplat.rl.interfaces import Array, Obs, PolicyOutput
from rlplat.rl.obs_tree import obs_rows
from rlplat.rl.run.agent_spaces import AgentSpaces
from rlplat.rl.spaces import ActionSpec, SpaceSpec, action_leaves


@dataclass(frozen=True)
class Origin:
    """Of the weights, as a checkpoint's info has it."""

    algorithm: str
    env: str
    env_steps: int
    evaluation: dict[str, float]


@dataclass(frozen=True)
class ExportedFile:
    path: Path
    info: Origin


class ExportedAgent:
    def __init__(self, path: Path | str, data: bytes | None = None) -> None:
        """data: the file's bytes, where they were read already. CheckpointError for a file that is damaged, foreign, or
        of a later contract; MissingExtra without onnxruntime."""
        self._policy = ExportedPolicy(path, data=data)
        told = self._policy.metadata
        evaluated = told["rlplat.evaluation_return"]
        info = Origin(
            told["rlplat.algorithm"],
            told["rlplat.env"],
            int(told["rlplat.env_steps"]),
            {"eval/return_mean": float(evaluated)} if evaluated else {},
        )
        self.checkpoint = ExportedFile(Path(path), info)
        spec = SpaceSpec.from_description(json.loads(told["rlplat.spaces"]))
        self.spaces = ExportedSpaces(self._policy.contract, spec)
        self.warnings: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return ExportedAgent, (self.checkpoint.path, self._policy.data)

    @property
    def state_size(self) -> int:
        return self._policy.state_size

    def initial_state(self, num: int | None = None) -> Array:
        return self._policy.initial_state(num)

    def act_on_rows(self, rows: Obs, *, greedy: bool = True, state: Array | None = None) -> tuple[PolicyOutput, Array]:
        """As `rl.run.trained_agent.Agent.act_on_rows`; but actions are as the environment takes them, and several
        arrays of them (of a Dict or Tuple) are the fields of one."""
        contract, num_rows = self._policy.contract, obs_rows(rows)
        outputs = self._policy.outputs(self.spaces.feeds(rows), num_rows, greedy, state)
        prefix = "greedy_action" if greedy else "action"
        arrays = [outputs[leaf.name(prefix)] for leaf in contract.action]
        none = np.zeros(num_rows, np.float32)
        output = PolicyOutput(
            arrays[0] if len(arrays) == 1 else _joined(arrays),
            outputs.get("log_prob", none),
            outputs.get("value", none),
        )
        return output, outputs.get(STATE_OUT, self.initial_state(num_rows))


class ExportedSpaces(AgentSpaces):
    def __init__(self, contract: Contract, spec: SpaceSpec) -> None:
        observed = [(leaf.keys, _obs_form(leaf)) for leaf in contract.obs]
        if contract.mask_is_observed:
            observed.append(((MASK,), {"multi_binary": {"n": sum(contract.mask_groups)}}))
        taken = [
            (leaf.keys, _action_form(leaf, part))
            for leaf, part in zip(contract.action, action_leaves(spec.action), strict=True)
        ]
        super().__init__(
            make_space(_tree(observed), "the observation"),
            make_space(_tree(taken), "the action"),
            adds_mask=bool(contract.mask_groups) and not contract.mask_is_observed,
        )
        self._contract = contract

    def feeds(self, rows: Obs) -> dict[str, Array]:
        """The inputs obs and action_mask of the file, which counts from `start`: `read` counts from 0."""
        leaves = rows if isinstance(rows, dict) else {"": rows}
        feeds = {}
        for leaf in self._contract.obs:
            array = leaves[leaf.path if leaf.path in leaves else "obs"].reshape(-1, *leaf.shape)
            if leaf.start:
                array = array + np.array(leaf.start).reshape(leaf.shape)
            feeds[leaf.name("obs")] = array.astype(leaf.dtype, copy=False)
        if self._contract.mask_groups:
            feeds[MASK] = leaves[MASK]
        return feeds

    def actions(self, actions: Array, is_batch: bool) -> Any:
        leaves = self._contract.action
        arrays = [actions] if len(leaves) == 1 else [actions[str(index)] for index in range(len(leaves))]
        return nested(
            [(leaf.keys, array if is_batch else array[0]) for leaf, array in zip(leaves, arrays, strict=True)]
        )


def _joined(arrays: list[Array]) -> Array:
    """Arrays [N, ...] as the fields "0", "1", ... of one [N], which can be cut and joined by rows."""
    fields = [(str(index), array.dtype, array.shape[1:]) for index, array in enumerate(arrays)]
    joined = np.empty(len(arrays[0]), fields)
    for index, array in enumerate(arrays):
        joined[str(index)] = array
    return joined


def _obs_form(leaf: Leaf) -> dict[str, Any]:
    """The leaf as in a file of spaces (rl/envs/external/spaces_file.py)."""
    if leaf.kind not in ("vector", "image"):
        return _choice_form(leaf)
    dtype, low, high = np.dtype(leaf.dtype), -np.inf, np.inf
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind == "b":
        low, high = 0, 1
    return {"box": {"low": low, "high": high, "shape": leaf.shape, "dtype": leaf.dtype}}


def _action_form(leaf: Leaf, spec: ActionSpec) -> dict[str, Any]:
    if spec.kind == "box":
        low, high = (np.reshape(bound, leaf.shape).tolist() for bound in (spec.low, spec.high))
        return {"box": {"low": low, "high": high, "shape": leaf.shape, "dtype": leaf.dtype}}
    return _choice_form(leaf)


def _choice_form(leaf: Leaf) -> dict[str, Any]:
    if leaf.kind == "discrete":
        return {"discrete": {"n": leaf.nvec[0], "start": leaf.start[0], "dtype": leaf.dtype}}
    if leaf.kind == "multi_binary":
        return {"multi_binary": {"n": list(leaf.shape)}}
    nvec, start = (np.reshape(each, leaf.shape).tolist() for each in (leaf.nvec, leaf.start))
    return {"multi_discrete": {"nvec": nvec, "start": start, "dtype": leaf.dtype}}


def _tree(parts: list[tuple[Keys, dict[str, Any]]]) -> dict[str, Any]:
    """A space of these parts: Dict where keys are texts, Tuple where they are numbers."""
    if not parts[0][0]:
        return parts[0][1]
    inner: dict[Any, list[tuple[Keys, dict[str, Any]]]] = {}
    for keys, form in parts:
        inner.setdefault(keys[0], []).append((keys[1:], form))
    made = {key: _tree(each) for key, each in inner.items()}
    return {"tuple": list(made.values())} if isinstance(parts[0][0][0], int) else {"dict": made}
