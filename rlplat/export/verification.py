"""Is the file the policy? Its outputs in onnxruntime beside those of the torch module and of the run's own agent."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from rlplat.acting import MASK
from rlplat.errors import UsageError
from rlplat.export.contract import NOISE, STARTS, STATE_IN, STATE_OUT, nested
from rlplat.export.examples import ExampleRows, Feeds
from rlplat.export.exported_policy import ExportedPolicy
from rlplat.export.golden import TOLERANCE, difference
from rlplat.export.policy_module import PolicyModule, run_module
from rlplat.rl.run.trained_agent import Agent

NUM_ROWS = (1, 2, 7, 256)
NUM_STEPS = 3
"""Of a policy with a core, each from the state of the one before."""
MARGIN = 1e-4
"""Between the best two choices: where they are closer, either may come out."""
MAX_OTHER_DRAWS = 0.02
"""Share of rows whose drawn choice may differ: where two are nearly equal after the noise."""


def verify(file: ExportedPolicy, module: PolicyModule, agent: Agent, examples: ExampleRows) -> None:
    """UsageError where the file gives something else than the run."""
    file.check()
    for num_rows in NUM_ROWS:
        feeds = examples.rows(num_rows)
        for _ in range(NUM_STEPS if STATE_IN in feeds else 1):
            outputs = file.run(feeds)
            _compare_to_module(outputs, run_module(module, feeds), agent)
            _compare_to_agent(file, feeds, agent)
            if STATE_IN in feeds:
                feeds = examples.rows(num_rows) | {STATE_IN: outputs[STATE_OUT]}


def _compare_to_module(outputs: Feeds, expected: Feeds, agent: Agent) -> None:
    others = np.zeros(len(next(iter(outputs.values()))), bool)
    for name, array in expected.items():
        if array.dtype.kind in "iub" and not name.startswith("greedy"):
            others |= (array != outputs[name]).reshape(len(array), -1).any(axis=1)
    if others.sum() > max(1, MAX_OTHER_DRAWS * len(others)):
        raise _mismatch("action", float(others.mean()), agent)
    close = _close_calls(expected, agent)
    for name, array in expected.items():
        rows = ~close if name.startswith("greedy") else ~others
        found = difference(array[rows], outputs[name][rows])
        if found > TOLERANCE:
            raise _mismatch(name, found, agent)


def _compare_to_agent(file: ExportedPolicy, feeds: Feeds, agent: Agent) -> None:
    """Without noise: what `agent.act(obs)` does."""
    if NOISE in feeds:
        feeds = feeds | {NOISE: np.zeros_like(feeds[NOISE])}
    outputs, contract, policy = file.run(feeds), file.contract, agent.policy
    obs = nested([(leaf.keys, feeds[leaf.name("obs")]) for leaf in contract.obs])
    rows, is_batch = agent.spaces.read(obs, feeds.get(MASK))
    if STATE_IN in feeds:
        policy.core_state = np.where(feeds[STARTS][:, None], np.float32(0.0), feeds[STATE_IN])
    expected = policy.act(rows, deterministic=True)
    close = _close_calls(outputs, agent)
    actions = agent.spaces.actions(expected.actions, is_batch)
    for leaf in contract.action:
        wanted = np.asarray(reduce(getitem, leaf.keys, actions))
        for name in (leaf.name("greedy_action"), leaf.name("action")):
            got = outputs[name]
            if got.dtype != wanted.dtype or (found := difference(wanted[~close], got[~close])) > TOLERANCE:
                raise _mismatch(name, found if got.dtype == wanted.dtype else np.inf, agent)
    others = {"value": expected.values, "log_prob": expected.log_probs, STATE_OUT: policy.core_state}
    for name, array in others.items():
        if name in outputs and (found := difference(array[~close], outputs[name][~close])) > TOLERANCE:
            raise _mismatch(name, found, agent)


def _close_calls(outputs: Feeds, agent: Agent) -> np.ndarray:
    """bool[N]: rows in which two choices are so near to each other that rounding decides."""
    if "q_values" in outputs:
        return _is_close(outputs["q_values"])
    params: np.ndarray = outputs["params"]
    spec: Any = getattr(agent.policy, "spec", None)
    if spec is None:  # an MLP of evolution strategies
        return _is_close(params) if agent.spaces.spec.action.kind == "discrete" else np.zeros(len(params), bool)
    close, start = np.zeros(len(params), bool), 0
    for head in spec.heads:
        part = params[:, start : start + head.size]
        start += head.size
        if head.kind == "categorical":
            close |= _is_close(part)
        elif head.kind == "bernoulli":
            close |= (np.abs(part) < MARGIN).any(axis=1)
    return close


def _is_close(choices: np.ndarray) -> np.ndarray:
    """float32[N, n]: whether two of them are; also illegal ones, which costs a row and no more."""
    ordered = np.sort(choices, axis=1)
    return (np.diff(ordered, axis=1)[:, -1:] < MARGIN * np.maximum(1.0, np.abs(ordered[:, -1:]))).any(axis=1)


def _mismatch(name: str, found: float, agent: Agent) -> UsageError:
    return UsageError(
        f"{agent.checkpoint.path} was not exported: in onnxruntime the output '{name}' differs from the run's by "
        f"{found:.2g} (at most {TOLERANCE:g} is right); a network of your own may do something that ONNX does not know"
    )
