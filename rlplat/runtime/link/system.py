"""What a process of the cluster asks of its machine: the time, sockets, sleep and waking, its own end.

The parts are given one, and ask nowhere else: the simulator gives them its own, where the clock jumps.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from rlplat.runtime.link.transport import sockets


class Bell:
    """Wakes a thread that polls `fd`, from any other."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        """Until it rings again, `fd` has nothing to read."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class System:
    clock: Callable[[], float] = time.monotonic
    """Seconds, the same in all processes of a machine; never set back."""
    sleep: Callable[[float], None] = time.sleep
    sockets: Callable[[], Any] = sockets
    """Makes what a `Transport` has its socket from."""
    poller: Callable[[], Any] = select.poll
    bell: Callable[[], Any] = Bell
    thread: Callable[..., Any] = threading.Thread
    """Of the background thread of a process."""
    pid: Callable[[], int] = os.getpid
    exit: Callable[[int], NoReturn] = os._exit
    """Ends the process at once."""


SYSTEM = System()
"""The real one."""
