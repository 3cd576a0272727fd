"""A tuner that shares its study and loses a trial to another tuner, while the trial's process is still at it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra 'tune'")

import rlplat
from rlplat.tune.core.experiment import Experiment
from rlplat.tune.core.trial import Trial, TrialState
from rlplat.tune.joined_tuner import JoinedTuner
from rlplat.tune.results.directory import ExperimentDirectory
from rlplat.tune.schedulers.registry import make_scheduler
from rlplat.tune.search.search import make_searcher
from rlplat.tune.settings.spec import ExperimentSpec
from rlplat.tune.space.space import Space
from rlplat.tune.storage.study import Study
from rlplat.tune.trials.trainables import check_trainable
from rlplat.tune.view.table import open_view


class TakenStudy(Study):
    """A journal in which "another tuner" takes trial 0 once `is_due` says so, and has brought it to its end."""

    is_due: Callable[[], bool]
    orphan: int | None = None
    """A trial of a third tuner that is gone; to ask for it reconnects, and then trial 0 turns out to be taken."""
    taken: Trial | None = None
    first: Trial | None = None
    """The own trial 0, once it is made."""
    _reported_lost = False

    def create(self, trial: Trial, *args: Any) -> None:
        super().create(trial, *args)
        self.first = self.first if trial.number else trial

    @property
    def lost(self) -> bool:
        return self.taken is not None and not self._reported_lost

    def let_go(self) -> list[int]:
        if self.taken is None and self.orphan is None and self.first and self.is_due():
            self._take()
        if not self.lost:
            return []
        self._reported_lost = True
        return [0]

    def _take(self) -> None:
        self.taken = copy.deepcopy(self.first)
        assert self.taken is not None
        self.taken.state = TrialState.COMPLETE

    def others(self, first: int, numbers: Iterable[int]) -> tuple[list[Trial], list[int]]:
        trials = [copy.deepcopy(self.taken)] if self.taken is not None and 0 in numbers else []
        if (
            self.orphan is not None
            and self.first is not None
            and (first <= self.orphan or self.orphan in numbers)
        ):
            state = TrialState.RUNNING if self.taken is None else TrialState.COMPLETE
            trials.append(Trial(self.orphan, {"a": 1}, {}, 7, state, notes={"directory": "/nowhere"}))
        is_left = self.orphan is not None and self.taken is None and self.first and self.is_due()
        return trials, [self.orphan] if is_left and self.orphan is not None else []

    def take(self, number: int) -> Trial | None:
        self._take()
        return None  # a fourth one was faster

    def report(self, trial: Trial) -> None:
        if self.taken is not None and trial.number == 0:
            raise KeyError(0)  # its id is forgotten
        super().report(trial)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        yield True


@contextmanager
def joined(trainable: Any, path: Path, **settings: Any) -> Iterator[tuple[JoinedTuner, TakenStudy]]:
    """A tuner on a study whose first trial will be taken."""
    spec = ExperimentSpec(trainable, {"a": 1}, ("x",), ("max",), name="e", out=path / "e", **settings)
    spec, view = spec.checked(), open_view(False)
    kind, space = check_trainable(spec.trainable), Space.parse(spec.space)
    scheduler = make_scheduler(spec.scheduler, kind.unit, stop=spec.stop)
    scheduler.open(spec.seed, space)
    searcher = make_searcher(spec.searcher, space, seed=0, num_samples=spec.num_samples, modes=("max",))
    experiment = Experiment(spec, searcher, scheduler, trial_seed=lambda number: number)
    with ExperimentDirectory.open(spec.out, spec, resume=False) as directory:
        study = TakenStudy.open(directory.storage, spec.name, ["max"], resume=False)
        assert isinstance(study, TakenStudy)
        study.distributions = lambda params: {}
        try:
            yield JoinedTuner(spec, kind, experiment, study, directory, view), study  # type: ignore[arg-type]
        finally:
            study.close()
            view.finish()


def outcome(tuner: JoinedTuner) -> list[tuple[int, str, int]]:
    """(number, state, failures) of each trial but the lost one."""
    trials = tuner.study.load()
    return [(trial.number, str(trial.state), trial.failures) for trial in trials if trial.number]


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_lost_trial_that_is_still_under_way_is_nobody_elses_fault(
    how: str, cluster: None, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def trial(config: dict[str, Any], report: Any) -> None:
        if report.number == 0:
            begun.touch()
            while how == "hangs" or not go_on.exists():
                threading.Event().wait(0.01)
            raise ValueError("of the lost one")
        report(x=1)

    def is_due() -> bool:
        if begun.exists():
            go_on.touch()
        return begun.exists()

    settings: dict[str, Any] = {"resources": {"cpu": 2}}  # there is room for one
    settings["max_silence_s"] = 10.0 if how == "hangs" else None
    with joined(trial, tmp_path, num_samples=2, **settings) as (tuner, study):
        study.is_due = is_due  # type: ignore[method-assign]
        tuner.run(resume=True)
        assert outcome(tuner) == [(1, "complete", 0)]
        assert study.taken is not None


def test_what_a_trial_before_it_did_begins_the_next_one_anew_in_a_new_process(
    cluster: None, tmp_path: Path
) -> None:
    def trial(config: dict[str, Any], report: Any) -> None:
        if report.number == 0:
            raise ValueError("of the one before")
        report(x=1)

    with joined(trial, tmp_path, num_samples=2, max_concurrent=1) as (tuner, study):
        study.is_due = lambda: False  # type: ignore[method-assign]
        tuner._restore()
        while not (slot := tuner._slots.by_trial.get(0)) or slot.calls[0].method != "begin":
            tuner._fill()
            tuner._turn()
        tuner._slots.release(0)  # its call is under way
        study._take()
        tuner._let_go()
        tuner._fill()
        assert [call.number for call in slot.calls] == [0, 1]
        while slot.calls and slot.calls[0].number == 0:
            tuner._turn()
        assert slot.is_free and [call.method for call in slot.calls] == ["ready"]
        tuner.run(resume=False)
        assert outcome(tuner) == [(1, "complete", 0)]


def test_to_ask_for_an_orphan_may_show_that_an_own_trial_is_lost(cluster: None, tmp_path: Path) -> None:
    """Nothing is left to begin here: the answer of the lost trial must not be recorded all the same."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def trial(config: dict[str, Any], report: Any) -> None:
        begun.touch()
        while not go_on.exists():
            threading.Event().wait(0.01)
        report(x=1)

    with joined(trial, tmp_path, num_samples=2, max_concurrent=2) as (tuner, study):

        def is_due() -> bool:
            return begun.exists() and tuner._slots.by_trial[0].calls[0].method == "begin"

        study.is_due = is_due  # type: ignore[method-assign]
        take = study.take

        def taken(number: int) -> Trial | None:
            go_on.touch()
            call = tuner._slots.by_trial[0].calls[0]
            rlplat.wait([call.ref], timeout=30)  # its answer is the next thing that the tuner sees
            return take(number)

        study.take = taken  # type: ignore[method-assign]
        study.orphan = 1
        analysis = tuner.run(resume=True)
        assert study.taken is not None and study._reported_lost
        assert not analysis.trials[0].history
