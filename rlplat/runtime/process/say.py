"""A line of the runtime's own on stderr: best effort, because what it tells of must be handled with or without it."""

from __future__ import annotations

import contextlib
import sys


def say(line: str) -> None:
    """Print "rlplat: `line`". A stderr that is closed, gone or full (a pager, a daemon, a notebook) changes nothing."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"rlplat: {line}\n")
        sys.stderr.flush()
