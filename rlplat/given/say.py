"""What rlplat itself writes on stderr: best effort, because what it tells of is handled with or without it.

User code may close `sys.stderr`, or set it to None, in the driver as in a worker; a disk or a pipe below it may be full
or gone. None of that is an error of the call, the message or the actor that a line is about.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


def write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def say(line: str) -> None:
    write(f"rlplat: {line}\n")


def say_traceback() -> None:
    """That of the exception that is being handled."""
    import traceback  # when it is needed: commands start without it

    write(traceback.format_exc())


@contextlib.contextmanager
def silenced(logger: str) -> Iterator[None]:
    """Without what a library logs there below errors, and without warnings."""
    import logging  # when it is needed, as above
    import warnings

    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def open_streams() -> None:
    """Of a process that began without some of them (`2>&-`): their numbers, the lowest that are free, would be those of
    the next files that it opens, and its children have none."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


class _Spared(io.FileIO):
    """What it takes no more is lost. (A pipe that nobody reads is for the program: `2>&1 | head`.)"""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return len(data)


def spare_stderr() -> None:
    """Whoever writes on it: a full disk below ends no program that is about something else."""
    theirs = sys.stderr
    if theirs is sys.__stderr__ and isinstance(theirs, io.TextIOWrapper):
        raw = _Spared(theirs.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), theirs.encoding, theirs.errors, line_buffering=True)


def flush() -> None:
    """What the user's code has printed, before the process ends."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
