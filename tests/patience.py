"""Waiting in tests: for a condition, with a limit, instead of for a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from rlplat.runtime.refs import backend


def soon(condition: Callable[[], object], within_s: float = 60) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def dropped_generators_are_closed() -> bool:
    """Whether this process has told their workers of all generators that it has dropped."""
    gc.collect()
    client: Any = backend()
    with client.link.lock:
        return not client.streams.dropped
