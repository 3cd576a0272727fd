"""What the autoscaler asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlplat.cluster.scaling.decision import Demand


class Scaling(Protocol):
    def look(self) -> EngineView | None:
        """What waits and what is free; None: the engine does not answer now."""

    def drain(self, node: str) -> bool:
        """Nothing new is placed there; False where it is in use again, and stays."""


@dataclass(frozen=True)
class EngineView:
    demands: Sequence[Demand]
    nodes: Mapping[str, EngineNode]
    """By name; `head` is the head's."""


@dataclass(frozen=True)
class EngineNode:
    free: Mapping[str, float]
    idle_s: float
    """0: it is used."""
    is_draining: bool = False
