"""The shape of the house: no file and no folder is longer than a reader can take in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES, MOST_FILES = 500, 14
LONGER = {"algorithms/dqn.py": 753}  # all of Rainbow and R2D2, and two rings
"""Files that are longer still, and with what. Their present length is their limit: it may only go down."""


def product_files() -> list[Path]:
    inside = [
        path for path in ROOT.glob("rlplat/**/*.py") if "algorithms" not in path.relative_to(ROOT).parts
    ]
    return [path.relative_to(ROOT) for path in (*inside, *ROOT.glob("algorithms/*.py"))]


def lines_of_files() -> dict[str, int]:
    return {str(path): len((ROOT / path).read_text().splitlines()) for path in product_files()}


def files_of_folders() -> Counter[str]:
    return Counter(str(path.parent) for path in product_files() if path.name != "__init__.py")


def test_no_file_is_too_long() -> None:
    lengths = lines_of_files()
    assert len(lengths) > 250
    assert {path: n for path, n in lengths.items() if n > LONGER.get(path, MOST_LINES)} == {}


def test_the_table_names_no_file_that_is_short_enough() -> None:
    lengths = lines_of_files()
    assert [path for path in LONGER if lengths.get(path, 0) <= MOST_LINES] == []


def test_no_folder_has_too_many_files() -> None:
    folders = files_of_folders()
    assert {folder: n for folder, n in folders.items() if n > MOST_FILES} == {}
