"""Data-parallel training: `TorchTrainer`, `TFTrainer`. The ranks are actors: docs/data-parallel.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplat.data_parallel.reports import Result
    from rlplat.data_parallel.tf_trainer import TFTrainer
    from rlplat.data_parallel.torch.operator import TrainingOperator
    from rlplat.data_parallel.trainer import TorchTrainer

_HOME_BY_NAME = {
    "Result": "rlplat.data_parallel.reports",
    "TFTrainer": "rlplat.data_parallel.tf_trainer",
    "TorchTrainer": "rlplat.data_parallel.trainer",
    "TrainingOperator": "rlplat.data_parallel.torch.operator",
}
__all__ = ["Result", "TFTrainer", "TorchTrainer", "TrainingOperator"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_BY_NAME:
        raise AttributeError(f"module 'rlplat.data_parallel' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_BY_NAME[name]), name)
