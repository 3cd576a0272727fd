"""`ray.experimental`: where RaySGD and the queue were before 2020."""

from __future__ import annotations

import sys

from rlplat.compat.ray.refusals import refusing
from rlplat.compat.ray.util import queue, sgd

sys.modules |= {
    f"{__name__}.sgd": sgd,
    f"{__name__}.sgd.pytorch": sgd.torch,
    f"{__name__}.sgd.pytorch.pytorch_trainer": sgd.torch,
    f"{__name__}.queue": queue,
}


__path__: list[str] = []  # a package, so that `from` asks refusals.py for what is missing
__getattr__ = refusing(__name__)
