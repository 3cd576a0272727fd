"""The figures of a run, one record per iteration, to `metrics.jsonl`, `progress.csv` and TensorBoard.

    metrics = MetricsLog([JsonlWriter(run / "metrics.jsonl"), CsvWriter(run / "progress.csv")], warn=print)
    metrics.write({"iteration": 1, "env_steps": 1024, "episode_return_mean": None, "learner/loss": 0.3})

A record has at least `iteration env_steps wall_s env_steps_per_s episodes episode_return_mean episode_length_mean`;
further names are grouped (`learner/... rollout/... time/... eval/...`). A figure that does not exist yet, and one that
is not finite, is null in JSON and an empty field in CSV. A writer that fails (disk full) never stops the training: what
it dropped is counted, and it is tried again with the next record.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

Record = dict[str, Any]
"""Name -> number, or None."""
MAX_LINE_BYTES = 1 << 20
"""A longer line is not a record: it is skipped, and never wholly in memory."""


class MetricsWriter(Protocol):
    def write(self, record: Record) -> None:
        """Append one record; OSError when the disk refuses, and then nothing of it is in the file."""
        ...

    def close(self) -> None: ...


class MetricsLog:
    """Hands each record to every writer; a failing one is reported once and counted."""

    def __init__(self, writers: Sequence[MetricsWriter], warn: Callable[[str], None]) -> None:
        self._writers = list(writers)
        self._warn = warn
        self.dropped = 0
        """Records that some writer could not write."""

    def write(self, record: Record) -> None:
        for writer in self._writers:
            try:
                writer.write(record)
            except OSError as error:
                if not self.dropped:
                    self._warn(f"metrics: {error}; training continues, records that cannot be written are dropped")
                self.dropped += 1

    def close(self) -> None:
        for writer in self._writers:
            try:
                writer.close()
            except OSError:
                self.dropped += 1
        if self.dropped:
            self._warn(f"metrics: {self.dropped} records could not be written")


def finite_or_none(value: Any) -> Any:
    """NaN and infinities have no JSON spelling and mislead in a table; numpy scalars become plain numbers."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number_or_none(value: Any) -> float | None:
    """What a record has, where it is a finite number that a float can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= sys.float_info.max else None


class Appender:
    """Appends whole pieces: what could not be written entirely is taken back."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.lseek(self._descriptor, 0, os.SEEK_END)

    def append(self, data: bytes) -> None:
        try:
            written = os.pwrite(self._descriptor, data, self._size)
            if written < len(data):  # a full disk may take a part
                os.pwrite(self._descriptor, data[written:], self._size + written)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


class JsonlWriter:
    """One JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._file = Appender(path)

    def write(self, record: Record) -> None:
        self._file.append((json.dumps({name: finite_or_none(value) for name, value in record.items()}) + "\n").encode())

    def close(self) -> None:
        self._file.close()


class CsvWriter:
    """A table; when a new name appears (an evaluation, say), the file is written anew with one more column."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        if path.exists():
            self._columns = next(_csv_rows(path), [])
        self._file = Appender(path)

    def write(self, record: Record) -> None:
        new = [name for name in record if name not in self._columns]
        if new:
            self._widen(self._columns + new)
        self._file.append(_csv_line([_csv_field(record.get(name)) for name in self._columns]).encode())

    def _widen(self, columns: list[str]) -> None:
        rows: list[list[str]] = []
        if self._columns:
            rows = list(_csv_rows(self._path))[1:]
        missing = [""] * (len(columns) - len(self._columns))
        replace_file(self._path, "".join(_csv_line(row) for row in [columns, *([*row, *missing] for row in rows)]))
        self._file.close()
        self._file = Appender(self._path)
        self._columns = columns

    def close(self) -> None:
        self._file.close()


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """Of a damaged table those that can be read."""
    with contextlib.suppress(csv.Error), open(path, newline="", encoding="utf-8", errors="replace") as file:
        yield from csv.reader(file)


def _csv_field(value: Any) -> str:
    value = finite_or_none(value)
    return "" if value is None else str(value)


def _csv_line(fields: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)
    return text.getvalue()


def replace_file(path: Path, text: str) -> None:
    """Whole or not at all; OSError leaves the old one."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a metrics.jsonl; a half-written last line (the writer was killed) is left out."""
    records: list[Record] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    records.append(record)
    except FileNotFoundError:
        pass
    return records


def whole_lines(file: BinaryIO, start: int) -> Iterator[tuple[bytes | None, int]]:
    """(a line, the offset behind it) from an offset on, None for one that is too long; a half line at the end is left
    for the next time."""
    file.seek(start)
    end, is_long = start, False
    while text := file.readline(MAX_LINE_BYTES):
        end += len(text)
        if text.endswith(b"\n"):
            yield (None if is_long else text), end
            is_long = False
        elif len(text) < MAX_LINE_BYTES:
            return
        else:
            is_long = True


def last_record(path: Path) -> Record | None:
    """The last whole record of a metrics.jsonl, without reading all of a long one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16)))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    return None


def forget_after(directory: Path, env_steps: int) -> None:
    """Drop the records beyond `env_steps` from metrics.jsonl and progress.csv: a run that resumes from an older
    checkpoint goes through those steps again, and must not have them twice. The closing line of a run that had ended
    there repeats an iteration and goes as well: what follows is as if the run had never stopped."""
    jsonl, table = directory / "metrics.jsonl", directory / "progress.csv"
    records: list[Record] = []
    for record in read_records(jsonl):
        closes = "iteration" in record and bool(records) and record["iteration"] == records[-1].get("iteration")
        if record.get("env_steps", 0) <= env_steps and not closes:
            records.append(record)
    if jsonl.exists():
        replace_file(jsonl, "".join(json.dumps(record) + "\n" for record in records))
    if table.exists():
        columns = list(dict.fromkeys(name for record in records for name in record))
        lines = [_csv_line(columns)] if columns else []
        lines += [_csv_line([_csv_field(record.get(name)) for name in columns]) for record in records]
        replace_file(table, "".join(lines))
