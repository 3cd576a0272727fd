"""Data-parallel training: `TorchTrainer`, `TFTrainer`. The ranks are actors: docs/data-parallel.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplat.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlplat.data_parallel.reports import Result as Result
    from rlplat.data_parallel.tf_trainer import TFTrainer as TFTrainer
    from rlplat.data_parallel.torch.operator import TrainingOperator as TrainingOperator
    from rlplat.data_parallel.trainer import TorchTrainer as TorchTrainer
else:
    _HOMES = {
        "reports": "Result",
        "tf_trainer": "TFTrainer",
        "torch.operator": "TrainingOperator",
        "trainer": "TorchTrainer",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
