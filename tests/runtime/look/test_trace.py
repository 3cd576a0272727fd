"""Spans as a Chrome trace: pure."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rlplat.runtime.look.trace import to_trace
from tests.runtime.test_state import check_trace

SPANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 20)).map(
        lambda t: (t[0], 1e5 + t[1] / 1000, 1e5 + (t[1] + t[2]) / 1000)
    ),
    max_size=30,
)


@given(SPANS, SPANS)
def test_every_span_is_there_once_and_rows_nest(spans: list, waits: list) -> None:
    trace = to_trace({"w1": {"spans": spans, "waits": waits, "pid": 7}}, "rlplat 1")
    rows = check_trace(trace)
    events = [event for row in rows.values() for event in row]
    assert len(events) == len(spans) + len(waits)
    assert sum(event["cat"] == "wait" for event in events) == len(waits)
    for row in rows.values():
        calls = sorted((e["ts"], e["ts"] + e["dur"]) for e in row if e["cat"] == "call")
        assert all(before[1] <= after[0] + 1e-3 for before, after in itertools.pairwise(calls))
    assert sorted(event["dur"] for event in events) == sorted(
        round((ended - began) * 1e6, 3) for _, began, ended in [*spans, *waits]
    )


def test_a_wait_nests_in_its_call_and_calls_that_overlap_get_rows() -> None:
    wait = ("get", 1.2, 1.8)
    rows = check_trace(to_trace({"w1": {"spans": [("f", 1.0, 2.0)], "waits": [wait], "pid": 7}}, ""))
    assert [event["name"] for event in rows[1]] == ["f", "get"]
    overlapping = [("f", 1.0, 2.0), ("g", 1.5, 2.5), ("h", 2.5, 3.0)]
    trace = to_trace({"w1 A": {"spans": overlapping, "waits": [], "pid": 7}}, "")
    assert {tid: [event["name"] for event in row] for tid, row in check_trace(trace).items()} == {
        1: ["f", "h"],
        2: ["g"],
    }
    nested_by_chance = [("f", 1.0, 2.0), ("g", 1.2, 1.8)]
    assert len(check_trace(to_trace({"w1": {"spans": nested_by_chance, "waits": [], "pid": 7}}, ""))) == 2
    titles = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert titles == ["w1 A", "w1 A (2)"]
    assert min(event["ts"] for row in check_trace(trace).values() for event in row) == 0


def test_no_spans_is_a_trace_too() -> None:
    assert to_trace({}, "rlplat 1")["traceEvents"][0]["args"] == {"name": "rlplat 1"}
