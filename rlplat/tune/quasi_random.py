"""Quasi-random search: points that fill the space more evenly than random ones (Sobol or Halton, scrambled).

Each parameter of the space, of all options, is one axis; a trial uses those that it needs. Trial n is the sequence's
point n, so nothing has to be remembered and nothing is learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.domains import Domain
from rlplat.tune.search import trial_rng
from rlplat.tune.space import Space, Suggestion


class QuasiRandomSearch:
    notice = ""

    def __init__(
        self, space: Space, *, seed: int, num_trials: int, sequence: str = "sobol", scramble: bool = True
    ) -> None:
        try:
            from scipy.stats import qmc
        except ImportError:
            raise MissingExtra("scipy", "tune", "searcher qmc") from None
        if sequence not in ("sobol", "halton"):
            raise ConfigError(f"searcher qmc: sequence is {sequence!r}; there are sobol and halton")
        self.num_trials: int | None = num_trials
        self._space, self._seed, self._total = space, seed, num_trials
        self._axes = {
            name: axis for axis, name in enumerate(n for n in space.domains if n not in space.grid_axes)
        }
        kind = qmc.Sobol if sequence == "sobol" else qmc.Halton
        self._engine: Any = None
        if self._axes:
            self._engine = kind(
                len(self._axes), scramble=scramble, seed=np.random.default_rng((seed, 0x5EED))
            )
        self._position = 0

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self._total:
            return None
        grid_index = number % self._space.grid_size
        grid = self._space.grid_point(grid_index)
        point = self._point(number) if self._axes else np.empty(0)

        def choose(name: str, domain: Domain) -> Any:
            return grid[name] if name in grid else domain.at(float(point[self._axes[name]]))

        return self._space.draw(choose, trial_rng(self._seed, number))

    def _point(self, number: int) -> np.ndarray:
        if number < self._position:
            self._engine.reset()
            self._position = 0
        if number > self._position:
            self._engine.fast_forward(number - self._position)
        self._position = number + 1
        return self._engine.random(1)[0]
