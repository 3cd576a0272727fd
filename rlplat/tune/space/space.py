"""The search space: a config in which some values are domains.

    space = Space.parse({
        "learning_rate": tune.loguniform(1e-5, 1e-2),
        "optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 0.99)}, {"name": "adam"}]),
        "seed": 7,
    })
    suggestion = space.draw(lambda name, domain: domain.sample(rng))
    suggestion.config    # {"learning_rate": 0.0021, "optimizer": {"name": "sgd", "momentum": 0.83}, "seed": 7}
    suggestion.params    # {"learning_rate": 0.0021, "optimizer": "sgd", "optimizer.momentum": 0.83}

Domains may be anywhere in nested dicts and lists, and in the options of `choice` and `grid`: those are drawn only
where their option was. In YAML a domain is a mapping with one key: `{loguniform: [1e-5, 1e-2]}`, `{choice: [a, b]}`,
`{sample_from: ./file.py:function}`; dicts in Python may have that form too. `{constant: ...}` is taken as it is, for
a config that has such a mapping of its own.

A parameter is called by its place, `optimizer.momentum`; where two options have different domains at the same place,
by the option too: `optimizer[sgd].learning_rate`, `optimizer[adam].learning_rate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlplat.errors import ConfigError
from rlplat.tune.space.domains import Domain, Grid
from rlplat.tune.space.parser import Parser, Where
from rlplat.tune.space.tree import Choose, DictNode, Work, compute


@dataclass(frozen=True)
class Suggestion:
    config: dict[str, Any]
    """Complete: constants, drawn values, what `sample_from` computed."""
    params: dict[str, Any]
    """What was drawn, by dotted name: scalars; for an option that is a list or a dict, its label."""
    notes: dict[str, Any] = field(default_factory=dict)
    """JSON that the searcher wants back with the recorded trial, in `Trial.notes["searcher"]`."""


class Space:
    domains: dict[str, Domain]
    """Of every parameter, of all options, by its name."""
    grid_size: int
    """How many points the grids have together; 1 where there is none."""

    def __init__(self, root: DictNode) -> None:
        self._root = root
        self.domains = {draw.name: draw.domain for draw in root.draws()}
        self.grid_size = root.grid_size

    @staticmethod
    def parse(config: Mapping[str, Any], where: Where | None = None) -> Space:
        """config: constants and domains, at any depth. where: says for a key's path in which file and line it is.

        One ConfigError names everything that is wrong.
        """
        return Space(Parser(where or (lambda path: "")).parse(config))

    @property
    def conditions(self) -> dict[str, tuple[Any, ...]]:
        """For each parameter what must have been drawn before; equal for those that are always drawn together, and
        empty for those that are in every trial."""
        conditions: dict[str, tuple[Any, ...]] = {}
        for draw in self._root.draws():  # a name may stand in several options, with the same domain
            conditions[draw.name] = (*conditions.get(draw.name, ()), *draw.conditions)
        return conditions

    @property
    def grid_axes(self) -> dict[str, int]:
        """The grids and how many options each has."""
        return {
            name: len(domain.options) for name, domain in self.domains.items() if isinstance(domain, Grid)
        }

    def grid_point(self, index: int) -> dict[str, Any]:
        """The values of the grids at point `index`, the last grid changing fastest. 0 <= index < grid_size."""
        if not 0 <= index < self.grid_size:
            raise IndexError(f"grid point {index} of {self.grid_size}")
        point: dict[str, Any] = {}
        self._root.decode(index, point)
        return point

    def draw(self, choose: Choose, rng: np.random.Generator | None = None) -> Suggestion:
        """A config: `choose(name, domain)` gives each parameter that is needed its value. rng: for `sample_from`."""
        work = Work(choose)
        config = self._root.build(work)
        for place, key, name, function in work.computed:
            place[key] = compute(name, function, config, rng)
        return Suggestion(config, work.params)

    def build(self, params: Mapping[str, Any], rng: np.random.Generator | None = None) -> Suggestion:
        """The config of these values, which must be in their domains; ConfigError where one is missing or is not.
        Values of options that were not taken are left out."""

        def given(name: str, domain: Domain) -> Any:
            if name not in params:
                raise ConfigError(f"the space has a parameter '{name}', and it has no value here")
            try:
                return domain.clip(params[name])
            except TypeError as error:
                raise ConfigError(f"parameter '{name}': {error}") from None

        return self.draw(given, rng)


def trial_rng(seed: int, number: int) -> np.random.Generator:
    """The random numbers of a trial's suggestion."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))
