"""What this process may use of the machine: CPUs and memory, with the limits of containers (Docker, Kubernetes, SLURM,
systemd slices), file descriptors, and paths of sockets. The one reader of control groups, version 1 and 2: a limit
counts wherever it stands, at the group of this process or at any above it.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
_MAX_ADDRESS_BYTES, _MAX_NAME_BYTES = 107, 40
"""Of the path of a Unix socket, in the kernel, and of its last part, here."""


@dataclass(frozen=True)
class GroupMemory:
    """Memory of a control group, in bytes."""

    used: int
    """Less page cache that can be dropped."""
    limit: int


def cpu_count() -> int:
    """CPUs that this process may use at once: those that it may run on, and no more than its quota, rounded up.

    `docker run --cpus=1.5`: 2.
    """
    quotas = [quota for folder in _groups("cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, min(len(os.sched_getaffinity(0)), *(math.ceil(quota - 1e-6) for quota in quotas), 1 << 30))


def memory_limit() -> int:
    """Bytes that all processes of this container may have in RAM, shared memory included; at most the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(group.limit for group in memory_groups())])


def memory_groups() -> list[GroupMemory]:
    """The control groups with a memory limit that this process is in."""
    return [found for folder in _groups("memory") if (found := _memory(folder)) is not None]


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the groups that this process is in, from its own up to the root.

    Where a container sees its own group as the root, the path in /proc names a folder that is not there.
    """
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            mounts = [ROOT, ROOT / "unified"]
        elif controller in kinds.split(","):
            mounts = [ROOT / kinds, ROOT / controller]
        else:
            continue
        for mount in mounts:
            if mount.is_dir():
                inside = Path(path.lstrip("/"))
                yield from (mount / part for part in (inside, *inside.parents))
                break


def _cpu_quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such group here, or "max"
        return None


def _memory(folder: Path) -> GroupMemory | None:
    for limit_name, usage_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((folder / limit_name).read_text())  # "max" is not a number: no limit
            usage = int((folder / usage_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:
            return GroupMemory(max(0, usage - int(stat.get(cache, 0))), limit)
    return None


# ---------------------------------------------------------------- file descriptors


def raise_file_limit() -> int:
    """Of this process and of what it starts: the usual soft limit of 1,024 is for other programs. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def has_descriptors(count: int) -> bool:
    """Whether so many are left: a new one gets the lowest number that is free."""
    try:
        number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(number)
    return number + count <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@contextmanager
def socket_folder(folder: str | os.PathLike[str]) -> Iterator[str]:
    """A path to the folder that is short enough for the Unix sockets in it, of this process alone, until the end of the
    block: where its own is too long, that of an open descriptor."""
    if len(os.fsencode(folder)) + 1 + _MAX_NAME_BYTES <= _MAX_ADDRESS_BYTES:
        yield os.fspath(folder)
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
