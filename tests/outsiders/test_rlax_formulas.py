"""`rlax_formulas.py` in a process of its own: where JAX is loaded, every later fork warns, in other tests too."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("rlax") is None, reason="needs rlax")
def test_our_formulas_are_rlaxs() -> None:
    file = Path(__file__).with_name("rlax_formulas.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    done = subprocess.run(command, cwd=file.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]
