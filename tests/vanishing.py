"""A process whose machine vanishes (a power cut, a pulled cable), for tests: packets to it just stay unanswered."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct

SO_ATTACH_FILTER = 26
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""In BPF's words: return 0, that is keep nothing of the packet."""


def deafen(descriptor: int) -> None:
    """The kernel drops whatever comes to this TCP socket, before it would acknowledge it."""
    with socket.socket(fileno=os.dup(descriptor)) as pipe:
        pipe.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
        )


def vanish(port: int) -> None:
    """This process stops for good, and nothing that comes from this port of a server is acknowledged any more."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as pipe:
                if pipe.family == socket.AF_INET and pipe.getpeername()[1] == port:
                    deafen(pipe.fileno())
        except OSError:
            pass  # no socket, or not connected
    os.kill(os.getpid(), signal.SIGSTOP)
