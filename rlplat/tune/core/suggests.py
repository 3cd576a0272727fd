"""What an experiment asks for the configs of its trials. Pure."""

from __future__ import annotations

from typing import Protocol

from rlplat.tune.core.trial import Trial
from rlplat.tune.space.space import Suggestion


class Suggests(Protocol):
    num_trials: int | None
    """How many there will be in all; None: it is not known before."""
    notice: str
    """What the user should know about this searcher on this space, in a line; may be empty."""

    def suggest(self, number: int) -> Suggestion | None:
        """For trial `number`; None when the space is exhausted or `num_samples` is reached."""
        ...

    def add(self, trial: Trial) -> None:
        """It was suggested, or is in the storage of an experiment that goes on."""
        ...

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended."""
        ...
