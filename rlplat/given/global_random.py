"""The generators that a trial's code shares with everything else in its process: `random`, `numpy.random`, `torch`."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def seed_everything(seed: int) -> None:
    """Torch too, now or as soon as it is imported: a trial that imports it inside its function draws the same numbers
    in a new process as in one where an earlier trial has imported it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    else:
        _torch_to_come.seed = seed
        if _torch_to_come not in sys.meta_path:
            sys.meta_path.insert(0, _torch_to_come)


class GlobalRandom:
    """What the generators hold now."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = torch.get_rng_state() if (torch := sys.modules.get("torch")) else None

    def install(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)


class _TorchToCome(MetaPathFinder):
    """Finds torch as the others do, and has it seeded when it was executed."""

    seed = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                module.manual_seed(self.seed)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)

            loader.exec_module = execute_and_seed
        return spec


_torch_to_come = _TorchToCome()
