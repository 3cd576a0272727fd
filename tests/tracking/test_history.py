"""Which rows come next: each once, whatever is appended, cut, damaged or written again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.metrics import MAX_LINE_BYTES, forget_after, whole_lines
from rlplat.tracking import history
from rlplat.tracking.history import Place, Row, TakenBack, read_rows

BAD = [
    b"",
    b"half",
    b"[1]",
    b"\xff\xfe",
    b'"text"',
    b"[" * 3000,
    b'{"iteration": true, "env_steps": 1}',
    b"{}",
]


def line(iteration: int, **more: Any) -> bytes:
    return json.dumps({"iteration": iteration, "env_steps": 10 * iteration, "wall_s": 0.5, **more}).encode()


def all_rows(path: Path, place: Place, most: int = 500) -> tuple[list[Row], Place]:
    rows: list[Row] = []
    while True:
        found = read_rows(path, place, most)
        rows, place = rows + found.rows, found.place
        if found.is_end:
            return rows, place


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_row_comes_once_whatever_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    good = data.draw(st.integers(0, 12))
    lines = [line(i + 1, **data.draw(st.dictionaries(st.sampled_from("abc"), st.floats()))) for i in range(good)]
    for bad in data.draw(st.lists(st.sampled_from(BAD), max_size=4)):
        lines.insert(data.draw(st.integers(0, len(lines))), bad)
    text = b"".join(each + b"\n" for each in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    rows: list[Row] = []
    place = Place()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        with open(path, "ab") as file:
            file.write(text[start:end])
        new, place = all_rows(path, place, most=data.draw(st.sampled_from([1, 2, 500])))
        rows += new
    assert [row.env_steps for row in rows] == [10 * (i + 1) for i in range(good)]
    assert all(math.isfinite(value) for row in rows for value in row.values.values())
    assert place.iteration == good


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 8),
    closes=st.booleans(),
    copied=st.integers(0, 9),
    kept=st.integers(0, 8),
    more=st.integers(0, 3),
)
def test_after_a_resume_new_rows_come_once_or_the_history_is_taken_back(
    tmp_path_factory: pytest.TempPathFactory, num: int, closes: bool, copied: int, kept: int, more: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = folder / "metrics.jsonl"
    lines = [line(i + 1) for i in range(num)] + [line(num, **{"eval/return_mean": 9})] * closes
    path.write_bytes(b"".join(each + b"\n" for each in lines[:copied]))
    before, place = all_rows(path, Place())
    path.write_bytes(b"".join(each + b"\n" for each in lines))
    forget_after(folder, 10 * kept)
    kept = min(kept, num)
    again = [line(kept + 1 + i, second=1.0) for i in range(more)]
    with open(path, "ab") as file:
        file.write(b"".join(each + b"\n" for each in again))
    steps = [row.env_steps for row in before if not row.is_closing]
    if steps and steps[-1] > 10 * kept:
        with pytest.raises(TakenBack):
            read_rows(path, place)
        return
    after, _ = all_rows(path, place)
    assert steps + [row.env_steps for row in after] == [10 * (i + 1) for i in range(kept + more)]
    assert [row.values.get("second") for row in after[len(after) - more :]] == [1.0] * more


def test_of_the_closing_line_only_the_evaluation_is_new(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1, loss=3) + b"\n")
    _, place = all_rows(path, Place())
    with open(path, "ab") as file:
        file.write(line(1, loss=3, **{"eval/return_mean": 475.0}) + b"\n")
    rows, place = all_rows(path, place)
    assert rows == [Row(10, 0.5, {"eval/return_mean": 475.0}, is_closing=True)]
    assert all_rows(path, place) == ([], place)


def test_a_line_of_10_mb_is_skipped_and_never_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + b'\n{"a": "' + b"x" * (10 << 20) + b'"}\n' + line(2) + b"\n")
    found = read_rows(path, Place())
    assert [row.env_steps for row in found.rows] == [10, 20] and found.skipped == 1
    path.write_bytes(line(1) + b"\n" + b"y" * MAX_LINE_BYTES)  # half a line of just the limit: it may go on
    assert read_rows(path, Place()).place.iteration == 1
    for length in (MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1):
        pad = length - len(line(1, a="")) - 1
        path.write_bytes(line(1, a="z" * pad) + b"\n" + line(2) + b"\n")
        rows = read_rows(path, Place()).rows
        assert [row.env_steps for row in rows] == ([10, 20] if length <= MAX_LINE_BYTES else [20])


def test_a_line_whose_second_half_comes_between_two_reads_is_left_for_the_next_time() -> None:
    parts = iter([b'{"iteration": 1}\n', b'{"itera', b'tion": 2}\n', b""])
    file = SimpleNamespace(seek=lambda place: None, readline=lambda limit: next(parts))
    assert list(whole_lines(cast(Any, file), 0)) == [(b'{"iteration": 1}\n', 17)]


def test_columns_come_and_go_and_what_is_no_finite_number_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    odd = b'{"iteration": 2, "env_steps": 20, "a": NaN, "b": Infinity, "c": null, "d": "x", "e": true, "f": 1e400}\n'
    big = b"1" + b"0" * 400
    huge = b'{"iteration": 3, "env_steps": 30, "wall_s": %b, "g": %b, "h": 2}\n' % (big, big)
    huge += b'{"iteration": 4, "env_steps": %b}\n' % big
    path.write_bytes(line(1, a=1) + b"\n" + odd + huge)
    rows, _ = all_rows(path, Place())
    assert [row.values.keys() - {"iteration", "env_steps", "wall_s"} for row in rows] == [{"a"}, set(), {"h"}]


def test_a_run_without_a_file_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "metrics.jsonl", Place()) == history.Rows([], Place())
