"""Searchers: what the next trial tries.

    searcher = make_searcher(Searcher("tpe"), space, study, seed=1, num_samples=20)
    while (suggestion := searcher.suggest(number)) is not None: ...

Every random number comes from (seed, trial number) and every model from the study's recorded trials, so a searcher
has no state of its own: an experiment that goes on after a crash makes a new one and gets the same suggestions.

Whatever the searcher, a grid is tried in full, `num_samples` times: trial n is at its point n % grid_size, and the
searcher finds the rest. Who wants a model to choose among values writes `choice`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.tune.domains import Domain
from rlplat.tune.space import Space, Suggestion

__all__ = ["Searcher", "Suggestion", "Suggests", "make_searcher", "number_of_trials"]

MAX_TRIALS = 100_000
"""More than a user means when grids multiply."""

SEARCHERS = ("random", "grid", "tpe", "gp", "cmaes", "qmc", "nsga2")


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


def make_searcher(
    settings: Searcher, space: Space, study: Any, *, seed: int, num_samples: int, num_objectives: int = 1
) -> Suggests:
    """study: the `Study` whose recorded trials a model learns from; random and grid need none (None)."""
    num_trials = number_of_trials(space, num_samples)
    if settings.name not in SEARCHERS:
        near = closest(settings.name, SEARCHERS)
        raise ConfigError(f"no searcher '{settings.name}'{near or ': there are ' + ', '.join(SEARCHERS)}")
    if settings.name in ("random", "grid"):
        if settings.options:
            raise ConfigError(f"searcher {settings.name} has no option '{next(iter(settings.options))}'")
        if settings.name == "grid" and (loose := [n for n in space.domains if n not in space.grid_axes]):
            raise ConfigError(
                f"searcher grid: '{loose[0]}' is no grid; write grid([...]), or searcher random"
            )
        return RandomSearch(space, num_trials, seed)
    raise ConfigError(f"searcher '{settings.name}' is not there yet")


def number_of_trials(space: Space, num_samples: int, limit: int = MAX_TRIALS) -> int:
    """The grid's points times `num_samples`; ConfigError where that is more than `limit`."""
    total = space.grid_size * num_samples
    if total > limit:
        axes = " x ".join(f"{name} ({size})" for name, size in space.grid_axes.items())
        grid = f"the grid {axes} has {space.grid_size:,} points; with " if axes else ""
        raise ConfigError(
            f"{grid}num_samples={num_samples:,} there are {total:,} trials, more than {limit:,}: "
            + ("use choice instead of grid for some of them" if axes else "make num_samples smaller")
        )
    return total


class RandomSearch:
    """Grids in full, everything else at random; the same time and no memory per suggestion, however many."""

    def __init__(self, space: Space, num_trials: int, seed: int) -> None:
        self.num_trials: int | None = num_trials
        self._space, self._total, self._seed = space, num_trials, seed

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self._total:
            return None
        rng = trial_rng(self._seed, number)
        point = self._space.grid_point(number % self._space.grid_size)

        def choose(name: str, domain: Domain) -> Any:
            return point[name] if name in point else domain.sample(rng)

        return self._space.draw(choose, rng)


def trial_rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of a trial's suggestion."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))
