"""Slots: how trials that run side by side take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rlplat
from tests.tune.running import lines, run


def test_trials_that_always_have_an_answer_take_turns(tmp_path: Path) -> None:
    """In one process every call has run when it returns, so at each turn all slots have an answer."""
    notes = tmp_path / "notes"

    def trial(config: dict[str, Any], report: Any) -> None:
        for _ in range(8):
            with notes.open("a") as file:
                file.write(f"{report.number}\n")
            report(x=1)

    rlplat.init(num_cpus=3, num_gpus=0, backend="inproc")
    try:
        run(trial, {"a": 1}, tmp_path, num_samples=3, stop={"x": 2})  # each report may be the last
    finally:
        rlplat.shutdown()
    steps = lines(notes)
    together = steps[steps.index("2") :][:12]  # the last one has begun, and the first one has not come to its end
    for length in range(1, 13):
        made = [together[:length].count(number) for number in "012"]
        assert max(made) - min(made) <= 1, "".join(steps)
