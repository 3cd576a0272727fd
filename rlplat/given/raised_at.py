"""Where a user's own code raised: " (at app.py:12)", or the empty string where that is not known.

Own is what is neither ours nor a library's.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback

_OURS = (os.path.dirname(os.path.dirname(__file__)) + os.sep, "<")
_OTHERS = (*_OURS, *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib")))
"""Folders whose code is not the user's, and what has no file."""
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in ', re.MULTILINE)


def raised_here(error: BaseException) -> str:
    """In this process; where no frame is its own, the library's that raised, but for gymnasium.make: what it complains
    of is not there."""
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    inner = [frame for frame in frames[-1:] if not frame[0].endswith("gymnasium/envs/registration.py")]
    return _place(frames) or _place(inner, _OURS)


def raised_elsewhere(text: str) -> str:
    """text: the traceback of another process."""
    return _place(_FRAME.findall(text))


def _place(frames: list[tuple[str, str]], others: tuple[str, ...] = _OTHERS) -> str:
    """Of the innermost frame that lies in none of `others`."""
    own = [frame for frame in frames if not frame[0].startswith(others)]
    return " (at {}:{})".format(*own[-1]) if own else ""
