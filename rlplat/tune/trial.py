"""A trial: one config of the search space, and what is known of its run.

                    ┌────────────── Pause ◀──────────────┐
                    ▼                                    │
    WAITING ──▶ RUNNING ──▶ COMPLETE   (its own end, or a stop rule)
       ▲            │ └────▶ STOPPED   (the trial scheduler's verdict)
       └─ a crash ──┤
                    └──────▶ FAILED    (`max_failures` used up)        PAUSED ──▶ WAITING | STOPPED

A paused trial holds no process; it goes on from its checkpoint. What it remembers of its copies (`Exploit`, PBT: it
went on from another one's checkpoint, with other params) is in `trial.notes` (JSON):

    exploits   [{step, reports, source, progress, score, before, params}, ...]: what it copied, by its own reports
    schedule   [[progress, params], ...]: how the weights that it has now came to be, across all whose copy they are
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlplat.errors import ActorDied


class TrialState(StrEnum):
    WAITING = "waiting"
    """Created, and not running now: it has not begun, or is to go on from its checkpoint."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self in (TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED)


@dataclass(frozen=True)
class CheckpointMark:
    """A checkpoint that is whole on the disk."""

    step: int
    """Reports of the trial up to it."""
    name: str
    """Of its directory, below `trials/<number>/checkpoints/`."""
    progress: float = 0.0


@dataclass
class Trial:
    number: int
    """0, 1, 2, ... in the order of suggestion; also the number of the trial in the study's storage."""
    config: dict[str, Any]
    """What the trainable gets: constants and drawn values. PBT changes it while the trial runs."""
    params: dict[str, Any]
    """What was drawn, by dotted name: `{"policy.hidden_sizes": [64, 64], "learning_rate": 3e-4}`."""
    seed: int
    """Of this trial: from the experiment's seed and the number."""
    state: TrialState = TrialState.WAITING
    step: int = 0
    """Reports so far."""
    progress: float = 0.0
    """How far it is, in the unit in which the trial scheduler counts: reports, or a metric such as env_steps."""
    values: tuple[float, ...] = ()
    """The metric (or metrics) of the last report, as reported; empty before the first."""
    last: dict[str, Any] = field(default_factory=dict)
    """All of the last report."""
    history: list[tuple[float, float]] = field(default_factory=list)
    """(progress, score) of every report: what a resumed experiment's scheduler is given again. Score: higher is
    better."""
    checkpoint: CheckpointMark | None = None
    failures: int = 0
    error: str = ""
    """Why it failed last."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the trial scheduler must know again after a restart (JSON): a bracket's number, the last perturbation."""
    run_s: float = 0.0
    """Seconds in which it ran."""

    @property
    def directory_name(self) -> str:
        return f"{self.number:05d}"


def first_line(text: str) -> str:
    """That says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def in_few_lines(error: str) -> str:
    """What was raised, and where in the user's code: of an error with its traceback."""
    frames = re.findall(r'^ *File "([^"]+)", line (\d+), in (.+)$', error, re.MULTILINE)
    places = [
        f"  in {file}:{line}, {name}"
        for file, line, name in frames
        if not re.search("/rlplat/(tune|runtime|rl)/", file)
    ]
    return "\n".join([first_line(error), *places[-3:]])


def last_line(text: str) -> str:
    """Of a traceback: what was raised."""
    return text.strip().rsplit("\n", 1)[-1]


def remote_text(error: BaseException) -> str:
    """What user code raised, with its traceback; or how the process died."""
    cause = getattr(error, "cause", None) or error.__cause__
    if cause is not None:
        return f"{type(cause).__name__}: {cause}\n{error}"
    if isinstance(error, ActorDied):  # which call of which actor it was says nothing to the user
        return f"its process died: {str(error).rpartition(' died: ')[2]}"
    notes = getattr(error, "__notes__", ())  # of an error of ours that user code raised: where
    return "\n".join([f"{type(error).__name__}: {error}" if notes else str(error), *notes])


# -------------------------------------------------------------------------------- copies


def step_of_copy(trial: Trial) -> int:
    """Its report after which it went on as a copy, the last time; -1: never."""
    exploits = trial.notes.get("exploits")
    return int(exploits[-1]["step"]) if exploits else -1


def reports_before_copy(trial: Trial) -> int:
    """How many entries of its history are from before it became a copy, the last time; 0: it is none."""
    exploits = trial.notes.get("exploits")
    return int(exploits[-1]["reports"]) if exploits else 0


def schedule_of(trial: Trial) -> list[Any]:
    """[[progress from which on, params], ...] of the weights that it has now."""
    return list(trial.notes.get("schedule", [[0.0, trial.params]]))
