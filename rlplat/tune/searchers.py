"""The faces of a search and its own ways to do it, by grids, at random or evenly; and what models learn from.

What a searcher's model learns from: the trials that have ended, and those that run; at most so many of them.

    history = History(max_trials=1000); history.add(outcome); history.outcomes

The time that a model takes grows with what it is shown, so a `History` keeps the best quarter and the newest of the
rest: what fell out does not come back, and an experiment of 10,000 trials takes as long per decision as one of 1,000.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.domains import Domain
from rlplat.tune.roster import split
from rlplat.tune.space import Choose, Space, Suggestion, trial_rng
from rlplat.tune.trial import Trial, TrialState


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


_SCRAMBLE, _SHIFT = 1, 2  # so that these random numbers are no other's


class GridSearch(Suggests):
    """Grids in full, point by point; `ways` of a subclass says how the rest is found."""

    num_trials: int

    def __init__(self, space: Space, seed: int, num_trials: int) -> None:
        self.num_trials, self._space, self._seed = num_trials, space, seed

    def suggest(self, number: int) -> Suggestion | None:
        if number >= self.num_trials:
            return None
        rng, notes = trial_rng(self._seed, number), dict[str, Any]()
        grid = self._space.grid_point(number % self._space.grid_size)
        choose = self.ways(number, rng, notes)

        def in_grid(name: str, domain: Domain) -> Any:
            return grid[name] if name in grid else choose(name, domain)

        suggestion = self._space.draw(in_grid if grid else choose, rng)
        return replace(suggestion, notes=notes) if notes else suggestion

    def ways(self, number: int, rng: np.random.Generator, notes: dict[str, Any]) -> Choose:
        """How trial `number` chooses what is no grid: here at random; the same time and no memory, however many. notes:
        what is wanted back with the recorded trial."""
        return lambda name, domain: domain.sample(rng)


class QuasiRandomSearch(GridSearch):
    """Quasi-random search: points that fill the space more evenly than random ones (Sobol or Halton, scrambled).

    Each parameter of the space, of all options, is one axis; a trial uses those that it needs. Each point of a grid has
    the whole sequence, shifted (Cranley and Patterson 1976): were it dealt out among them, every second point of
    Sobol's sequence, say, would be in the same half of the first axis. So trial n is point n // grid_size of the
    sequence shifted for grid point n % grid_size; nothing has to be remembered, and nothing is learned.
    """

    def __init__(
        self, space: Space, seed: int, num_trials: int, *, sequence: str = "sobol", scramble: bool = True
    ) -> None:
        try:
            from scipy.stats import qmc
        except ImportError:
            raise MissingExtra("scipy", "tune", "searcher qmc") from None
        super().__init__(space, seed, num_trials)
        names = [name for name in space.domains if name not in space.grid_axes]
        self._axes = {name: axis for axis, name in enumerate(names)}
        kind = qmc.Sobol if sequence == "sobol" else qmc.Halton
        self._engine = kind(len(self._axes), scramble=scramble, seed=np.random.default_rng((seed, _SCRAMBLE)))
        self._at, self._last = -1, np.empty(0)

    def ways(self, number: int, rng: np.random.Generator, notes: dict[str, Any]) -> Choose:
        point = self._point(*divmod(number, self._space.grid_size))
        return lambda name, domain: domain.at(float(point[self._axes[name]]))

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


# -------------------------------------------------------------------------------- what a model learns from


@dataclass(eq=False, slots=True)
class Outcome:
    """A trial as a model sees it."""

    number: int
    """Negative: a trial of an earlier experiment."""
    params: dict[str, Any]
    state: str
    """complete, stopped (by the trial scheduler), failed or running."""
    scores: tuple[float, ...] = ()
    """One for each objective, higher is better; empty where it failed or runs."""
    step: int = 0
    """Reports of a stopped trial."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What its searcher wrote down when it suggested it."""
    frozen: Any = None
    """The same as a sampler wants it, once it was made."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Better ones first: complete trials by their score; then stopped ones, those that came further first."""
        if self.state == "complete":
            return (0, -self.scores[0], self.number)
        return (1, -self.step, -self.scores[0], self.number)


class LearningSearch(GridSearch):
    """A searcher that learns from the trials of the experiment, as they begin and end."""

    def __init__(self, space: Space, seed: int, num_trials: int, maximize: Sequence[bool]) -> None:
        super().__init__(space, seed, num_trials)
        self._signs = [1.0 if up else -1.0 for up in maximize]
        self._running: dict[int, Trial] = {}
        self._ended: list[Outcome] = []

    def add(self, trial: Trial) -> None:
        self._running[trial.number] = trial

    def end(self, trial: Trial) -> None:
        del self._running[trial.number]
        self._ended.append(_outcome_of(trial, self._signs))

    def read(self) -> tuple[list[Outcome], list[Outcome]]:
        """(those that ended since the last call, those that have not ended), by number."""
        ended, self._ended = sorted(self._ended, key=lambda one: one.number), []
        return ended, [_outcome_of(trial, self._signs) for _, trial in sorted(self._running.items())]


class History:
    """The outcomes that a model is shown, by number."""

    def __init__(self, max_trials: int) -> None:
        if max_trials < 10:
            raise ConfigError(f"searcher: max_history is {max_trials}; a model needs 10 trials at least")
        self._max_trials = max_trials
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        if outcome.state == "failed":
            return
        insort(self.outcomes, outcome, key=lambda one: one.number)
        if len(self.outcomes) > self._max_trials + self._max_trials // 8:  # not for each one anew
            self._drop()

    def keep(self, is_kept: Callable[[Outcome], bool]) -> None:
        """Drop the others for good."""
        self.outcomes = [outcome for outcome in self.outcomes if is_kept(outcome)]

    def _drop(self) -> None:
        newest = self.outcomes[-(self._max_trials - self._max_trials // 4) :]
        older = self.outcomes[: -len(newest)]
        best = {id(outcome) for outcome in self._best(self._max_trials // 4)}
        room = self._max_trials - len(newest)
        kept = [outcome for outcome in older if id(outcome) in best]
        for outcome in reversed(older):  # where some of the best are among the newest, more of the newest
            if len(kept) >= room:
                break
            if id(outcome) not in best:
                kept.append(outcome)
        self.outcomes = sorted([*kept, *newest], key=lambda one: one.number)

    def _best(self, size: int) -> list[Outcome]:
        if not any(len(outcome.scores) > 1 for outcome in self.outcomes):
            return sorted(self.outcomes, key=lambda one: one.rank)[:size]
        best: list[Outcome] = []
        left = [(one.scores, one) for one in self.outcomes if one.state == "complete"]
        while left and len(best) < size:
            front, left = split(left)
            best += [one for _, one in front][: size - len(best)]
        return best


def _outcome_of(trial: Trial, signs: Sequence[float]) -> Outcome:
    """signs: 1 where the objective is to be large, -1 where small."""
    known = {TrialState.COMPLETE: "complete", TrialState.STOPPED: "stopped", TrialState.FAILED: "failed"}
    state = known.get(trial.state, "running")
    outcome = Outcome(trial.number, dict(trial.params), state, notes=trial.notes.get("searcher", {}))
    if state in ("complete", "stopped"):
        outcome.step = len(trial.history)
        if not trial.values or any(math.isnan(value) for value in trial.values):
            outcome.state = "failed"
        else:
            outcome.scores = tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))
    return outcome
