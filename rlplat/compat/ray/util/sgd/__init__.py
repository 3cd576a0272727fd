"""`ray.util.sgd`, and where RaySGD was before 2020, `ray.experimental.sgd`."""

from __future__ import annotations

import sys

from rlplat.compat.ray.util.sgd import torch, utils
from rlplat.compat.ray.util.sgd.torch import TorchTrainer, TrainingOperator
from rlplat.data_parallel import TFTrainer

sys.modules[f"{__name__}.tf"] = sys.modules[__name__]
