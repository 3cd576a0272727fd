"""The backend of this process: the one that it is connected to, or a private cluster that is started on first use."""

from __future__ import annotations

from typing import Any

from rlplat.runtime import refs


def connected() -> Any:
    """The backend; starts a private cluster on first use, as Ray does."""
    current = refs._backend
    if current is None:
        if refs._forked_from:
            return refs.backend()  # raises, and says why
        from rlplat.runtime.api import init

        init()
        current = refs._backend
    return current
