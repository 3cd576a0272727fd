"""A metrics file, read from a cursor: of a file that grows only the new lines are read again.

    first = read_since(path)                      # everything that is there
    later = read_since(path, first.cursor)        # what came since; `reset` if the file is another one or was cut

A resume cuts the lines behind its checkpoint, so a file may shrink, and a line may be half written: a half line is left
for the next time, one that is not a JSON object is skipped and counted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rlplat.metrics import number_or_none, whole_lines

MAX_KEPT_BYTES = 16 << 20
"""Of the lines whose rows one reading keeps. Of a larger file it keeps every second row, every fourth, ..."""


@dataclass(frozen=True)
class Cursor:
    """Where reading stopped: `inode:offset` as text. An offset is always the beginning of a line."""

    inode: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.inode}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Of what `str` gave; the beginning for anything else."""
        inode, _, offset = text.partition(":")
        return cls(int(inode), int(offset)) if inode.isdecimal() and offset.isdecimal() else cls()


@dataclass
class Records:
    cursor: Cursor
    rows: list[dict[str, Any]] = field(default_factory=list)
    reset: bool = False
    """Whether these are all rows of the file, not those after the cursor that was given."""
    skipped: int = 0
    """Lines that are not a JSON object, or too long."""


def read_since(path: Path, since: Cursor | None = None) -> Records:
    """The records after a cursor; all of them where there is none, or where the file is no longer what it was."""
    since = since or Cursor()
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            reset = since.offset == 0 or since.inode != status.st_ino or since.offset > status.st_size
            start = 0 if reset else since.offset
            if start:
                file.seek(start - 1)
                if file.read(1) != b"\n":  # cut and grown again: the lines are others
                    reset, start = True, 0
            records = Records(Cursor(status.st_ino, start), reset=reset)
            kept = _Kept()
            for line, end in whole_lines(file, start):
                row = None if line is None else _decode(line)
                if row is None:
                    records.skipped += 1
                else:
                    kept.add(row, len(line or b""))
                records.cursor = Cursor(status.st_ino, end)
    except FileNotFoundError:
        return Records(Cursor(), reset=True)
    records.rows = kept.rows
    return records


class _Kept:
    """Rows of at most MAX_KEPT_BYTES, evenly spread over all that came, the last among them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._rows: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._num_bytes = self._num_seen = 0
        self._every = 1

    def add(self, row: dict[str, Any], num_bytes: int) -> None:
        self._last = row
        if self._num_seen % self._every == 0:
            self._rows.append(row)
            self._sizes.append(num_bytes)
            self._num_bytes += num_bytes
            self._last = None
        self._num_seen += 1
        while self._num_bytes > MAX_KEPT_BYTES and len(self._rows) > 1:
            self._rows, self._sizes, self._every = self._rows[::2], self._sizes[::2], 2 * self._every
            self._num_bytes = sum(self._sizes)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self._rows if self._last is None else [*self._rows, self._last]


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def columns(rows: list[dict[str, Any]], names: list[str] | None = None) -> dict[str, list[float | None]]:
    """name -> one number a row, None where a row has none. names: only these; None: all that any row has."""
    wanted = list(dict.fromkeys(name for row in rows for name in row)) if names is None else names
    return {name: [number_or_none(row.get(name)) for row in rows] for name in wanted}


def thinned(rows: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """At most `limit` rows in even steps, the last one always among them; rows with an evaluation stay all."""
    if limit < 1 or len(rows) <= limit:
        return rows
    step = (len(rows) - 1) / max(1, limit - 1)
    kept = {round(index * step) for index in range(limit)}
    return [row for index, row in enumerate(rows) if index in kept or "eval/return_mean" in row]
