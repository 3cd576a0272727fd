"""A process that user code forked from a worker and that comes back from it: it ends there, as at the end of a program.

It would go on as the worker that it is a copy of, with its sockets, for ever.
"""

from __future__ import annotations

import os
import sys
import traceback

_worker = 0


def set_worker() -> None:
    """This process."""
    global _worker
    _worker = os.getpid()


def end_if_forked(error: BaseException | None = None) -> None:
    """error: what came out of the user's code."""
    if not _worker or os.getpid() == _worker:
        return
    status = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)
