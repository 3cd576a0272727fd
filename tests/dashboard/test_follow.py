"""A metrics file from a cursor: whatever is appended, cut or replaced, what was told is what is there."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.dashboard.follow import MAX_KEPT_BYTES, Cursor, columns, read_since, thinned
from rlplat.dashboard.pages import Pages
from rlplat.metrics import MAX_LINE_BYTES

LINES = st.lists(
    st.one_of(
        st.integers(0, 10**6).map(lambda n: json.dumps({"env_steps": n}).encode()),
        st.sampled_from([b"", b"half", b"[1]", b'{"env_steps": NaN}', b"\xff\xfe", b'"text"', b"[" * 3000]),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(LINES, st.data())
def test_reading_in_pieces_gives_what_reading_at_once_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    rows, cursor = [], Cursor()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        with open(path, "ab") as file:
            file.write(text[start:end])
        records = read_since(path, cursor)
        assert records.reset == (cursor.offset == 0)
        rows, cursor = rows + records.rows, Cursor.parse(str(records.cursor))
    assert rows == read_since(path).rows
    assert len(rows) == sum(line.startswith(b'{"env_steps": ') and b"NaN" not in line for line in lines)


def test_a_file_that_was_cut_by_a_resume_is_told_as_a_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"env_steps": 1}\n{"env_steps": 2}\n')
    cursor = read_since(path).cursor
    path.write_bytes(b'{"env_steps": 1}\n')
    shorter = read_since(path, cursor)
    assert shorter.reset and [row["env_steps"] for row in shorter.rows] == [1]
    with open(path, "ab") as file:
        file.write(b'{"env_steps": 10, "more": 1}\n{"env_steps": 12}\n')  # now longer than it was
    again = read_since(path, cursor)
    assert again.reset and [row["env_steps"] for row in again.rows] == [1, 10, 12]


def test_a_replaced_file_and_one_that_is_gone_begin_again(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other"
    path.write_bytes(b'{"env_steps": 1}\n')
    cursor = read_since(path).cursor
    other.write_bytes(b'{"env_steps": 5}\n{"env_steps": 6}\n')
    other.replace(path)
    assert [row["env_steps"] for row in read_since(path, cursor).rows] == [5, 6]
    path.unlink()
    gone = read_since(path, cursor)
    assert gone.reset and not gone.rows and gone.cursor == Cursor()


def test_a_line_that_is_too_long_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * MAX_LINE_BYTES + b'"}\n{"env_steps": 3}\n')
    records = read_since(path)
    assert records.skipped == 1 and records.rows == [{"env_steps": 3}]


@pytest.mark.parametrize("text", ["", "x", "1", "1:", ":1", "-1:5", "1:2:3", "²:1"])
def test_a_cursor_that_is_none_is_the_beginning(text: str) -> None:
    assert Cursor.parse(text) == Cursor()


def test_columns_have_a_value_a_row_and_numbers_only() -> None:
    rows = [{"a": 1, "b": "text"}, {"a": None, "c": True}, {"d": 2.5}]
    assert columns(rows) == {
        "a": [1, None, None], "b": [None] * 3, "c": [None] * 3, "d": [None, None, 2.5],
    }  # fmt: skip
    assert columns(rows, ["d", "e"]) == {"d": [None, None, 2.5], "e": [None] * 3}


@given(st.integers(0, 60), st.integers(0, 70), st.sets(st.integers(0, 59)))
def test_thinning_keeps_the_ends_the_order_and_all_evaluations(num: int, limit: int, evaluated: set[int]) -> None:
    rows = [{"n": n, **({"eval/return_mean": 1.0} if n in evaluated else {})} for n in range(num)]
    kept = [row["n"] for row in thinned(rows, limit)]
    assert kept == sorted(set(kept)) and {n for n in evaluated if n < num} <= set(kept)
    if limit == 0 or num <= limit:
        assert kept == list(range(num))
    else:
        assert len(set(kept) - evaluated) <= limit
        assert kept[0] == 0 or limit == 1
        assert limit == 1 or kept[-1] == num - 1


def test_of_a_huge_file_evenly_spread_rows_are_kept_in_bounded_memory(tmp_path: Path) -> None:
    path, padding = tmp_path / "metrics.jsonl", "x" * 20_000
    with open(path, "w") as file:
        for number in range(4_001):  # 80 MB
            file.write(json.dumps({"env_steps": number, "note": padding}) + "\n")
        file.write("y" * (40 << 20) + "\n")  # one line that is no record
        file.write(json.dumps({"env_steps": 4_001}) + "\n")
    tracemalloc.start()
    records = read_since(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_KEPT_BYTES
    steps = [row["env_steps"] for row in records.rows]
    assert steps[0] == 0 and steps[-1] == 4_001 and 300 < len(steps) < 900
    assert {after - before for before, after in pairwise(steps[:-1])} == {8}
    assert records.skipped == 1 and records.cursor.offset == path.stat().st_size
    path.open("a").write('{"env_steps": 5}\n')
    assert [row["env_steps"] for row in read_since(path, records.cursor).rows] == [5]


def test_six_threads_count_the_rows_that_are_kept_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("algo: ppo\n")
    with open(tmp_path / "run/metrics.jsonl", "w") as file:
        file.writelines(json.dumps({"env_steps": number, "loss": 1.0}) + "\n" for number in range(3_000))
    pages = Pages(tmp_path)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: pages.run("run"), range(12)))
    assert pages._num_rows == 3_000 == sum(len(rows) for _, rows in pages._rows.values())
