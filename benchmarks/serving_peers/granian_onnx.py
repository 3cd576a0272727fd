"""An exported policy behind bare granian: `RUN=policy.onnx python -m granian --interface rsgi granian_onnx:act`, in
this folder. What it does not do is the point: no checks, no batches, no sessions, no metrics."""

import json
import os

import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = onnxruntime.InferenceSession(os.environ["RUN"], options, providers=["CPUExecutionProvider"])
env_steps = int(session.get_modelmeta().custom_metadata_map["rlplat.env_steps"])
noise = np.zeros((1, session.get_inputs()[1].shape[1]), np.float32)


async def act(scope, proto):
    obs = np.array([json.loads(await proto())["obs"]], np.float32)
    [action] = session.run(["greedy_action"], {"obs": obs, "noise": noise})
    answer = json.dumps({"action": action[0].tolist(), "env_steps": env_steps})
    proto.response_str(200, [("content-type", "application/json")], answer)
