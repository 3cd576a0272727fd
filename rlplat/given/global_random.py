"""The generators that users' code shares with everything else in its process: `random`, `numpy.random`, torch's and
TensorFlow's. A fork has copies of them: every process seeds its own."""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


def seed_loaded(seed: int) -> None:
    """Those that are there now; what is imported later seeds itself. seed: 0 .. 2**63 - 1."""
    random.seed(seed)
    if "numpy.random" in sys.modules:  # numpy imports it when it is first used
        np.random.seed(seed % 2**32)
    # getattr: another thread may be in the midst of the import.
    if seeds_torch := getattr(sys.modules.get("torch"), "manual_seed", None):
        seeds_torch(seed)
    if tf_random := getattr(sys.modules.get("tensorflow"), "random", None):
        tf_random.set_seed(seed)


def seed_everything(seed: int) -> None:
    """Torch too, now or as soon as it is imported: a trial that imports it inside its function draws the same numbers
    in a new process as in one where an earlier trial has imported it."""
    importlib.import_module("numpy.random")
    seed_loaded(seed)
    if "torch" not in sys.modules:
        _seed_torch_later(seed)


def seed_from_entropy() -> None:
    """For a process that was forked: what it draws is not what its siblings draw."""
    seed_loaded(int.from_bytes(os.urandom(8), "little") >> 1)


class GlobalRandom:
    """What the generators hold now."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        read_torch = getattr(sys.modules.get("torch"), "get_rng_state", None)
        self._torch = read_torch() if read_torch else None
        self._later = _torch_to_come.seed if _torch_to_come in sys.meta_path else None
        context = _tf_context()
        self._tf = (context._seed, context._rng) if context is not None else None

    def install(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            sys.modules["torch"].set_rng_state(self._torch)
        _seed_torch_later(self._later)
        context = _tf_context()
        if self._tf is not None and context is not None:
            context._seed, context._rng = self._tf  # the next seed makes new ones, these are as they were left


@contextmanager
def seeded_within(seed: int) -> Iterator[None]:
    """Afterwards the generators hold what they held before."""
    before = GlobalRandom()
    seed_loaded(seed)
    try:
        yield
    finally:
        before.install()


def _tf_context() -> Any:
    """Where TensorFlow keeps its global seed, which no function of its gives back; None where there is none."""
    module = sys.modules.get("tensorflow.python.eager.context")
    read = getattr(module, "context", None)
    context = read() if read else None
    return context if hasattr(context, "_seed") and hasattr(context, "_rng") else None


def _seed_torch_later(seed: int | None) -> None:
    """None: not at all."""
    if _torch_to_come in sys.meta_path:
        sys.meta_path.remove(_torch_to_come)
    if seed is not None:
        _torch_to_come.seed = seed
        sys.meta_path.insert(0, _torch_to_come)


class _TorchToCome(MetaPathFinder):
    """Finds torch as the others do, and has it seeded when it was executed."""

    seed = 0

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
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
