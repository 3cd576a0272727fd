"""Trial schedulers: who goes on, who stops, who waits, who starts again from whom. Pure judgements on recorded scores.

    scheduler.add(trial)                                    # a trial was suggested
    scheduler.record(trial, progress, score)                # it reported
    verdict = scheduler.judge(trial)                        # Continue | Stop | Pause | Exploit
    scheduler.end(trial)                                    # it ended, one way or another
    for number, verdict in scheduler.due(): ...             # Resume | Stop | Exploit for paused ones, at every change

A score is higher where the trial is better: the experiment turns the sign for `mode: min`. There is no clock, no file
and no random number that does not come from (seed, trial, progress). What a scheduler must remember of a trial that
cannot be computed from the scores is in `trial.notes`. So an experiment that goes on after a crash makes a new
scheduler, gives it `add`, the recorded scores and `end` of every trial again, and has the state it had; where a verdict
was not carried out any more, `judge` is asked once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rlplat.tune.core.trial import Trial
from rlplat.tune.space.space import Suggestion


@dataclass(frozen=True)
class Continue:
    """Go on. save: write a checkpoint first (somebody may be told to go on from it)."""

    save: bool = False


@dataclass(frozen=True)
class Stop:
    """It is not worth going on; counts as a result at the progress it has."""

    reason: str
    """One line for the user: `below the best third of 9 at 4 steps (0.31 < 0.55)`."""
    is_complete: bool = False
    """It has had all the budget there is: it ends as COMPLETE."""


@dataclass(frozen=True)
class Pause:
    """Write a checkpoint and free the process; `due` will say whether it goes on."""


@dataclass(frozen=True)
class Resume:
    """A paused trial goes on from its checkpoint."""


@dataclass(frozen=True)
class Exploit:
    """Go on from the newest checkpoint of trial `source`, with `config` (and its flat `params`).

    The experiment writes it into `trial.notes["exploits"]` and `trial.notes["schedule"]` (see `exploits.py`).
    """

    source: int
    config: dict[str, Any]
    params: dict[str, Any]
    reason: str


Verdict = Continue | Stop | Pause | Exploit
Due = Resume | Stop | Exploit


class TrialScheduler:
    """One per experiment. Constructor arguments are the settings of `scheduler:` in an experiment file. As it stands
    here, every trial runs to its end.

    `unit` is what progress is counted in: "step" (reports) or the name of a metric that grows, such as env_steps.
    """

    name: ClassVar[str]
    unit: str
    needs_checkpoints = False
    """Whether a trainable that cannot save is refused before anything runs (Pause and Exploit need `save`)."""

    def open(self, seed: int, space: Any) -> None:
        """Before the first `add`. seed: the experiment's; space: the `Space`, for those who change configs."""

    def add(self, trial: Trial) -> None:
        """A new trial, or one of the storage: then `trial.notes` is what it was. May write to `trial.notes`."""

    def record(self, trial: Trial, progress: float, score: float) -> None:
        """It reported."""

    def judge(self, trial: Trial) -> Verdict:
        """On its last record. A trial that repeats reports after a crash goes on until it is where it was; what was
        said there, and carried out, is not said again. Where levels lie between two reports, the first report beyond
        a level counts for it."""
        return Continue()

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended; a failed trial must not make others wait for it."""

    def due(self) -> list[tuple[int, Due]]:
        """Verdicts on paused trials that can be given now; each is given once."""
        return []

    def no_more_trials(self) -> None:
        """No further `add` will come: what waits for a bracket to fill is judged with what is there."""


class Suggests:
    """What an experiment asks for the configs of its trials."""

    num_trials: int | None
    """How many there will be in all; None: it is not known before."""
    notice = ""
    """What the user should know about this searcher on this space, in a line; may be empty."""

    def suggest(self, number: int) -> Suggestion | None:
        """For trial `number`; None when the space is exhausted or `num_samples` is reached."""
        raise NotImplementedError

    def add(self, trial: Trial) -> None:
        """It was suggested, or is in the storage of an experiment that goes on."""

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended."""
