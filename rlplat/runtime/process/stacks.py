"""Stacks of a process that cannot answer, because native code holds the GIL: faulthandler writes them on a signal.

arm() in each process of a cluster        an anonymous file for the text, and the handler
read_stacks(pid) in the command           sends the signal, reads the file through /proc
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time

from rlplat.processes import state_of

_SIGNAL = signal.SIGRTMAX - 3
_FILE = "rlplat-stacks"
_WAIT_S = 1.0

_descriptor: int | None = None
_pid = 0
"""Whose the descriptor is: a forked child has to arm itself."""


def arm() -> None:
    global _descriptor, _pid
    if _pid != os.getpid():
        if _descriptor is not None:
            os.close(_descriptor)
        _descriptor, _pid = os.memfd_create(_FILE, os.MFD_CLOEXEC), os.getpid()
        faulthandler.register(_SIGNAL, file=_descriptor, all_threads=True)


def disarm() -> None:
    global _descriptor, _pid
    if _descriptor is not None and _pid == os.getpid():
        _pid = 0
        faulthandler.unregister(_SIGNAL)
        os.close(_descriptor)
        _descriptor = None


def read_stacks(pid: int) -> str:
    """What faulthandler says of all its threads; "" when it is not armed, stopped or gone."""
    path = _file_of(pid)
    if path is None or state_of(pid) in ("", "T", "t", "Z"):
        return ""
    try:
        before = os.stat(path).st_size
        os.kill(pid, _SIGNAL)
        deadline = time.monotonic() + _WAIT_S
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            now = os.stat(path).st_size
            if now > before and now == size:
                break
            size = now
        with open(path, "rb") as file:
            file.seek(before)
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _file_of(pid: int) -> str | None:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            if os.readlink(f"{folder}/{name}").startswith(f"/memfd:{_FILE}"):
                return f"{folder}/{name}"
    except OSError:
        pass
    return None
