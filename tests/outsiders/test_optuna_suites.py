"""Optuna's own suites (`optuna.testing`) on our journal and our searchers: what its users rely on holds here too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna.testing.pytest_storages", reason="needs Optuna 5")

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.testing.pytest_samplers import BasicSamplerTestCase
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import FrozenTrial, TrialState

from rlplat import tune
from rlplat.tune import trial as ours
from rlplat.tune.journal import Journal, replayed
from rlplat.tune.search import Searcher, make_searcher
from rlplat.tune.space import Space


class TestOurJournal(StorageTestCase):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[BaseStorage]:
        journal = Journal(tmp_path / "study.journal")
        yield replayed(journal)
        journal.close()

    def test_pickle_storage(self, storage: BaseStorage) -> None:
        """Not promised: the journal belongs to the process that holds its lock."""


def domain(distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return tune.choice(distribution.choices)
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    if isinstance(distribution, IntDistribution):
        if distribution.step != 1:
            return tune.choice(list(range(low, high + 1, distribution.step)))
        return (tune.lograndint if distribution.log else tune.randint)(low, high + 1)
    if step := distribution.step:  # type: ignore[attr-defined]
        return tune.quniform(low, high, step)
    return (tune.loguniform if distribution.log else tune.uniform)(low, high)  # type: ignore[attr-defined]


class AsSampler(BaseSampler):
    """A searcher of ours as one of Optuna's samplers: asked for a parameter at a time, with the study's trials."""

    def __init__(self, name: str) -> None:
        self.name = name

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        if distribution.single():
            return next(iter(getattr(distribution, "choices", (getattr(distribution, "low", None),))))
        space = Space.parse({name: domain(distribution)})
        modes = ["min" if way.name == "MINIMIZE" else "max" for way in study.directions]
        searcher = make_searcher(Searcher(self.name), space, seed=1, num_samples=1000, modes=modes)
        for other in study.get_trials(deepcopy=False):
            if other.state is TrialState.COMPLETE and space.domains[name].contains(other.params.get(name)):
                told = ours.Trial(other.number, dict(other.params), {name: other.params[name]}, 0)
                told.state, told.values = ours.TrialState.COMPLETE, tuple(other.values)
                searcher.add(told)
                searcher.end(told)
        suggestion = searcher.suggest(trial.number)
        assert suggestion is not None
        return suggestion.params[name]


class TestOurSearchers(BasicSamplerTestCase):
    @pytest.fixture(params=["random", "tpe", "qmc", "nsga2"])
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        return lambda: AsSampler(request.param)
