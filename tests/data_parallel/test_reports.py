"""What the ranks report, put together."""

from __future__ import annotations

from typing import Any

import pytest

from rlplat.data_parallel import reports
from rlplat.data_parallel.reports import merged_stats


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([{"correct": 12, "loss": 1.0}, {"correct": 15, "loss": 3.0}], True),
        ([{"epoch": 3, "num_samples": 4}, {"epoch": 3, "num_samples": 2}], False),
        ([{"ok": True}, {"ok": False}], False),
    ],
)
def test_counts_that_differ_between_ranks_are_told_once(
    ranks: list[dict[str, Any]],
    told: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "_told", set())
    for _ in range(2):
        merged = merged_stats(ranks)
    assert merged.get("correct") == ranks[0].get("correct")
    assert capsys.readouterr().err.count("report a float") == told
