"""Spans of calls as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure: data in, data out.

Format: the JSON object form of Chrome's trace events; a row ("thread") for each worker, complete events ("X") in µs.
Events of one row must nest: calls that overlap otherwise (threads, coroutines) get rows of their own.
"""

from __future__ import annotations

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
        calls = [(span[1], span[2], span[0], "call") for span in row["spans"]]
        waits = [(span[1], span[2], span[0], "wait") for span in row["waits"]]
        for number, track in enumerate(_tracks(calls + waits)):
            tid += 1
            events.append(_name("thread_name", title if not number else f"{title} ({number + 1})", tid))
            events.append(
                {"ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
            )
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


def _tracks(spans: list[tuple[float, float, str, str]]) -> list[list[tuple[float, float, str, str]]]:
    """As few rows as needed, each with spans that nest or follow one another."""
    tracks: list[list[tuple[float, float, str, str]]] = []
    open_ends: list[list[float]] = []
    for span in sorted(spans, key=lambda each: (each[0], -each[1])):
        began, ended = span[0], span[1]
        for ends in open_ends:
            while ends and ends[-1] <= began:
                ends.pop()
        fitting = (number for number, ends in enumerate(open_ends) if not ends or ended <= ends[-1])
        number = next(fitting, len(tracks))
        if number == len(tracks):
            tracks.append([])
            open_ends.append([])
        tracks[number].append(span)
        open_ends[number].append(ended)
    return tracks or [[]]
