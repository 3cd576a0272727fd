"""Losses on file: a change of them is a change of what is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "golden"


def assert_on_file(file: str, name: str, losses: list[dict[str, Any]]) -> None:
    """After an intended change: delete the file, run the test once (it fails and writes the file), look at the
    difference."""
    path = FOLDER / file
    golden = json.loads(path.read_text()) if path.exists() else {}
    if name not in golden:
        path.write_text(json.dumps(golden | {name: losses}, indent=1, sort_keys=True) + "\n")
        pytest.fail(f"{path} had no {name!r}; written now: look at it and run again")
    for round_, (got, expected) in enumerate(zip(losses, golden[name], strict=True)):
        assert got == pytest.approx(expected, rel=2e-3, abs=2e-5), f"round {round_}"
