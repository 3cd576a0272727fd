"""What an `Experiment` hears (events), and what it wants done (actions); the tuner is between it and the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlplat.tune.trial import CheckpointMark, Trial

# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Reported:
    number: int
    metrics: dict[str, Any]
    run_s: float
    """Seconds since the report before."""
    can_save: bool = False
    """Whether a checkpoint can be taken now."""


@dataclass(frozen=True)
class Returned:
    """The trial came to its own end."""

    number: int
    run_s: float = 0.0


@dataclass(frozen=True)
class Crashed:
    number: int
    error: str
    """For the user, whole."""
    can_retry: bool = True
    """False where it would be the same again."""


@dataclass(frozen=True)
class Saved:
    number: int
    name: str | None
    """Of the checkpoint's directory; None: there was nothing to save, or it failed."""
    step: int
    seconds: float = 0.0
    error: str = ""
    """Why and where it failed, first in one line; the trial stands at its report as before."""


@dataclass(frozen=True)
class Interrupted:
    """Nothing begins any more. Ctrl-C: what runs is saved at its next report, and goes on when the experiment is
    resumed."""

    reason: str
    ends_trials: bool = False
    """The time budget is spent: also what cannot be saved ends at its next report, and that is its result."""


@dataclass(frozen=True)
class NotBegun:
    """There was no room for it after all."""

    number: int


Event = Reported | Returned | Crashed | Saved | Interrupted | NotBegun

# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class _OfTrial:
    trial: Trial


class RecordTrial(_OfTrial): ...


class RecordReport(_OfTrial): ...


class RecordChange(_OfTrial):
    """State, checkpoint, failures, notes or config of a trial changed."""


class RecordEnd(_OfTrial): ...


class Begin(_OfTrial):
    """Start the trial in a free slot, or anew in its own."""


@dataclass(frozen=True)
class _OfNumber:
    number: int


class Advance(_OfNumber): ...


class Save(_OfNumber): ...


class Release(_OfNumber):
    """End what runs of the trial; its slot is free."""


@dataclass(frozen=True)
class CopyCheckpoint:
    """Before the records that follow: `trials/<source>/checkpoints/<mark.name>` as `<name>` to the trial's own."""

    source: int
    mark: CheckpointMark
    target: int
    name: str


@dataclass(frozen=True)
class Say:
    text: str
    to_log_only: bool = False


@dataclass(frozen=True)
class Abort:
    """The experiment cannot go on: what runs is ended, and the error is raised; `--resume` goes on after the cure."""

    error: Exception


Record = RecordTrial | RecordReport | RecordChange | RecordEnd
Action = Record | Begin | Advance | Save | Release | CopyCheckpoint | Say | Abort
