"""The last calls of a process: which are kept, and in what."""

from __future__ import annotations

from rlplat.runtime.process.spans import Spans


def test_the_last_spans_come_back_as_they_were() -> None:
    spans = Spans(1000)
    for number in range(5678):
        spans.append((f"call {number % 3}", number + 0.25, number + 0.5))
        if number % 7 == 0:
            spans.pack()
    expected = [(f"call {number % 3}", number + 0.25, number + 0.5) for number in range(5678)]
    assert spans.last() == expected[-1000:]
    assert spans.last(3) == expected[-3:]
    assert spans.last(0) == []
    assert Spans(10).last() == []


def test_what_is_kept_is_packed_and_has_an_end() -> None:
    spans = Spans(1000)
    for number in range(10_000):
        spans.append(("a call" + str(number % 2), float(number), float(number)))
        spans.pack()
        assert len(spans._recent) < 250
    assert sum(len(names) for names, _ in spans._packed) == 1000
    assert all(len({id(name) for name in names}) == 2 for names, _ in spans._packed), "names are not shared"


def test_without_packing_there_is_an_end_too() -> None:
    spans = Spans(500)
    for number in range(2000):
        spans.append(("a call", float(number), float(number)))
    assert len(spans._recent) == len(spans.last()) == 500
