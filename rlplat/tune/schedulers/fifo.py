"""FIFO: every trial runs to its end."""

from __future__ import annotations

from typing import Any

from rlplat.tune.core.trial import Trial
from rlplat.tune.core.verdicts import Continue, Due, Verdict


class FIFO:
    name = "fifo"
    needs_checkpoints = False

    def __init__(self, unit: str = "step") -> None:
        self.unit = unit

    def open(self, seed: int, space: Any) -> None:
        pass

    def add(self, trial: Trial) -> None:
        pass

    def record(self, trial: Trial, progress: float, score: float) -> None:
        pass

    def judge(self, trial: Trial) -> Verdict:
        return Continue()

    def end(self, trial: Trial) -> None:
        pass

    def due(self) -> list[tuple[int, Due]]:
        return []

    def no_more_trials(self) -> None:
        pass
