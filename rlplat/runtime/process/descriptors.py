"""File descriptors of this process: how many it may have, and whether some are left."""

from __future__ import annotations

import os
import resource


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
