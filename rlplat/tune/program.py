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


class Program(Protocol):
    can_save: bool

    def step(self) -> dict[str, Any] | None:
        """Run to the next report and return its metrics; None where the trial has come to its own end."""
        ...

    def save_to(self, directory: Path) -> str:
        """Write a checkpoint of the state right after the last report into a new directory below `directory`
        (`trials/<number>/checkpoints/`), whole or not at all; returns its name."""
        ...

    def load_from(self, path: Path) -> None:
        """Before the first `step`: go on from this checkpoint, maybe another trial's, maybe with another config."""
        ...

    def close(self) -> None:
        """The trial ends here or goes on elsewhere; returns when nothing of it runs any more."""
        ...
