"""Named places where a test may have a process die (R22): `RLPLAT_CRASH_AT=<name>` in the environment kills it there.

`RLPLAT_CRASH_AT=<name>:<n>` waits for the n-th passage of each process. `RLPLAT_CRASH_AT=<name>:<n>:<file>` has one
process die and no other: the one that creates the file, in which it leaves its pid. tests/faults/test_crash_points.py
finds every call of `crash_point` in the code and kills at each.
"""

from __future__ import annotations

import os
import signal

_wanted, _count, _file = [*os.environ.get("RLPLAT_CRASH_AT", "").split(":", 2), "", ""][:3]
_left = int(_count or 1)


def crash_point(name: str) -> None:
    """SIGKILL for this process when the test asks for it here; else nothing."""
    global _left
    if _wanted == name:
        _left -= 1
        if not _left and _is_mine():
            os.kill(os.getpid(), signal.SIGKILL)


def _is_mine() -> bool:
    if not _file:
        return True
    try:
        file = os.open(_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    os.write(file, str(os.getpid()).encode())
    os.close(file)
    return True
