"""A study in a journal file: `StudyWriter` that writes Optuna's journal lines without keeping the trials in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import TrialState

from rlplat.errors import ConfigError
from rlplat.tune.storage.journal import Journal, read_logs

# The op codes of the lines (optuna.storages.journal._storage.JournalOperation): a file format, so they do not change.
_CREATE_STUDY = 0
_DELETE_STUDY = 1
_SET_STUDY_USER_ATTR = 2
_SET_STUDY_SYSTEM_ATTR = 3
_CREATE_TRIAL = 4
_SET_TRIAL_STATE_VALUES = 6
_SET_TRIAL_INTERMEDIATE_VALUE = 7
_SET_TRIAL_USER_ATTR = 8
_SET_TRIAL_SYSTEM_ATTR = 9
METRIC_NAMES = "study:metric_names"
"""The study's system attribute in which Optuna keeps them (`Study.set_metric_names`)."""


@dataclass(slots=True)
class StoredTrial:
    """What is read of a trial: of Optuna's `FrozenTrial` the parts that hold ours."""

    number: int
    is_finished: bool
    intermediate_values: dict[int, float] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)


@dataclass
class StoredStudy:
    name: str
    directions: list[str]
    """"max" or "min"."""
    user_attrs: dict[str, Any] = field(default_factory=dict)
    trials: list[StoredTrial] = field(default_factory=list)
    """By number."""


class JournalWriter:
    def __init__(self, path: Path, name: str, directions: Sequence[str]) -> None:
        self._name = name
        self._journal = Journal(path)
        self._writer_id = f"rlplat-{os.getpid()}"
        self.is_new = self._journal.is_empty
        try:
            if self.is_new:
                self._study_attrs: dict[str, Any] = {}
                self.directions = list(directions)
                wanted = [
                    StudyDirection.MAXIMIZE if way == "max" else StudyDirection.MINIMIZE for way in directions
                ]
                self._write(_CREATE_STUDY, study_name=name, directions=[int(way) for way in wanted])
            else:
                study = read_study(self._journal.read_logs(), self._journal.path, name)
                self._name, self._study_attrs, self.directions = (
                    study.name,
                    study.user_attrs,
                    study.directions,
                )
        except BaseException:
            self._journal.close()
            raise

    def create_trial(
        self, number: int, params: dict[str, float], distributions: dict[str, str],
        user_attrs: dict[str, Any], system_attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        self._write(
            _CREATE_TRIAL,
            study_id=0,
            datetime_start=_now(),
            state=int(TrialState.RUNNING),
            value=None,
            values=None,
            distributions=distributions,
            params=params,
            user_attrs=user_attrs,
            system_attrs=system_attrs,
            intermediate_values={},
        )

    def set_intermediate_value(self, number: int, step: int, value: float) -> None:
        self._write(_SET_TRIAL_INTERMEDIATE_VALUE, trial_id=number, step=step, intermediate_value=value)

    def set_user_attr(self, number: int, key: str, value: Any) -> None:
        self._write(_SET_TRIAL_USER_ATTR, trial_id=number, user_attr={key: value})

    def set_system_attr(self, number: int, key: str, value: Any) -> None:
        self._write(_SET_TRIAL_SYSTEM_ATTR, trial_id=number, system_attr={key: value})

    def finish_trial(self, number: int, state: TrialState, values: Sequence[float] | None) -> None:
        self._write(
            _SET_TRIAL_STATE_VALUES,
            trial_id=number,
            state=int(state),
            values=list(values) if values is not None else None,
            datetime_complete=_now(),
        )

    def set_study_attr(self, key: str, value: Any) -> None:
        self._study_attrs[key] = value
        self._write(_SET_STUDY_USER_ATTR, study_id=0, user_attr={key: value})

    def set_metric_names(self, names: Sequence[str]) -> None:
        self._write(_SET_STUDY_SYSTEM_ATTR, study_id=0, system_attr={METRIC_NAMES: list(names)})

    def study_attrs(self) -> dict[str, Any]:
        return dict(self._study_attrs)

    def load_trials(self) -> list[StoredTrial]:
        return read_study(self._journal.read_logs(), self._journal.path, self._name).trials

    def sync(self, wait: bool = False) -> None:
        self._journal.sync(wait)

    def close(self) -> None:
        self._journal.close()

    def _write(self, op_code: int, **fields: Any) -> None:
        self._journal.append({"op_code": op_code, "worker_id": self._writer_id, **fields})


def read_journal(path: Path, name: str | None) -> StoredStudy:
    """The study in a journal that somebody may be writing: the only one, or the one of that name. ConfigError: it is
    not there."""
    if not path.exists():
        raise ConfigError(f"there is no {path}")
    return read_study(read_logs(path), path, name)


def read_study(logs: Iterable[dict[str, Any]], path: Path, name: str | None) -> StoredStudy:
    """From the lines themselves: a third of the time that Optuna's replay takes, which copies a trial for each."""
    studies: list[StoredStudy | None] = []
    trials: list[StoredTrial] = []
    for log in logs:
        code = log["op_code"]
        if code >= _SET_TRIAL_STATE_VALUES and code <= _SET_TRIAL_SYSTEM_ATTR:
            trial = trials[log["trial_id"]]
            if code == _SET_TRIAL_INTERMEDIATE_VALUE:
                trial.intermediate_values[log["step"]] = log["intermediate_value"]
            elif code == _SET_TRIAL_SYSTEM_ATTR:
                trial.system_attrs.update(log["system_attr"])
            elif code == _SET_TRIAL_USER_ATTR:
                trial.user_attrs.update(log["user_attr"])
            else:
                trial.is_finished = TrialState(log["state"]).is_finished()
        elif code == _CREATE_STUDY:
            ways = ["max" if way == StudyDirection.MAXIMIZE else "min" for way in log["directions"]]
            studies.append(StoredStudy(log["study_name"], ways))
        elif code == _DELETE_STUDY:
            studies[log["study_id"]] = None
        elif (study := studies[log["study_id"]]) is None:
            continue
        elif code == _CREATE_TRIAL:
            trials.append(StoredTrial(len(study.trials), False, {}, log["user_attrs"], log["system_attrs"]))
            study.trials.append(trials[-1])
        elif code == _SET_STUDY_USER_ATTR:
            study.user_attrs.update(log["user_attr"])
    there = [study for study in studies if study is not None]
    found = [study for study in there if study.name == name] or there  # an experiment may get another name
    if len(found) != 1:
        held = (
            f"holds the experiments {', '.join(repr(study.name) for study in there)}" if there else "is empty"
        )
        raise ConfigError(f"{path} {held}" + (f", not {name!r}" if name is not None else ""))
    return found[0]


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="microseconds")
