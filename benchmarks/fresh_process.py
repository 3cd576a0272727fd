"""Rows that need an interpreter of their own: import, `init` to the first result, idle memory, shutdown."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.measure import ROOT, Sample
from benchmarks.process_memory import descendants, num_threads, pss_mib
from benchmarks.runtime_peers import NUM_CPUS, RAY_ENVIRONMENT, RAY_OPTIONS

IMPORT = "`import`, ms"
MODULES = "`import`: modules loaded"
INIT = "`init` to first result / whole process, ms"
IDLE = "idle: PSS MiB / processes / threads"
SHUTDOWN = "shutdown, ms"
QUEUED = "driver RSS with 100,000 queued tasks, MiB"

_MODULE = {"rlplat": "rlplat", "ray": "ray", "pool": "concurrent.futures.process"}

_IMPORT = """\
import sys, time
before, started = len(sys.modules), time.perf_counter()
import {module}
print((time.perf_counter() - started) * 1e3, len(sys.modules) - before)
"""

_VERBS = """\
import time
import {name}
started = time.perf_counter()
{name}.init(num_cpus={num_cpus}{options})
@{name}.remote
def first():
    return 1
{name}.get(first.remote())
print((time.perf_counter() - started) * 1e3, flush=True)
{idle}
started = time.perf_counter()
{name}.shutdown()
print((time.perf_counter() - started) * 1e3)
"""

_QUEUED = """\
import os, time
import {name}
{name}.init(num_cpus=1{options})
@{name}.remote
def slow():
    time.sleep(0.01)
{name}.get(slow.remote())
refs = [slow.remote() for _ in range({count})]
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, flush=True)
{name}.shutdown()
"""

_BARE = "import zmq, numpy, msgspec"
"""What a start of rlplat cannot do without, and nothing else: the figure of the peer `zmq` in the row INIT."""

_POOL = """\
import time
from concurrent.futures import ProcessPoolExecutor
started = time.perf_counter()
pool = ProcessPoolExecutor({num_cpus})
pool.submit(abs, -1).result()
print((time.perf_counter() - started) * 1e3, flush=True)
{idle}
started = time.perf_counter()
pool.shutdown()
print((time.perf_counter() - started) * 1e3)
"""


def measure(peer: str, settle_s: float) -> list[Sample]:
    """One repeat of every row. settle_s: how long the idle cluster is left alone before its memory is read."""
    if peer == "zmq":
        started = time.perf_counter()
        _finish(_start(_BARE))
        return [Sample(peer, INIT, "first result", "ms", (time.perf_counter() - started) * 1e3)]
    _finish(_start(_program(peer, idle="")))  # compiles what has no bytecode
    import_ms, num_modules = map(float, _finish(_start(_IMPORT.format(module=_MODULE[peer]))).split())
    started = time.perf_counter()
    first_ms, shutdown_ms = map(float, _finish(_start(_program(peer, idle=""))).split())
    whole_ms = (time.perf_counter() - started) * 1e3
    idle = _start(_program(peer, idle="input()"))
    assert idle.stdout is not None
    idle.stdout.readline()
    time.sleep(settle_s)
    pids = descendants(idle.pid)
    figures = {"PSS MiB": pss_mib(pids), "processes": float(len(pids)), "threads": float(num_threads(pids))}
    _finish(idle, "\n")
    queued = []
    if peer != "pool":
        count = 1000 if settle_s < 1 else 100_000
        program = _QUEUED.format(name=peer, options=_options(peer), count=count)
        queued = [Sample(peer, QUEUED, "", "MiB", float(_finish(_start(program))))]
    return [
        *queued,
        Sample(peer, IMPORT, "", "ms", import_ms),
        Sample(peer, MODULES, "", "modules", num_modules),
        Sample(peer, INIT, "first result", "ms", first_ms),
        Sample(peer, INIT, "whole process", "ms", whole_ms),
        *(Sample(peer, IDLE, part, part, value) for part, value in figures.items()),
        Sample(peer, SHUTDOWN, "", "ms", shutdown_ms),
    ]


def _program(peer: str, idle: str) -> str:
    if peer == "pool":
        return _POOL.format(num_cpus=NUM_CPUS, idle=idle)
    return _VERBS.format(name=peer, num_cpus=NUM_CPUS, options=_options(peer), idle=idle)


def _options(peer: str) -> str:
    return "".join(f", {key}={value!r}" for key, value in RAY_OPTIONS.items()) if peer == "ray" else ""


def _start(program: str) -> subprocess.Popen[str]:
    """With bytecode, as packages that were installed have it."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**environment, **RAY_ENVIRONMENT},
    )


def _finish(process: subprocess.Popen[str], line: str = "") -> str:
    out, _ = process.communicate(line, timeout=120)
    if process.returncode:
        raise RuntimeError(f"a fresh interpreter failed with exit code {process.returncode}; see its message above")
    return out
