"""Spans of calls as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure: data in, data out.

Format: the JSON object form of Chrome's trace events; a row ("thread") for each worker, complete events ("X") in µs.
Events of one row must nest. Waits nest in calls; calls that overlap (threads, coroutines) get rows of their own, for no
call of a worker runs inside of another.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

Span = Sequence[Any]
"""(name, began, ended), seconds of a clock that all processes share."""


def to_trace(rows: dict[str, dict[str, Any]], process_name: str) -> dict[str, Any]:
    """`rows`: title -> {"spans": calls, "waits": waits, "pid": of the process}. Time starts with the first span."""
    every = [span for row in rows.values() for span in (*row["spans"], *row["waits"])]
    origin = min((span[1] for span in every), default=0.0)
    events: list[dict[str, Any]] = [_name("process_name", process_name, 0)]
    tid = 0
    for title, row in rows.items():
        for number, track in enumerate(_tracks(row["spans"], row["waits"])):
            tid += 1
            events.append(_name("thread_name", title if not number else f"{title} ({number + 1})", tid))
            events.append({"ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})
            for began, ended, name, category in track:
                events.append(
                    {
                        "ph": "X",
                        "pid": 1,
                        "tid": tid,
                        "name": name,
                        "cat": category,
                        "ts": round((began - origin) * 1e6, 3),
                        "dur": round((ended - began) * 1e6, 3),
                        "args": {"process": row["pid"]},
                    }
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(what: str, name: str, tid: int) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": name}}


def _tracks(calls: Sequence[Span], waits: Sequence[Span]) -> list[list[tuple[float, float, str, str]]]:
    """As few rows as needed."""
    rows: list[_Track] = []
    for category, spans in (("call", calls), ("wait", waits)):
        for name, began, ended in sorted(spans, key=lambda span: (span[1], span[2])):
            row = next((row for row in rows if row.has_room(began, ended, category)), None)
            if row is None:
                rows.append(row := _Track())
            row.add((began, ended, name, category))
    return [row.spans for row in rows] or [[]]


class _Track:
    def __init__(self) -> None:
        self.spans: list[tuple[float, float, str, str]] = []
        self._calls: list[tuple[float, float]] = []
        self._busy_until = {"call": 0.0, "wait": 0.0}

    def add(self, span: tuple[float, float, str, str]) -> None:
        began, ended, _, category = span
        self.spans.append(span)
        self._busy_until[category] = ended
        if category == "call":
            self._calls.append((began, ended))

    def has_room(self, began: float, ended: float, category: str) -> bool:
        """For a span that begins no earlier than those of its category that are here."""
        if began < self._busy_until[category]:
            return False
        if category == "call":
            return True
        index = bisect.bisect_right(self._calls, began, key=lambda call: call[0])
        is_inside = index > 0 and ended <= self._calls[index - 1][1]
        is_between = (index == 0 or self._calls[index - 1][1] <= began) and (
            index == len(self._calls) or ended <= self._calls[index][0]
        )
        return is_inside or is_between
