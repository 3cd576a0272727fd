"""docs/patterns.md: every program on it runs as it stands, on processes and in one process, and prints what it says."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import rlplat
from tests.house.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "patterns.md"
PROGRAMS = {re.match(r"# (\S+\.py)\n", block)[1]: block for block in blocks(PAGE, "python")}  # type: ignore[index]


def test_the_page_has_a_program_for_each_pattern() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(PROGRAMS) == len(headings) == 5
    assert all(20 <= len(block.splitlines()) <= 50 for block in PROGRAMS.values())


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("backend", ["inproc", "zmq"])
def test_the_program_prints_what_the_page_says(
    name: str, backend: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = re.search(r"print\(.*#\s*(.*)\n\Z", PROGRAMS[name])
    assert said is not None
    program = tmp_path / name
    program.write_text(PROGRAMS[name])
    monkeypatch.setattr(rlplat, "init", functools.partial(rlplat.init, num_gpus=0, backend=backend))
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        rlplat.shutdown()
    assert capsys.readouterr().out.strip() == said[1]
