"""A policy as simulators are sent one, made by hand: the action is the first number observed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from rlplat.export import sealing
from rlplat.rl.envs.external.frames import Leaves

RECORDED: Leaves = {"policy_action": ("int64", ()), "log_prob": ("float32", ()), "value": ("float32", ())}


def policy_file(offset: float = 0.0, *, states: int = 0) -> bytes:
    """action = policy_action = int(obs[:, 0]), value = obs[:, 1] + offset; with states: state_out = state_in + 1."""
    value, tensors = helper.make_tensor_value_info, helper.make_tensor
    inputs = [value("obs", TensorProto.FLOAT, ["N", 2]), value("noise", TensorProto.FLOAT, ["N", 3])]
    outputs = [
        value("action", TensorProto.INT64, ["N"]),
        value("policy_action", TensorProto.INT64, ["N"]),
        value("value", TensorProto.FLOAT, ["N"]),
        value("log_prob", TensorProto.FLOAT, ["N"]),
    ]
    nodes = [
        helper.make_node("Gather", ["obs", "zero"], ["first"], axis=1),
        helper.make_node("Cast", ["first"], ["action"], to=TensorProto.INT64),
        helper.make_node("Identity", ["action"], ["policy_action"]),
        helper.make_node("Gather", ["obs", "one"], ["second"], axis=1),
        helper.make_node("Add", ["second", "offset"], ["value"]),
        helper.make_node("Neg", ["second"], ["log_prob"]),
    ]
    constants = [
        tensors("zero", TensorProto.INT64, [], [0]),
        tensors("one", TensorProto.INT64, [], [1]),
        tensors("offset", TensorProto.FLOAT, [], [offset]),
    ]
    if states:
        inputs += [
            value("state_in", TensorProto.FLOAT, ["N", states]),
            value("starts", TensorProto.BOOL, ["N"]),
        ]
        outputs.append(value("state_out", TensorProto.FLOAT, ["N", states]))
        constants.append(tensors("step", TensorProto.FLOAT, [], [1.0]))
        nodes.append(helper.make_node("Add", ["state_in", "step"], ["state_out"]))
    graph = helper.make_graph(nodes, "policy", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    sealed: bytes = sealing.seal(model.SerializeToString())
    return sealed


def policy_frame(num_steps: int, version: int = 0, onnx_bytes: Any = None, record: Any = RECORDED) -> dict[str, Any]:
    """As the client reads it."""
    return {"version": version, "num_steps": num_steps, "record": [*record], "onnx": onnx_bytes}


def read(packed: dict[str, Any]) -> np.ndarray:
    """An array of a frame."""
    array: np.ndarray = np.frombuffer(packed["data"], packed["dtype"]).reshape(packed["shape"])
    return array
