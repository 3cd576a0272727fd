"""A study that is played by a searcher: suggestions are recorded, and end as an objective says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlplat import tune
from rlplat.tune.samplers import distributions
from rlplat.tune.search import Searcher, Suggestion, make_searcher
from rlplat.tune.searchers import Suggests
from rlplat.tune.space import Space
from rlplat.tune.study import Study
from rlplat.tune.trial import Trial, TrialState

Objective = Callable[[dict[str, Any]], float | tuple[float, ...]]

BRANIN = Space.parse({"x": tune.uniform(-5, 10), "y": tune.uniform(0, 15)})


def branin(config: dict[str, Any]) -> float:
    """The regret: 0 at three places."""
    x, y = config["x"], config["y"]
    bowl = (y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


class Play:
    """One experiment in one directory; `reopen` is what a restart does."""

    def __init__(
        self, path: Path, settings: Searcher, space: Space, objective: Objective, *,
        num_samples: int = 1000, seed: int = 0, modes: Sequence[str] = ("max",), storage: str = "",
    ) -> None:  # fmt: skip
        """storage: empty: a journal in the directory."""
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.settings, self.space, self.objective = path, settings, space, objective
        self.num_samples, self.seed, self.modes = num_samples, seed, list(modes)
        self.running: dict[int, Trial] = {}
        self.number = 0
        self.storage = storage or path / "study.journal"
        self._open(resume=False)

    def _open(self, resume: bool) -> None:
        self.study = Study.open(self.storage, self.path.name, self.modes, resume=resume)
        self.searcher: Suggests = make_searcher(
            self.settings,
            self.space,
            seed=self.seed,
            num_samples=self.num_samples,
            modes=self.modes,
        )

    def reopen(self) -> None:
        self.study.close()
        self._open(resume=True)
        trials = self.study.load()
        assert len(trials) == self.number
        for trial in trials:
            self.searcher.add(trial)
            if trial.state.has_ended:
                self.searcher.end(trial)
        self.running = {trial.number: trial for trial in trials if not trial.state.has_ended}

    def begin(self) -> Suggestion:
        suggestion = self.searcher.suggest(self.number)
        assert suggestion is not None
        trial = Trial(self.number, suggestion.config, suggestion.params, seed=0, state=TrialState.RUNNING)
        if suggestion.notes:
            trial.notes["searcher"] = suggestion.notes
        self.study.create(trial, distributions(self.space, trial.params))
        self.searcher.add(trial)
        self.running[self.number] = trial
        self.number += 1
        return suggestion

    def end(self, number: int, state: TrialState = TrialState.COMPLETE) -> tuple[float, ...]:
        trial = self.running.pop(number)
        values = self.objective(trial.config)
        trial.values = values if isinstance(values, tuple) else (values,)
        trial.step, trial.progress, trial.last = 1, 1.0, {"value": trial.values[0]}
        trial.history.append((1.0, trial.values[0] if self.modes[0] == "max" else -trial.values[0]))
        self.study.report(trial)
        trial.state = state
        self.study.end(trial)
        self.searcher.end(trial)
        return trial.values

    def go_on(self, upto: int) -> list[Suggestion]:
        suggestions = []
        while self.number < upto:
            suggestions.append(self.begin())
            self.end(self.number - 1)
        return suggestions

    def close(self) -> None:
        self.study.close()


def best_regret(path: Path, settings: Searcher, seed: int, num_trials: int) -> float:
    """Of the trials on Branin."""
    play = Play(path, settings, BRANIN, branin, num_samples=num_trials, seed=seed, modes=["min"])
    suggestions = play.go_on(num_trials)
    play.close()
    return min(branin(suggestion.config) for suggestion in suggestions)
