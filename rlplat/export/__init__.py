"""A trained policy as one `.onnx` file with its whole contract (docs/export.md).

    rlplat.export.to_onnx("runs/demo", "policy.onnx")       # checked in onnxruntime before it has its name
    policy = rlplat.export.load("policy.onnx")              # needs onnxruntime and numpy, neither torch nor the runtime
    action = policy.act(obs)

`torch_module(module, example, out)` does the same for a torch model of your own. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplat.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlplat.export.exported_policy import ExportedPolicy as ExportedPolicy, load as load
    from rlplat.export.model_file import ExportedModel as ExportedModel
    from rlplat.export.module_export import torch_module as torch_module
    from rlplat.export.policy_export import to_onnx as to_onnx
else:
    _HOMES = {
        "exported_policy": "ExportedPolicy load",
        "model_file": "ExportedModel",
        "module_export": "torch_module",
        "policy_export": "to_onnx",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
