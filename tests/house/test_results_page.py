"""docs/results.md says what the files of the learning benchmark say."""

from __future__ import annotations

import re

from benchmarks.learning_page import FILES, PAGE, page, read_all
from benchmarks.measure import ROOT
from rlplat.cli.view.compare import read_published


def test_the_page_is_that_of_the_files() -> None:
    cells = read_all()
    assert cells
    [counted] = re.findall(r"\d+ of \d+ cells with a published value have its mean or more", PAGE.read_text())
    assert counted in (ROOT / "README.md").read_text()
    assert PAGE.read_text() == page(cells, read_published(FILES / "published.md")), "python -m benchmarks.learning_page"
