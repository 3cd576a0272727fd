"""FIFO: every trial runs to its end."""

from __future__ import annotations

from rlplat.tune.core.verdicts import TrialScheduler


class FIFO(TrialScheduler):
    name = "fifo"

    def __init__(self, unit: str = "step") -> None:
        self.unit = unit
