"""Searchers: what the next trial tries.

    searcher = make_searcher(Searcher("tpe"), space, seed=1, num_samples=20)
    while (suggestion := searcher.suggest(number)) is not None:
        searcher.add(trial)                        # a trial begins
        searcher.end(trial)                        # it has ended, one way or another

Every random number comes from (seed, trial number) and every model from the trials that run or have ended, so a
searcher has no state that is not recorded: an experiment that goes on after a crash makes a new one, gives it `add` and
`end` of the recorded trials again, and gets the same suggestions.

Whatever the searcher, a grid is tried in full, `num_samples` times: trial n is at its point n % grid_size, and the
searcher finds the rest. Who wants a model to choose among values writes `choice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from rlplat.config import Layer, closest, resolve
from rlplat.errors import ConfigError
from rlplat.section import Count, Section, Share
from rlplat.tune.domains import Grid, Options
from rlplat.tune.searchers import GridSearch, QuasiRandomSearch, Suggests
from rlplat.tune.space import Choose, Space, Suggestion

MAX_TRIALS = 100_000
"""More than a user means when grids multiply."""


class _Options(Section):
    points: list[dict[str, Any]] = []
    not_needed: ClassVar[dict[str, str]] = dict.fromkeys(
        ("warm_start", "max_history"), "it learns nothing; tpe, gp, cmaes and nsga2 do"
    )


class _Learning(_Options):
    warm_start: list[str] = []
    max_history: Count | None = None

    @field_validator("warm_start", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class _TPE(_Learning):
    n_startup_trials: Count = 10
    n_ei_candidates: Count = 24
    multivariate: bool = True
    constant_liar: bool = True


class _GP(_Learning):
    n_startup_trials: Count = 10
    deterministic_objective: bool = False


class _CMAES(_Learning):
    population_size: Annotated[int, Field(ge=2)] | None = None
    sigma: Annotated[float, Field(gt=0, le=1)] = 1 / 6


class _QMC(_Options):
    sequence: Literal["sobol", "halton"] = "sobol"
    scramble: bool = True


class _NSGA2(_Learning):
    population_size: Annotated[int, Field(ge=2)] = 50
    crossover_prob: Share = 0.9
    mutation_prob: Share | None = None
    swapping_prob: Share = 0.5


_OPTIONS: dict[str, type[_Options]] = {
    "random": _Options, "grid": _Options, "tpe": _TPE, "gp": _GP, "cmaes": _CMAES, "qmc": _QMC, "nsga2": _NSGA2,
}  # fmt: skip
"""Every searcher, and what it can be told."""

_MAX_HISTORY = {"tpe": 1000, "gp": 200, "nsga2": MAX_TRIALS}
_SEVERAL_OBJECTIVES = ("random", "grid", "qmc", "tpe", "gp", "nsga2")


@dataclass(frozen=True)
class Searcher:
    """The settings of a searcher: `searcher: tpe` or `searcher: {name: tpe, n_startup_trials: 5}` in a file."""

    name: str = "random"
    """random, grid (both: grids in full, `num_samples` times), tpe, gp (Bayesian), cmaes, qmc, nsga2."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For the sampler behind it, and the three below may be here as well."""
    points: Sequence[Mapping[str, Any]] = ()
    """The first trials: values by parameter name; what a point does not say is drawn at random."""
    warm_start: Sequence[str] = ()
    """Earlier experiments to learn from: directories, journals, postgresql://user@host/database#name."""
    max_history: int | None = None
    """How many trials the model sees at most: the best quarter and the newest. None: tpe 1000, gp 200, nsga2 all;
    cmaes always learns from all."""

    def checked(self) -> Searcher:
        """With everything in its own place; ConfigError names what is wrong."""
        if self.name not in _OPTIONS:
            near = closest(self.name, _OPTIONS)
            raise ConfigError(f"no searcher '{self.name}'{near or ': there are ' + ', '.join(_OPTIONS)}")
        given = {name: getattr(self, name) for name in ("points", "warm_start", "max_history")}
        values = {name: value for name, value in given.items() if value not in (None, ())} | dict(self.options)
        try:
            found = resolve(_OPTIONS[self.name], [Layer(values)])
        except ConfigError as error:
            raise ConfigError(f"searcher {self.name}: {error}") from None
        options = found.model_dump(exclude_unset=True)
        places = {key: options.pop(key) for key in given if key in options}
        return Searcher(self.name, options, **places)


def make_searcher(
    settings: Searcher, space: Space, *, seed: int, num_samples: int, modes: Sequence[str] = ("max",)
) -> Suggests:
    """modes: "max" or "min" for each objective. ConfigError: what cannot be; nothing is written anywhere."""
    settings = settings.checked()
    name, options = settings.name, settings.options
    total = number_of_trials(space, num_samples)
    searcher: GridSearch
    if len(modes) > 1 and name not in _SEVERAL_OBJECTIVES:
        raise ConfigError(f"searcher {name} has one objective; {', '.join(_SEVERAL_OBJECTIVES)} can have several")
    loose = [key for key in space.domains if key not in space.grid_axes]
    if name == "grid" and loose:
        raise ConfigError(f"searcher grid: '{loose[0]}' is no grid; write grid([...]), or searcher random")
    if name in ("random", "grid") or not loose:  # with grids alone there is nothing to find
        searcher = GridSearch(space, seed, total)
    elif name == "qmc":
        searcher = QuasiRandomSearch(space, seed, total, **options)
    else:
        searcher = _model_search(settings, space, modes, seed, total)
    return WithPoints(searcher, space, settings.points, seed) if settings.points else searcher


def _model_search(settings: Searcher, space: Space, modes: Sequence[str], seed: int, total: int) -> GridSearch:
    from rlplat.tune.samplers import GENERATION, EvolutionSearch, ModelSearch, earlier_outcomes, make_sampler

    maximize = [mode == "max" for mode in modes]
    earlier, told = [], []
    for place in settings.warm_start:
        fitting, ended = earlier_outcomes(place, space, maximize)
        if not fitting:
            raise ConfigError(
                f"warm_start: none of the {ended} trials in {place} has {', '.join(space.domains)} within this space"
            )
        earlier += fitting
        told.append(f"searcher {settings.name} learns from {len(fitting)} of {ended} trials of {place}")
    for index, outcome in enumerate(earlier):
        outcome.number = index - len(earlier)
    searcher: GridSearch
    if settings.name == "cmaes":
        searcher = EvolutionSearch(space, seed, total, maximize, earlier=earlier, **settings.options)
    else:
        options = dict(settings.options)
        jointly = options.pop("multivariate", len(modes) == 1 or settings.name != "tpe")
        if settings.name == "nsga2":
            options.setdefault("population_size", min(50, max(10, total // 8)))
        searcher = ModelSearch(
            space, seed, total, maximize, make_sampler(settings.name, options),
            max_history=settings.max_history or _MAX_HISTORY[settings.name],
            earlier=earlier, conditional=settings.name != "nsga2", jointly=jointly,
            notes_of_others={"trial": {GENERATION: 0}} if settings.name == "nsga2" else None,
        )  # fmt: skip
    if searcher.notice:
        told.append(f"searcher {settings.name} {searcher.notice}")
    searcher.notice = "\n".join(told)
    return searcher


def number_of_trials(space: Space, num_samples: int, limit: int = MAX_TRIALS) -> int:
    """The grid's points times `num_samples`; ConfigError where that is more than `limit`."""
    total = space.grid_size * num_samples
    if total > limit:
        axes = " x ".join(f"{name} ({size})" for name, size in space.grid_axes.items())
        grid = f"the grid {axes} has {space.grid_size:,} points; with " if axes else ""
        raise ConfigError(
            f"{grid}num_samples={num_samples:,} there are {total:,} trials, more than {limit:,}: "
            + (
                "use choice instead of grid for some of them"
                if space.grid_size > limit / 10
                else "make num_samples smaller"
            )
        )
    return total


class WithPoints(GridSearch):
    """Points that the user wants tried first, then a searcher; the points are trials like others and count."""

    def __init__(self, searcher: GridSearch, space: Space, points: Sequence[Mapping[str, Any]], seed: int) -> None:
        super().__init__(space, seed, searcher.num_trials)
        self.notice, self._searcher = searcher.notice, searcher
        self.add, self.end = searcher.add, searcher.end  # type: ignore[method-assign]
        self._points = [_named(point, space, index) for index, point in enumerate(points)]

    def suggest(self, number: int) -> Suggestion | None:
        return super().suggest(number) if number < len(self._points) else self._searcher.suggest(number)

    def ways(self, number: int, rng: np.random.Generator, notes: dict[str, Any]) -> Choose:
        point = self._points[number]
        return lambda name, domain: point[name] if name in point else domain.sample(rng)


def _named(point: Mapping[str, Any], space: Space, index: int) -> dict[str, Any]:
    """A point's values by parameter name, each in its domain; nested dicts are as good as dotted names."""
    values: dict[str, Any] = {}

    def collect(mapping: Mapping[str, Any], prefix: str) -> None:
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            if name in space.domains:
                values[name] = _value(name, value)
            elif isinstance(value, Mapping):
                collect(value, f"{name}.")
            else:
                near = closest(name, space.domains) or f"; there are {', '.join(space.domains)}"
                raise ConfigError(f"point {index}: the space has no parameter '{name}'{near}")

    def _value(name: str, value: Any) -> Any:
        domain = space.domains[name]
        if isinstance(domain, Grid):
            raise ConfigError(f"point {index}: '{name}' is a grid, of which all points are tried anyway")
        if isinstance(domain, Options) and isinstance(value, list | tuple | dict):
            for option, label in zip(domain.options, domain.labels, strict=True):
                if option == value or (isinstance(value, tuple) and option == list(value)):
                    return label
        if not domain.contains(value):
            raise ConfigError(f"point {index}: '{name}' is {value!r}, which is not in {domain.text}")
        return domain.clip(value)

    collect(point, "")
    return values
