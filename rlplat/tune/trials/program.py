"""What a trial host runs: every kind of trainable (function, generator, class, algorithm) becomes a `Program`.

program = open_program(trainable, config, context)
if checkpoint: program.load_from(path)
while (metrics := program.step()) is not None: ...          # one report
name = program.save_to(directory)                           # between two steps only
program.close()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlplat.errors import RlplatError


class StillRunning(RlplatError):
    """`Program.close`: the trainable was told to end and goes on; its process must be thrown away."""


@dataclass(frozen=True)
class TrialContext:
    """What a trainable may know about its trial; the second argument of a class's constructor, and `report`'s
    attributes."""

    number: int
    seed: int
    directory: Path
    """`trials/<number>/` of the experiment: for whatever the trainable wants to keep."""
    attempt: int = 0
    """How often it was begun before."""
    metric: str = "value"
    """The experiment's (first) metric: what a report of a bare number stands for."""
    num_seeds: int = 1
    """How many programs with different seeds run side by side in the trial."""


class Program(Protocol):
    @property
    def can_save(self) -> bool:
        """Whether `save_to` would work now. A class: always or never. A function or generator: whether its last report
        came with a checkpoint."""
        ...

    def step(self) -> dict[str, Any] | None:
        """Run to the next report and return its metrics; None where the trial has come to its own end. Raises what
        the trainable raised."""
        ...

    def save_to(self, directory: Path) -> str:
        """Write a checkpoint of the state right after the last report into a new directory below `directory`
        (`trials/<number>/checkpoints/`), whole or not at all; returns its name. The one before it stays as well."""
        ...

    def load_from(self, path: Path) -> None:
        """Before the first `step`: go on from this checkpoint, maybe another trial's, maybe with another config."""
        ...

    def close(self) -> None:
        """The trial ends here or goes on elsewhere; returns when nothing of it runs any more. Raises StillRunning when
        something does."""
        ...
