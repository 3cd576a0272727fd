"""Named places where a test may have a process die (R22): `RLPLAT_CRASH_AT=<name>` in the environment kills it there.

`RLPLAT_CRASH_AT=<name>:<n>` waits for the n-th passage. tests/faults/test_crash_points.py finds every call of
`crash_point` in the code and kills at each.
"""

from __future__ import annotations

import os
import signal

_wanted, _, _count = os.environ.get("RLPLAT_CRASH_AT", "").partition(":")
_left = int(_count or 1)


def crash_point(name: str) -> None:
    """SIGKILL for this process when the test asks for it here; else nothing."""
    global _left
    if _wanted == name:
        _left -= 1
        if not _left:
            os.kill(os.getpid(), signal.SIGKILL)
