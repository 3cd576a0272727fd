"""Processes of a cluster, found by a mark in their environment, which children inherit: a fork or `setsid` hides none.

MARK=<folder>        every process of a node carries its folder, every process of a job its own
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from rlplat import processes

NODE, JOB = "RLPLAT_CLUSTER_NODE", "RLPLAT_CLUSTER_JOB"
_LOOK_S = 0.2


def marked(name: str, folder: str) -> list[int]:
    """The process ids of this user whose environment has `name=folder`."""
    return sorted(processes.marked(f"{name}={folder}"))


def is_alive(pid: int, began: str | None) -> bool:
    return began is not None and processes.start_time(pid) == began


def end_all(name: str, folder: str, first: int | None, grace_s: float) -> bool:
    """SIGTERM to `first` and its process group, SIGKILL to all that carry the mark after `grace_s`; whether any did."""
    found = marked(name, folder)
    if first is not None and first in found:
        try:
            os.killpg(first, signal.SIGTERM)
        except OSError:
            _signal(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while marked(name, folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := marked(name, folder):  # those that were being forked meanwhile are in the next round
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    return bool(found)


def signal_all(name: str, folder: str, number: int) -> None:
    for pid in marked(name, folder):
        _signal(pid, number)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def ignore_user_signals() -> None:
    """In a child, before its program begins: SLURM sends SIGUSR1 and SIGUSR2 to every process of a job, and they are
    for the launcher. One that has no handler would die of them."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def exit_code_of(process: subprocess.Popen[bytes], meanwhile: Callable[[], None] = lambda: None) -> int:
    """Its exit code, once it has ended; `meanwhile` is called as long as it has not. It is looked at again and again: a
    signal that comes just before a wait without an end begins would be heard only after it."""
    while True:
        try:
            return process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            meanwhile()
