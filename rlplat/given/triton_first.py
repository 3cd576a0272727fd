"""triton before tensorflow, or not at all: both hold an LLVM, and a process that loads triton's second is aborted by it
(`inconsistency in registered CommandLine options`, or a segmentation fault). torch's usual wheel brings triton, and
loads it when it first compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def before_tensorflow() -> None:
    """Load triton, where it is installed and tensorflow is not loaded yet."""
    if "tensorflow" not in sys.modules and "triton" not in sys.modules and find_spec("triton") is not None:
        try:
            import triton  # noqa: F401
        except Exception:  # then torch cannot use it either, and says so where it would
            pass


def guard() -> None:
    """From now on an import of triton after tensorflow is an ImportError and one line; torch goes on without it."""
    if not any(isinstance(each, _TooLate) for each in sys.meta_path):
        sys.meta_path.insert(0, _TooLate())


class _TooLate(MetaPathFinder):
    def __init__(self) -> None:
        self._has_said = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "triton" or "tensorflow" not in sys.modules:
            return None
        if not self._has_said:
            self._has_said = True
            print(
                "rlplat: triton is left out: tensorflow was imported before it, and in that order the two end the "
                "process; import triton (or torch and triton) first, if torch is to compile for a GPU",
                file=sys.stderr,
            )
        raise ImportError("triton after tensorflow would end the process", name="triton")
