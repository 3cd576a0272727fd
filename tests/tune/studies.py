"""Trials for the tests of the storages."""

from __future__ import annotations

from collections.abc import Callable

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.pool import NullPool

from rlplat.tune.address import is_url
from rlplat.tune.study import Study
from rlplat.tune.trial import CheckpointMark, Trial, TrialState

DISTRIBUTIONS = {
    "alpha": optuna.distributions.FloatDistribution(0, 1),
    "layers": optuna.distributions.CategoricalDistribution((1, 2, 4)),
}


def as_optuna_sees(study: Study) -> optuna.Study:
    """By Optuna's own reader, as it is now."""
    study.sync()
    storage: JournalStorage | RDBStorage
    if is_url(study._storage):
        address = str(study._storage).partition("://")[2]
        storage = RDBStorage(f"postgresql+psycopg2://{address}", engine_kwargs={"poolclass": NullPool})
    else:
        storage = JournalStorage(JournalFileBackend(str(study._storage)))
    names = [one.study_name for one in storage.get_all_studies()]
    return optuna.load_study(study_name=study._name if len(names) > 1 else names[0], storage=storage)


def new_trial(number: int) -> Trial:
    params = {"alpha": number / 10 % 1, "layers": 2}
    return Trial(number, {**params, "env": {"size": [8, 8], "name": "Grid"}}, params, seed=100 + number)


def report(study: Study, trial: Trial, value: float, progress: float | None = None, sign: float = 1) -> None:
    trial.step += 1
    trial.progress = progress if progress is not None else trial.step
    trial.values, trial.last = (value,), {"score": value, "loss": 0.1 * trial.step}
    trial.history.append((trial.progress, sign * value))
    study.report(trial)


def begin(study: Study, number: int) -> Trial:
    trial = new_trial(number)
    study.create(trial, DISTRIBUTIONS)
    trial.state = TrialState.RUNNING
    study.note(trial)
    return trial


def run_trial(study: Study, number: int, state: TrialState = TrialState.COMPLETE) -> Trial:
    """Three reports; the last one's value is its number."""
    trial = begin(study, number)
    for value in (0.0, number / 2, float(number)):
        report(study, trial, value)
    trial.state, trial.run_s = state, 1.5
    study.end(trial)
    return trial


def checkpoint(study: Study, trial: Trial) -> None:
    trial.checkpoint = CheckpointMark(trial.step, f"step_{trial.step}", trial.progress)
    study.note(trial)


def back_to_checkpoint(study: Study, trial: Trial) -> None:
    """As the tuner does with a trial that crashed."""
    mark = trial.checkpoint or CheckpointMark(0, "")
    del trial.history[mark.step :]
    trial.step, trial.progress = mark.step, trial.history[-1][0] if trial.history else 0.0
    trial.values = (trial.history[-1][1],) if trial.history else ()
    trial.last = {}
    trial.state = TrialState.WAITING
    trial.failures += 1
    study.note(trial)


# ------------------------------------------------- scenarios: what a tuner may have said when it dies; -> the trials


def ended(study: Study) -> list[Trial]:
    states = (TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED)
    trials = [run_trial(study, number, state) for number, state in enumerate(states)]
    failed = begin(study, 3)
    failed.state, failed.error, failed.failures = TrialState.FAILED, "ValueError: no", 3
    study.end(failed)
    return [*trials, failed]


def just_created(study: Study) -> list[Trial]:
    trial = new_trial(0)
    study.create(trial, DISTRIBUTIONS)
    return [trial, begin(study, 1)]


def in_steps_of_the_environment(study: Study) -> list[Trial]:
    trial = begin(study, 0)
    for progress in (1024.0, 2048.0, 2048.5):
        report(study, trial, progress / 3, progress)
    checkpoint(study, trial)
    return [trial]


def without_values_at_first(study: Study) -> list[Trial]:
    """Reports of an algorithm before its first episode has ended."""
    trial = begin(study, 0)
    for step in (1, 2):
        trial.step, trial.progress = step, 100.0 * step
        study.report(trial)
    report(study, trial, 0.5, 300.0)
    trial.step, trial.progress = 4, 400.0
    study.report(trial)
    return [trial]


def beyond_its_checkpoint(study: Study) -> list[Trial]:
    trial = begin(study, 0)
    report(study, trial, 0.5)
    checkpoint(study, trial)
    report(study, trial, 0.7)
    return [_without_last(trial)]


def back_at_its_checkpoint(study: Study) -> list[Trial]:
    (trial,) = beyond_its_checkpoint(study)
    report(study, trial, 0.8)
    back_to_checkpoint(study, trial)
    return [trial]


def back_at_its_checkpoint_and_on(study: Study) -> list[Trial]:
    (trial,) = back_at_its_checkpoint(study)
    report(study, trial, 0.9)  # not what it was the first time
    return [_without_last(trial)]


def back_at_its_checkpoint_and_beyond(study: Study) -> list[Trial]:
    (trial,) = back_at_its_checkpoint_and_on(study)
    for value in (0.91, 0.92, 0.93):
        report(study, trial, value, trial.progress + 0.5)
    checkpoint(study, trial)
    report(study, trial, 0.94)
    back_to_checkpoint(study, trial)
    return [trial]


def back_at_the_beginning(study: Study) -> list[Trial]:
    trial = begin(study, 0)
    for value in (0.1, 0.2):
        report(study, trial, value)
    back_to_checkpoint(study, trial)
    return [trial]


def exploited(study: Study) -> list[Trial]:
    """As PBT does: another config and progress, and the history goes on."""
    trial = begin(study, 0)
    report(study, trial, 0.1, 10.0)
    trial.config = {**trial.config, "alpha": 0.9}
    trial.params = {**trial.params, "alpha": 0.9}
    trial.notes = {"exploits": 1, "brackets": [1, {"a": None}]}
    trial.progress, trial.run_s = 5.0, 2.5
    checkpoint(study, trial)
    report(study, trial, 0.2, 6.0)
    trial.state = TrialState.PAUSED
    study.note(trial)
    return [trial]


def _without_last(trial: Trial) -> Trial:
    """`last` is written by `note` and `end`, and with a report without values."""
    trial.last = {}
    return trial


Scenario = Callable[[Study], list[Trial]]
SCENARIOS: list[Scenario] = [
    ended, just_created, in_steps_of_the_environment, without_values_at_first, beyond_its_checkpoint, exploited,
    back_at_its_checkpoint, back_at_its_checkpoint_and_on, back_at_its_checkpoint_and_beyond, back_at_the_beginning,
]  # fmt: skip
