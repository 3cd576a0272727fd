"""Where long lines are broken."""

from __future__ import annotations

import pytest

from rlplat.given.folding import folded

COMMAND = "rlplat evaluate runs/grid-2 --episodes 20"


def test_lines_break_between_words_and_a_command_stays_whole() -> None:
    said = "no tuned config for GridWorld, and it belongs to no family: the plain defaults of ppo apply"
    text = f"{said}\nin runs; evaluate it: {COMMAND}"
    lines = folded(text, 40).split("\n")
    assert all(len(line) <= 40 for line in lines if "rlplat" not in line)
    assert f"  {COMMAND}" in lines and not any(line.endswith(" ") for line in lines)
    assert " ".join(line.strip() for line in lines) == text.replace("\n", " ")


@pytest.mark.parametrize("text", ["short", "x" * 90, "", "a\nb"])
def test_what_fits_and_what_cannot_be_broken_stays(text: str) -> None:
    assert folded(text, 40) == text
