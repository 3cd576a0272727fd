"""Long lines on a terminal are folded between words, and a command at the end of one is on a line of its own."""

from __future__ import annotations

import os
import re
import textwrap
from typing import TextIO

_COMMAND = re.compile(r"[:;] (?=(?:\S*/)?rlplat [a-z-]+ \S[^,;]*$|python -m rlplat\.cli )")
_LEAST_COLUMNS = 40


def folded(text: str, width: int) -> str:
    """The text in lines of at most `width` cells; what has no blank stays whole, as does the command, to be copied."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        found = _COMMAND.search(line)
        said, command = (line[: found.start() + 1], line[found.end() :]) if found else (line, "")
        lines += textwrap.wrap(said, width, break_long_words=False, break_on_hyphens=False) or [said]
        if command:
            lines.append(f"  {command}")
    return "\n".join(lines)


def for_stream(text: str, stream: TextIO) -> str:
    """`folded` where the stream is a terminal of a known width, else the text as it is."""
    try:
        width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        width = 0
    return folded(text, width) if width >= _LEAST_COLUMNS else text
