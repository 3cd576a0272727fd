"""What Linux tells of processes and of memory, read from /proc and the cgroup."""

from __future__ import annotations

import os
from pathlib import Path

from rlplat.runtime.core.node.liveness import Reading
from rlplat.runtime.core.node.memory_policy import Machine

FAKE_MEMORY = "RLPLAT_FAKE_MEMORY"
"""Names a file with "<used bytes> <total bytes>" that stands for the machine's memory (for tests)."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def reading(pid: int) -> Reading | None:
    """State and CPU time of a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return None
    return Reading((int(fields[11]) + int(fields[12])) / _TICKS, fields[0].decode())


def children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for thread in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        ]
    except OSError:
        return []


def private_bytes(pid: int) -> int:
    """Memory that a process and its descendants have to themselves: resident, less what is files and shared memory."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except OSError:
        return 0
    return max(0, resident - shared) * _PAGE + sum(map(private_bytes, children(pid)))


def machine_memory() -> Machine:
    """The fuller one of the machine and the cgroup of this process."""
    fake = os.environ.get(FAKE_MEMORY)
    if fake:
        used, total = map(int, Path(fake).read_text().split())
        return Machine(used, total, f"the machine ({FAKE_MEMORY})")
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    found = Machine(total - int(lines["MemAvailable"].split()[0]) * 1024, total)
    cgroup = _cgroup_memory()
    if cgroup is not None and cgroup.used * found.total > found.used * cgroup.total:
        return cgroup
    return found


def _cgroup_memory() -> Machine | None:
    """Usage (less page cache that can be dropped) and limit of this cgroup; None where there is no limit."""
    for folder, limit_name, usage_name, cache in _CGROUP_FILES:
        try:
            limit = int(Path(folder, limit_name).read_text())  # "max" is no number: no limit
            usage = int(Path(folder, usage_name).read_text())
            stat = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:
            return Machine(usage - int(stat.get(cache, 0)), limit, "the cgroup")
    return None


def _cgroup_files() -> list[tuple[str, str, str, str]]:
    """Where the limits of this process are: (folder, limit, usage, droppable cache) for cgroups v2 and v1."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            for folder in ("/sys/fs/cgroup" + path, "/sys/fs/cgroup"):
                found.append((folder, "memory.max", "memory.current", "inactive_file"))
        elif "memory" in kinds.split(","):
            for folder in ("/sys/fs/cgroup/memory" + path, "/sys/fs/cgroup/memory"):
                found.append(
                    (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                )
    return found


_CGROUP_FILES = _cgroup_files()
