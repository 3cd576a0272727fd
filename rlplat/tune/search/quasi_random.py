"""Quasi-random search: points that fill the space more evenly than random ones (Sobol or Halton, scrambled).

Each parameter of the space, of all options, is one axis; a trial uses those that it needs. Each point of a grid has
the whole sequence, shifted (Cranley and Patterson 1976): were it dealt out among them, every second point of Sobol's
sequence, say, would be in the same half of the first axis. So trial n is point n // grid_size of the sequence shifted
for grid point n % grid_size; nothing has to be remembered, and nothing is learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.core.verdicts import Suggests
from rlplat.tune.space.domains import Domain
from rlplat.tune.space.space import Space, Suggestion, trial_rng

_SCRAMBLE, _SHIFT = 1, 2  # so that these random numbers are no other's


class QuasiRandomSearch(Suggests):
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
        self._engine = kind(len(self._axes), scramble=scramble, seed=np.random.default_rng((seed, _SCRAMBLE)))
        self._at, self._last = -1, np.empty(0)

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self._total:
            return None
        index, grid_index = divmod(number, self._space.grid_size)
        grid = self._space.grid_point(grid_index)
        point = self._point(index, grid_index)

        def choose(name: str, domain: Domain) -> Any:
            return grid[name] if name in grid else domain.at(float(point[self._axes[name]]))

        return self._space.draw(choose, trial_rng(self._seed, number))

    def _point(self, index: int, grid_index: int) -> np.ndarray:
        if index != self._at:
            if index <= self._at:
                self._engine.reset()
                self._at = -1
            if index > self._at + 1:
                self._engine.fast_forward(index - self._at - 1)
            self._at, self._last = index, self._engine.random(1)[0]
        if grid_index == 0:
            return self._last
        shift = np.random.default_rng((self._seed, _SHIFT, grid_index)).random(len(self._axes))
        return (self._last + shift) % 1.0
