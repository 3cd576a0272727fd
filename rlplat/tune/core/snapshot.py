"""What is to be seen of an experiment while it runs: made by the experiment, drawn by a `View`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rlplat.tune.core.trial import Trial, TrialState


@dataclass(frozen=True)
class Snapshot:
    name: str
    metric: tuple[str, ...]
    counts: dict[TrialState, int]
    """How many trials are in each state; those that ended are counted, not kept."""
    num_trials: int | None
    """How many there will be; None: not known."""
    live: Sequence[Trial]
    """Running, waiting and paused, by number."""
    best: Sequence[Trial]
    """The best ended or running ones, best first (with several objectives: the Pareto front); at most ten."""
    wall_s: float
    slots: tuple[int, int]
    """(in use, in all)."""


class View(Protocol):
    def taking_output(self) -> AbstractContextManager[None]:
        """Around the start of the runtime: what its processes print does not disturb the table either."""
        ...

    def finish(self) -> None:
        """After `close`, when the runtime has ended."""
        ...

    def is_due(self) -> bool:
        """Whether `show` would do anything now: else no snapshot need be made."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Called often; draws when enough time has passed."""
        ...

    def say(self, text: str) -> None:
        """A line of text that does not disturb the table."""
        ...

    def close(self, snapshot: Snapshot | None) -> None:
        """The last picture stays on the terminal."""
        ...
