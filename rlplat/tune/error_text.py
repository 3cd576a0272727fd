"""Errors of trials in a few words; whole they are in `Trial.error`."""

from __future__ import annotations

import re


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
