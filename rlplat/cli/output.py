"""With `--json` a command prints JSON and nothing else, whatever the code that it runs prints.

with only_json():               # what environments, callbacks and C libraries print meanwhile goes to stderr
    print_json(report)          # the one thing that reaches stdout
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

_answers: list[TextIO] = []
"""Where JSON goes while stdout is stderr."""


@contextlib.contextmanager
def only_json(*, is_last: bool = False) -> Iterator[None]:
    """Standard output is standard error meanwhile, for this process, its children and the C libraries in it; only
    `print_json` still reaches the real one.

    is_last: the process ends after it, so nothing is put back: what is printed at exit stays out of the answer too.
    """
    stdout = sys.stdout
    stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no stdout: `>&-`
        kept = -1
    answer = os.fdopen(kept, "w", encoding="utf-8") if kept >= 0 and _is_descriptor_1(stdout) else stdout
    if kept >= 0:
        _redirect_to_stderr()
    sys.stdout = sys.stderr
    _answers.append(answer)
    try:
        yield
    finally:
        answer.flush()
        if not is_last:
            _answers.pop()
            sys.stdout = stdout
            if kept >= 0:
                ctypes.CDLL(None).fflush(None)  # what C's printf still holds was meant for stderr as well
                os.dup2(kept, 1)
                if answer is stdout:
                    os.close(kept)
                else:
                    answer.close()


def _is_descriptor_1(stream: TextIO) -> bool:
    """False for a notebook's or a test's."""
    try:
        return stream.fileno() == 1
    except (OSError, ValueError, AttributeError):
        return False


def _redirect_to_stderr() -> None:
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr: `2>&-`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def print_json(value: Any) -> None:
    """One JSON value, on stdout whatever `only_json` did to it; NaN and infinity, which JSON has not, are null."""
    stream = _answers[-1] if _answers else sys.stdout
    print(json.dumps(_finite(value), indent=2 if stream.isatty() else None, default=str), file=stream)
    stream.flush()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
