"""What processes of the runtime print, taken off the terminal on which a table is drawn.

The node shares stderr with the driver. Started within `inherited`, it has a pipe there instead, and never waits for it:

    output = ChildOutput()
    with output.inherited():
        rlplat.init()
    for line in output.lines(): ...        # now and then
    print(output.close())                  # after rlplat.shutdown(): what is left
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_READ_BYTES = 1 << 16
_MOST_READ_BYTES = 1 << 20
"""At a time: a trial that prints without end must not hold up the experiment."""


class ChildOutput:
    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._rest = b""

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes that are started within have the pipe as their stderr."""
        sys.stderr.flush()
        kept = fcntl.fcntl(_STDERR, fcntl.F_DUPFD_CLOEXEC, 3)
        os.dup2(self._write, _STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STDERR)
            os.close(kept)

    def lines(self) -> list[str]:
        """Whole lines that have come since."""
        data = bytearray()
        while len(data) < _MOST_READ_BYTES:
            try:
                piece = os.read(self._read, _READ_BYTES)
            except BlockingIOError:
                break
            if not piece:
                break
            data += piece
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace").rpartition("\r")[2] for line in lines]

    def close(self) -> str:
        """The text that is left."""
        lines = self.lines()
        os.close(self._read)
        os.close(self._write)
        return "\n".join([*lines, *([self._rest.decode(errors="replace")] if self._rest else [])])
