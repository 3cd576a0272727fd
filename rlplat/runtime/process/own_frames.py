"""Which frames of a stack are the runtime's own: by the folder of their file, this one and all below it.

A signal must not strike in them (`interrupts`), a traceback for the user begins behind them (`codec`), and a call site
is the first line that is none of them (`call_sites`).
"""

from __future__ import annotations

import os

from rlplat import runtime

FOLDER = os.path.dirname(os.path.abspath(runtime.__file__)) + os.sep
IMPORT_ROOT = os.path.dirname(os.path.dirname(FOLDER.rstrip(os.sep)))
"""Where `rlplat` is imported from: the checkout, or the site-packages."""


def is_own(filename: str) -> bool:
    """Whether the code of this file (`co_filename`) is the runtime's."""
    return filename.startswith(FOLDER)
