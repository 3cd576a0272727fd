"""Pages that the kernel hands out, counted in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from rlplat.rl.sampling.freed_memory import keep_freed_memory

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        arrays = [np.ones(3_000_000, np.uint8) for _ in range(8)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults_of(3)
print(faults_of(10))
keep_freed_memory()
faults_of(3)
print(faults_of(10))
"""


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_what_a_round_frees_the_next_one_fills() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = (int(line) for line in done.stdout.split())
    assert before > 20 * max(after, 1), (before, after)
