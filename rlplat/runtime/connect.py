"""The backend of this process: the one that it is connected to, or a private cluster that is started on first use."""

from __future__ import annotations

from typing import Any

from rlplat.runtime import refs


def connected() -> Any:
    """The backend; starts a private cluster on first use, as Ray does."""
    current = refs.connection()
    if current is None:
        if refs.is_forked():
            return refs.backend()  # raises, and says why
        from rlplat.runtime.api import init

        init()
        current = refs.connection()
    return current
