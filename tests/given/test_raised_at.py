"""The place that a message names when a user's code raises."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from rlplat.durations import duration_text
from rlplat.given.raised_at import raised_elsewhere, raised_here

OWN = """
def fail(what):
    raise ValueError(what)

def call(function, value):
    return function(value)
"""


@pytest.mark.parametrize("called, line", [("fail", 3), ("a library", 6), ("rlplat", 6)])
def test_the_user_s_own_innermost_line_is_named(tmp_path: Path, called: str, line: int) -> None:
    file, own = tmp_path / "own.py", {}
    exec(compile(OWN, file, "exec"), own)
    function = {"fail": own["fail"], "a library": json.loads, "rlplat": duration_text}[called]
    with pytest.raises(Exception) as info:
        own["call"](function, "{")
    assert raised_here(info.value) == f" (at {file}:{line})"
    assert raised_elsewhere("".join(traceback.format_exception(info.value))) == f" (at {file}:{line})"


def test_where_none_is_the_user_s_the_library_s_is_named_and_rlplat_s_is_not() -> None:
    for function, place in ((json.loads, "json/decoder.py:"), (duration_text, "")):
        with pytest.raises(Exception) as info:
            function("{")
        inside = info.value.with_traceback(info.value.__traceback__.tb_next)  # without this test's own frame
        assert place in raised_here(inside) and bool(raised_here(inside)) == bool(place)
