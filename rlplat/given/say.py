"""What rlplat itself writes on stderr: best effort, because what it tells of is handled with or without it.

User code may close `sys.stderr`, or set it to None, in the driver as in a worker; a disk or a pipe below it may be full
or gone. None of that is an error of the call, the message or the actor that a line is about.
"""

from __future__ import annotations

import contextlib
import sys
import traceback


def write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def say(line: str) -> None:
    write(f"rlplat: {line}\n")


def say_traceback() -> None:
    """That of the exception that is being handled."""
    write(traceback.format_exc())


def flush() -> None:
    """What the user's code has printed, before the process ends."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
