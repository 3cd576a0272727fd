"""Errors of trials in a few words; whole they are in `Trial.error`."""

from __future__ import annotations

import re

from rlplat.errors import ActorDied


def first_line(text: str) -> str:
    """That says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def in_few_lines(error: str) -> str:
    """What was raised, and where in the user's code: of an error with its traceback."""
    frames = re.findall(r'^ *File "([^"]+)", line (\d+), in (.+)$', error, re.MULTILINE)
    places = [
        f"  in {file}:{line}, {name}"
        for file, line, name in frames
        if not re.search("/rlplat/(tune|runtime|rl)/", file)
    ]
    return "\n".join([first_line(error), *places[-3:]])


def last_line(text: str) -> str:
    """Of a traceback: what was raised."""
    return text.strip().rsplit("\n", 1)[-1]


def remote_text(error: BaseException) -> str:
    """What user code raised, with its traceback; or how the process died."""
    cause = getattr(error, "cause", None) or error.__cause__
    if cause is not None:
        return f"{type(cause).__name__}: {cause}\n{error}"
    if isinstance(error, ActorDied):  # which call of which actor it was says nothing to the user
        return f"its process died: {str(error).rpartition(' died: ')[2]}"
    notes = getattr(error, "__notes__", ())  # of an error of ours that user code raised: where
    return "\n".join([f"{type(error).__name__}: {error}" if notes else str(error), *notes])
