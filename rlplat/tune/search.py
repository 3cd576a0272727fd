"""Searchers: what the next trial tries.

    searcher = make_searcher(Searcher("tpe"), space, study, seed=1, num_samples=20)
    while (suggestion := searcher.suggest(number)) is not None: ...

Every random number comes from (seed, trial number) and every model from the study's recorded trials, so a searcher
has no state of its own: an experiment that goes on after a crash makes a new one and gets the same suggestions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Suggestion:
    config: dict[str, Any]
    """Complete: constants, drawn values, what `sample_from` computed."""
    params: dict[str, Any]
    """What was drawn, by dotted name."""


@dataclass(frozen=True)
class Searcher:
    """The settings of a searcher: `searcher: tpe` or `searcher: {name: tpe, n_startup_trials: 5}` in a file."""

    name: str = "random"
    """random (grids in full, `num_samples` times), tpe, gp, cmaes, qmc, nsga2."""
    options: dict[str, Any] = field(default_factory=dict)
    """For the sampler behind it."""


class Suggests(Protocol):
    num_trials: int | None
    """How many there will be in all; None: as many as `num_samples` and the grid allow is not known before."""

    def suggest(self, number: int) -> Suggestion | None:
        """For trial `number`; None when the space is exhausted or `num_samples` is reached."""
        ...
