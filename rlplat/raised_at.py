"""Where a user's own code raised: " (at app.py:12)", or the empty string where that is not known.

Own is what is neither ours nor a library's.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback

_OTHERS = (
    os.path.dirname(__file__) + os.sep,
    *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib")),
    "<",
)
"""Folders whose code is not the user's, and what has no file."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in ', re.MULTILINE)


def raised_here(error: BaseException) -> str:
    """In this process; where no frame is its own, the last one."""
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    return _place(frames) or _shown(frames[-1])


def raised_elsewhere(text: str) -> str:
    """text: the traceback of another process."""
    return _place(_FRAME.findall(text))


def _place(frames: list[tuple[str, str]]) -> str:
    own = [frame for frame in frames if not frame[0].startswith(_OTHERS)]
    return _shown(own[-1]) if own else ""


def _shown(frame: tuple[str, str]) -> str:
    return f" (at {frame[0]}:{frame[1]})"
