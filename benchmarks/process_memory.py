"""Processes and their memory, from /proc. PSS counts a page shared by n processes as 1/n in each: sums are honest."""

from __future__ import annotations

import os
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """The process and everything below it."""
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                queue += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
        except OSError:  # ended meanwhile
            continue
    return found


def pss_mib(pids: list[int]) -> float:
    """Proportional set size of the processes together, MiB."""
    total_kib = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
        except OSError:
            continue
    return total_kib / 1024


def private_kib(pid: int) -> int:
    """What this process alone has written to, KiB; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def num_threads(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total
