"""Which rows of a metrics.jsonl come next, whatever happened to the file since.

The place is not an offset alone but the line that was copied last, known by its digest: a run that is resumed writes
the file again without the lines behind its checkpoint. Where that line is still in the file, the rows after it are new;
where it is not, the run has taken back what was copied already (`TakenBack`).

The closing line of a finished run repeats the last iteration with the final evaluation. Only the evaluation is new, and
a resume removes that line again: so it never counts as the place.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rlplat.metrics import number_or_none, whole_lines

MOST_ROWS = 500
"""Of one `Rows`."""


class TakenBack(Exception):
    """The line that was copied last is no longer in the file."""


@dataclass(frozen=True)
class Row:
    """One record for a tracker."""

    env_steps: int
    """The x axis; grows from row to row, but for a closing row."""
    wall_s: float
    values: dict[str, float]
    """Name -> finite number. What a record has as null, text, NaN or infinity is absent."""
    is_closing: bool = False
    """The evaluation at the end of a run, at the env steps of the row before."""

    def step_of(self, name: str) -> int:
        """Where a value belongs: an evaluation's at the env steps of the weights that it played."""
        of_weights = self.values.get("eval/env_steps") if name.startswith("eval/") else None
        return self.env_steps if of_weights is None else int(of_weights)


@dataclass(frozen=True)
class Place:
    """The line copied last, none for the beginning; as plain numbers and texts, for a file."""

    start: int = 0
    end: int = 0
    digest: str = ""
    iteration: int = 0
    env_steps: int = 0
    has_closed: bool = False
    """Whether the closing line after it is copied as well."""


@dataclass
class Rows:
    rows: list[Row]
    place: Place
    """After these rows."""
    skipped: int = 0
    """Lines that are no record: half JSON, too long, out of order."""
    is_end: bool = True
    """Whether nothing follows by now."""


def read_rows(path: Path, place: Place, most: int = MOST_ROWS) -> Rows:
    """The rows after `place`, `most` at a time; TakenBack where the place is gone. No file: no rows."""
    found = Rows([], place)
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return found
    with file:
        if place.digest:
            place = found.place = _found_again(file, place)
        end = place.end
        for text, behind in whole_lines(file, end):
            start, end = end, behind
            record = _record(text)
            if record is None or record["iteration"] < place.iteration:
                found.skipped += 1
                continue
            if record["iteration"] == place.iteration and place.digest:
                if not place.has_closed:
                    found.rows.append(_row(record, is_closing=True))
                    place = found.place = replace(place, has_closed=True)
                continue
            place = Place(start, end, _digest(text), record["iteration"], record["env_steps"])
            found.rows.append(_row(record))
            found.place = place
            if len(found.rows) >= most:
                found.is_end = False
                break
    return found


def _found_again(file: BinaryIO, place: Place) -> Place:
    file.seek(place.start)
    if _digest(file.read(place.end - place.start)) == place.digest:
        return place
    start = 0
    for text, end in whole_lines(file, 0):
        if text is not None and _digest(text) == place.digest:
            return replace(place, start=start, end=end)
        start = end
    raise TakenBack


def _digest(text: bytes | None) -> str:
    return hashlib.sha256(text or b"").hexdigest()[:32]


def _record(line: bytes | None) -> dict[str, Any] | None:
    try:
        record = json.loads(line or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(_is_count(record.get(key)) for key in ("iteration", "env_steps")):
        return None
    return record


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _row(record: dict[str, Any], is_closing: bool = False) -> Row:
    numbers = {name: number_or_none(value) for name, value in record.items()}
    values = {
        name: value
        for name, value in numbers.items()
        if value is not None and (not is_closing or name.startswith("eval/"))
    }
    return Row(record["env_steps"], float(numbers.get("wall_s") or 0.0), values, is_closing)
