"""`to_onnx`: a run's trained policy as one file, checked against the run before it has its name."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rlplat
from rlplat.acting import Keys, Leaf
from rlplat.errors import UsageError
from rlplat.export import golden, onnx_writing
from rlplat.export.contract import STATE_IN, STATE_OUT, Contract
from rlplat.export.examples import ExampleRows, Feeds
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.model_file import CONTRACT
from rlplat.export.policy_module import PolicyModule, choice_outputs, run_module
from rlplat.export.verification import verify
from rlplat.paths import user_path
from rlplat.rl.envs.gym_spaces import walk
from rlplat.rl.run.agent_spaces import AgentSpaces
from rlplat.rl.run.trained_agent import Agent, load
from rlplat.rl.spaces import ActionSpec, action_leaves

GOLDEN_ROWS = 8


def to_onnx(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str | None = None,
    policy: str = "",
    env: Any = None,
) -> Path:
    """Write the policy of a run to `out`, with its whole contract (`export.contract`); the path.

    run, checkpoint, policy, env: as for `rlplat.load`. The file is run in onnxruntime and compared to the run's own
    agent first. UsageError (ConfigError, CheckpointError, MissingExtra) with one message where that cannot be done; a
    file that was there before is unchanged then.
    """
    path = user_path(out)
    onnx_writing.require_packages(f"exporting {run}")
    onnx_writing.require_place(path)
    agent = load(run, checkpoint, policy=policy, env=env)
    spec = getattr(agent.policy, "spec", None)
    if spec is not None and spec.has_images:  # files compute in float32, whatever the run did
        agent = load(run, checkpoint, policy=policy, env=env, precision="float32")
    what = str(agent.checkpoint.path)
    onnx_writing.require_finite(agent.weights(), what)
    module = agent.torch_module()
    outputs, noise_size = choice_outputs(module, agent.policy)
    contract = contract_of(agent.spaces, module.state_size, outputs, noise_size)
    policy_module = PolicyModule(module, agent.policy, contract, agent.spaces.spec).eval().requires_grad_(False)
    examples = ExampleRows(contract, agent.spaces.observation_space, seed=0)
    inputs = [torch.from_numpy(examples.rows(3)[name]) for name in contract.input_names]
    proto = onnx_writing.to_model(policy_module, inputs, contract.input_names, contract.output_names, what)
    proto.doc_string = f"{agent.plan.algo} policy for {agent.plan.config.env}, exported by rlplat"

    feeds = _golden_inputs(policy_module, examples)
    metadata = {CONTRACT: contract.to_json(), **_metadata(agent)}
    metadata["rlplat.golden"] = golden.dump(feeds, run_module(policy_module, feeds))
    with onnx_writing.new_file(path, onnx_writing.to_bytes(proto, metadata)) as written:
        verify(ExportedPolicy(written), policy_module, agent, examples)
    return path


def contract_of(spaces: AgentSpaces, state_size: int, outputs: tuple[str, ...], noise_size: int) -> Contract:
    """UsageError where a part of the spaces has no place in a contract."""
    for leaf in spaces.leaves:
        _checked(leaf.keys)
    action_specs = action_leaves(spaces.spec.action)
    action = [
        _action_leaf(keys, space, spec)
        for (keys, space), spec in zip(walk(spaces.action_space), action_specs, strict=True)
    ]
    return Contract(
        obs=spaces.leaves,
        action=tuple(action),
        outputs=outputs,
        mask_groups=spaces.spec.action.mask_groups if spaces.has_mask else (),
        mask_is_observed=spaces.mask_is_observed,
        state_size=state_size,
        noise_size=noise_size,
    )


def _action_leaf(keys: Keys, space: Any, spec: ActionSpec) -> Leaf:
    path = "/".join(map(str, keys))
    shape, dtype = tuple(map(int, space.shape)), np.dtype(space.dtype).name
    if spec.kind == "discrete":
        return Leaf(path, _checked(keys), spec.kind, shape, dtype, (spec.n,), (spec.start,))
    start: tuple[int, ...] = ()
    if spec.kind == "multi_discrete":
        start = tuple(map(int, np.broadcast_to(space.start, space.shape).ravel()))
    return Leaf(path, _checked(keys), spec.kind, shape, dtype, spec.nvec, start)


def _checked(keys: tuple[Any, ...]) -> Keys:
    wrong = [key for key in keys if not isinstance(key, str | int)]
    if wrong:
        raise UsageError(f"a Dict space has the key {wrong[0]!r}: an exported policy has names only; use texts as keys")
    return keys


def _golden_inputs(module: PolicyModule, examples: ExampleRows) -> Feeds:
    """Where there is a state: after some steps, so that windows are partly filled, and beginnings among them."""
    feeds = examples.rows(GOLDEN_ROWS, smooth_images=True)
    if STATE_IN in feeds:
        for _ in range(3):
            feeds[STATE_IN] = run_module(module, feeds)[STATE_OUT]
    return feeds


def _metadata(agent: Agent) -> dict[str, str]:
    """What the file says of its origin, as texts."""
    info, config = agent.checkpoint.info, agent.plan.config
    settings = config.model_dump(mode="json")
    evaluated = info.evaluation.get("eval/return_mean")
    return {
        "rlplat.version": rlplat.__version__,
        "rlplat.algorithm": agent.plan.algo,
        "rlplat.framework": str(settings.get("framework", "")),
        "rlplat.env": str(config.env),
        "rlplat.spaces": json.dumps(agent.spaces.spec.describe()),
        "rlplat.checkpoint": agent.checkpoint.path.name,
        "rlplat.env_steps": str(info.env_steps),
        "rlplat.evaluation_return": "" if evaluated is None else str(evaluated),
        "rlplat.config_sha256": hashlib.sha256((agent.directory / "config.yaml").read_bytes()).hexdigest(),
        "rlplat.opset": str(onnx_writing.OPSET),
    }
