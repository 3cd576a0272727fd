"""A process dies at each named crash point (R22, fault catalogue 9, 24): all results are right all the same.

The points are found in the source, and WORKLOAD must pass each: whoever adds one that it does not pass extends it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.faults.programs import ROOT, program

POINTS = sorted(
    {
        name
        for path in (ROOT / "rlplat").rglob("*.py")
        for name in re.findall(r'\bcrash_point\(\s*"([^"]+)"', path.read_text())
    }
)

WORKLOAD = """
import gc, os, time
import numpy as np
import rlplat

print("running", os.getpid(), flush=True)
rlplat.init(num_cpus=2, num_gpus=0, object_store_memory=16 << 20)
GET = dict(timeout=40)

@rlplat.remote
def square(x):
    return x * x

@rlplat.remote
def large(x):
    return np.full(125_000, x, np.float64)

@rlplat.remote
def array(x):
    return np.full(30_000, x)

@rlplat.remote
def block(x):
    return np.full(1 << 18, x)

@rlplat.remote
def total(values):
    return float(values.sum())

@rlplat.remote
def nested(x):
    # The others of its kind that were sent ahead to this worker go back.
    time.sleep(0.004)
    return rlplat.get(square.remote(x))

@rlplat.remote
def values(n):
    for i in range(n):
        yield np.full(30_000, i)

class Counter:
    def __init__(self, start):
        self.value = start
    def get(self):
        return self.value
    def array(self, x):
        return np.full(30_000, x)

class Ledger:
    def __init__(self):
        self.numbers = []
    def get_state(self):
        return self.numbers
    def set_state(self, state):
        self.numbers = state
    def add(self, number):
        self.numbers.append(number)
        return len(self.numbers)
    def array(self):
        return np.full(30_000, len(self.numbers))

assert rlplat.get([square.remote(i) for i in range(200)], **GET) == [i * i for i in range(200)]
many = [large.remote(i) for i in range(30)]  # more than the store holds: workers spill
rlplat.wait(many, num_returns=30, timeout=40)
assert [rlplat.get(ref, **GET)[0] for ref in many] == list(range(30))
del many
arrays = [array.remote(i) for i in range(20)]
assert rlplat.get([total.remote(a) for a in arrays], **GET) == [30_000.0 * i for i in range(20)]
assert rlplat.get([total.remote(np.ones(30_000)) for _ in range(5)], **GET) == [30_000.0] * 5
assert rlplat.get([nested.remote(i) for i in range(20)], **GET) == [i * i for i in range(20)]
assert [a[0] for a in rlplat.get(list(values.remote(10)), **GET)] == list(range(10))
blocks = [block.remote(i) for i in range(16)]  # twice what the store holds
assert all(rlplat.get(b, **GET)[9] == i for i, b in enumerate(blocks))
del blocks
counter = rlplat.remote(max_restarts=2, max_task_retries=-1)(Counter).remote(rlplat.put(7))
assert rlplat.get([counter.get.remote() for _ in range(20)], **GET) == [7] * 20
assert [a[0] for a in rlplat.get([counter.array.remote(i) for i in range(5)], **GET)] == list(range(5))
ledger = rlplat.remote(max_restarts=2, exactly_once=True)(Ledger).remote()
assert rlplat.get([ledger.add.remote(i) for i in range(100)], **GET) == list(range(1, 101))
assert rlplat.get(ledger.array.remote(), **GET)[0] == 100
del counter, ledger, arrays
gc.collect()
end = time.monotonic() + 60
while rlplat.available_resources()["CPU"] < 2 and time.monotonic() < end:
    time.sleep(0.01)
assert rlplat.available_resources()["CPU"] == 2, rlplat.available_resources()
rlplat.shutdown()
print("all right", flush=True)
"""


def test_the_source_has_crash_points() -> None:
    assert "after_store_before_report" in POINTS
    assert len(POINTS) >= 8


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
def test_a_death_there_loses_nothing(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    monkeypatch.setenv("RLPLAT_CRASH_AT", f"{point}:1:{victim}")
    with program(WORKLOAD) as driver:
        code, out, errors = driver.finish()
        assert victim.exists(), f"WORKLOAD never passes the crash point {point!r}: extend it"
        if int(victim.read_text()) == driver.pid:
            assert code == -9
        else:
            assert (code, out) == (0, "all right\n"), errors
        assert driver.is_all_gone(), driver.left_behind()
    assert os.listdir(tmp_path) == ["victim"]
