"""Waiting in tests: for a condition, with a limit, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(condition: Callable[[], object], within_s: float = 60) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
