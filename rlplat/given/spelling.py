"""Commands in hints are spelled as the user called this program: `./scripts/rlplat train --resume runs/a`."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

CALLED_AS = "RLPLAT_CALLED_AS"
"""The variable in which a script that starts `rlplat` says how it was called itself."""

_HINT = re.compile(
    r"(?<![\w./-])rlplat (?=(?:train|tune|evaluate|export|play|plot|record|serve|check-env|doctor|new|configs|settings|"
    r"runs|dashboard|track|status|list|logs|stack|timeline|memory|up|down|exec|attach|submit|jobs|rsync-up|rsync-down|"
    r"port-forward|start|stop|compare|bench|completion)\b)"
)


def spelled(text: str) -> str:
    """The text with every command in it as the user would have to type it."""
    return _HINT.sub(lambda _: f"{called_as()} ", text)


def called_as() -> str:
    """How the user calls this program: `rlplat`, `./scripts/rlplat`, `.venv/bin/rlplat`; from a program of their own
    `rlplat`."""
    called = os.environ.get(CALLED_AS) or sys.argv[0]
    path = Path(called)
    if path.name != "rlplat" or os.sep not in called:
        return "rlplat"
    found = shutil.which("rlplat")
    with contextlib.suppress(OSError):
        if found and os.path.samefile(found, called):
            return "rlplat"
    return shlex.quote(called)
