"""The words of pages and messages: the few that readers stumbled over do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    r"\bleav(e|ing) \S+( \S+){0,2} away\b": "omit",
    r"\bfilm(s|ed|ing)?\b": "video, recorded",
    r"\banew\b": "again",
    r"\bunder way\b": "running",
    r"\b(nobody|somebody|whoever)\b": "no process, a process, any process that ...",
    r"\bgo(es)? on with\b": "continue, resume",
    r"\b(is|was) no `": "is not a",
    r"\bcure it\b": "fix it",
    r"\bfigures\b": "numbers, metrics",
    r"\bbeside the training\b": "during training, in parallel",
    r"\b(mourned|buried)\b": "reported dead, cleaned up",
}
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PRODUCT = [path for path in sorted(ROOT.glob("rlplat/**/*.py")) if "runtime" not in path.parts]
"""Of the runtime only its pages: what it says to itself (assertions, its books) is not for users."""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences of a file: its strings with a blank that are not docstrings, with their lines."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if " " in node.value and id(node) not in documentation:
            yield node.lineno, node.value


def found(lines: list[tuple[str, str]]) -> list[str]:
    """`where: word, say ...` for each word of the table in these lines (where, text)."""
    return [
        f"{where}: {hit.group()!r}, say {instead!r}"
        for where, text in lines
        for pattern, instead in INSTEAD.items()
        for hit in re.finditer(pattern, re.sub(r"\]\([^)]*\)|`[^`]*`", "`", text), re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_use_the_plain_words(page: Path) -> None:
    lines = [(f"{page.name}:{n}", line) for n, line in enumerate(page.read_text().splitlines(), start=1)]
    assert found(lines) == []


def test_messages_use_the_plain_words() -> None:
    lines = [(f"{path.relative_to(ROOT)}:{n}", text) for path in PRODUCT for n, text in messages(path)]
    assert len(lines) > 1000
    assert found(lines) == []


def test_a_word_of_the_table_is_found_but_not_in_code() -> None:
    assert len(found([("a:1", "leave --out away, whoever you are"), ("a:2", "see `film` in [it](film.md)")])) == 2
