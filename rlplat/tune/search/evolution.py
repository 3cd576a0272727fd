"""CMA-ES: a normal distribution over the numbers of the space that moves to where the better trials are.

Hansen, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772). Trials come in generations; when a generation's
population has ended, its ranking moves the distribution, and the next trial is the first of the next generation. Until
then more trials are drawn from the distribution as it is, so that no slot waits.

The state is what the recorded trials say it is: a trial's notes have its generation, and the first of a generation has
the numbers of the trials that moved the distribution there; a searcher made anew goes through them again.

What is no number (choices), and what is drawn in some trials only, is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.core.verdicts import Suggests
from rlplat.tune.search.history import Outcome, Recorded
from rlplat.tune.space.domains import Domain
from rlplat.tune.space.ranges import Range
from rlplat.tune.space.space import Space, Suggestion, trial_rng

if TYPE_CHECKING:
    from cmaes import CMA


class EvolutionSearch(Suggests):
    """population_size: trials of a generation (4 + 3 ln d). sigma: the first standard deviation, as a share of each
    range. The first mean is the middle, or, with earlier trials, fitted to the best tenth of them (WS-CMA-ES, Nomura
    et al. 2021, arXiv 2012.06932)."""

    def __init__(
        self, space: Space, recorded: Recorded, *, seed: int, num_trials: int,
        population_size: int | None = None, sigma: float = 1 / 6, earlier: Sequence[Outcome] = (),
    ) -> None:  # fmt: skip
        conditions = space.conditions
        self._axes = {
            name: domain for name, domain in space.domains.items()
            if isinstance(domain, Range) and not conditions[name]
        }  # fmt: skip
        if not self._axes:
            raise ConfigError("searcher cmaes needs a number to search: uniform, loguniform, randint, ...")
        self.num_trials: int | None = num_trials
        others = [name for name in space.domains if name not in self._axes and name not in space.grid_axes]
        self.notice = f"draws {', '.join(others)} at random" if others else ""
        self._space, self._recorded, self._seed, self._total = space, recorded, seed, num_trials
        self.add, self.end = recorded.add, recorded.end  # type: ignore[method-assign]
        self._cma = self._open(population_size, sigma, earlier)
        self._population: dict[int, Outcome] = {}
        """Those that have ended, of the generation that is being made, by number."""

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self._total:
            return None
        ended, running = self._recorded.read()
        self._catch_up(ended, running)
        notes: dict[str, Any] = {}
        if len(self._population) >= self._cma.population_size:
            notes["told"] = sorted(self._population)[: self._cma.population_size]
            self._tell([self._population[told] for told in notes["told"]])
            self._population = {}
        notes["generation"] = self._cma.generation
        rng = trial_rng(self._seed, number)
        self._cma.reseed_rng(int(rng.integers(2**31)))
        shares = dict(zip(self._axes, self._cma.ask().tolist(), strict=True))
        grid = self._space.grid_point(number % self._space.grid_size)

        def choose(name: str, domain: Domain) -> Any:
            if name in shares:
                return domain.at(min(shares[name], 1 - 1e-12))
            return grid[name] if name in grid else domain.sample(rng)

        suggestion = self._space.draw(choose, rng)
        return Suggestion(suggestion.config, suggestion.params, notes)

    def _open(self, population_size: int | None, sigma: float, earlier: Sequence[Outcome]) -> CMA:
        try:
            from cmaes import CMA, get_warm_start_mgd
        except ImportError:
            raise MissingExtra("cmaes", "tune", "searcher cmaes") from None
        dim = len(self._axes)
        mean, cov = np.full(dim, 0.5), None
        known = [outcome for outcome in earlier if all(name in outcome.params for name in self._axes)]
        if known:
            ranked = sorted(known, key=lambda outcome: outcome.rank)
            solutions = [(self._shares(outcome), float(rank)) for rank, outcome in enumerate(ranked)]
            mean, sigma, cov = get_warm_start_mgd(solutions, gamma=max(0.1, 1 / len(solutions)))
            mean = np.clip(mean, 0.0, 1.0)
        bounds = np.array([[0.0, 1.0]] * dim)
        return CMA(
            mean=mean, sigma=sigma, cov=cov, bounds=bounds, population_size=population_size, seed=0,
            n_max_resampling=10 * dim,
        )  # fmt: skip

    def _catch_up(self, ended: list[Outcome], running: list[Outcome]) -> None:
        """The generations that an earlier life of this tuner has begun."""
        by_number = self._population | {outcome.number: outcome for outcome in ended}
        steps = sorted(
            (outcome.notes["generation"], outcome.notes["told"])
            for outcome in [*ended, *running]
            if "told" in outcome.notes
        )
        for generation, told in steps:
            if generation == self._cma.generation + 1:
                self._tell([by_number[number] for number in told])
        self._population = {
            number: outcome for number, outcome in by_number.items()
            if outcome.state != "failed" and outcome.notes.get("generation", 0) == self._cma.generation
        }  # fmt: skip

    def _tell(self, population: list[Outcome]) -> None:
        ranked = sorted(population, key=lambda outcome: outcome.rank)  # only the order counts
        self._cma.tell([(self._shares(outcome), float(rank)) for rank, outcome in enumerate(ranked)])

    def _shares(self, outcome: Outcome) -> np.ndarray:
        return np.array([domain.share(outcome.params[name]) for name, domain in self._axes.items()])
