"""A trained policy as one `.onnx` file with its whole contract (docs/export.md).

    rlplat.export.to_onnx("runs/demo", "policy.onnx")       # checked in onnxruntime before it has its name
    policy = rlplat.export.load("policy.onnx")              # needs onnxruntime and numpy, neither torch nor the runtime
    action = policy.act(obs)

`torch_module(module, example, out)` does the same for a torch model of your own. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplat.export.exported_policy import ExportedPolicy, load
    from rlplat.export.model_file import ExportedModel
    from rlplat.export.module_export import torch_module
    from rlplat.export.policy_export import to_onnx

_HOMES = {
    "ExportedModel": "model_file",
    "ExportedPolicy": "exported_policy",
    "load": "exported_policy",
    "to_onnx": "policy_export",
    "torch_module": "module_export",
}

__all__ = ["ExportedModel", "ExportedPolicy", "load", "to_onnx", "torch_module"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlplat.export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlplat.export.{_HOMES[name]}"), name)
