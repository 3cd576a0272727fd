"""What Linux tells of processes and of memory, read from /proc and the cgroup."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from rlplat import machine_limits
from rlplat.runtime.core.node.liveness import Reading
from rlplat.runtime.core.node.memory_policy import Machine

FAKE_MEMORY = "RLPLAT_FAKE_MEMORY"
"""Names a file with "<used bytes> <total bytes>" that stands for the machine's memory (for tests)."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def reading(pid: int, of_threads: bool = False) -> Reading | None:
    """State and CPU time of a process; None when it is gone. `of_threads`: the state D of any of them counts."""
    fields = _stat(f"/proc/{pid}")
    if not fields:
        return None
    state = fields[0].decode()
    if of_threads and state == "S":
        folder = f"/proc/{pid}/task"
        with contextlib.suppress(OSError):  # it ends just now
            if any(_stat(f"{folder}/{thread}")[:1] == [b"D"] for thread in os.listdir(folder)):
                state = "D"
    return Reading((int(fields[11]) + int(fields[12])) / _TICKS, state)


def _stat(folder: str) -> list[bytes]:
    """The fields from the state on; none when it is gone."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return []


def usage(pid: int) -> dict[str, Any]:
    """What people are shown of a process."""
    fields = _stat(f"/proc/{pid}") or [b"", *[b"0"] * 21]
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
    return {"pid": pid, "kernel_state": fields[0].decode(), "rss_bytes": int(fields[21]) * _PAGE, "cpu_s": cpu_s}


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for thread in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        ]
    except OSError:
        return []


def own_bytes(pid: int, limit: int = 0) -> int:
    """Memory that a process and its descendants have to themselves. What they share with the zygote (`preload`) counts
    in part, where it would matter to a limit: the kernel's exact figure takes a walk over all pages."""
    size = _private_bytes(pid)
    return _anonymous_bytes(pid) if limit and size > limit else size


def _anonymous_bytes(pid: int) -> int:
    """A page that a fork has not written to since is divided among those that have it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
    except (OSError, StopIteration):  # it has ended, or the kernel has no such file
        return _private_bytes(pid)
    return own + sum(map(_anonymous_bytes, children(pid)))


def _private_bytes(pid: int) -> int:
    """Resident, less what is files and shared memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except OSError:
        return 0
    return max(0, resident - shared) * _PAGE + sum(map(_private_bytes, children(pid)))


def machine_memory() -> Machine:
    """The fullest one of the machine and the control groups of this process."""
    fake = os.environ.get(FAKE_MEMORY)
    if fake:
        used, total = map(int, Path(fake).read_text().split())
        return Machine(used, total, f"the machine ({FAKE_MEMORY})")
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    found = Machine(total - int(lines["MemAvailable"].split()[0]) * 1024, total)
    groups = (Machine(group.used, group.limit, "the cgroup") for group in machine_limits.memory_groups())
    return max((found, *groups), key=lambda memory: memory.used / memory.total)
