"""The study: an experiment's trials in one of Optuna's storages, as the truth that a resumed experiment begins from.

    study = Study.open(out / "study.journal", "demo", ["max"], resume=resume)
    study.settle({"experiment": {...}})
    trials = study.load()                                      # after a crash: as they were
    study.create(trial, distributions); study.report(trial); study.note(trial); study.end(trial)
    study.sync()                                               # once per turn: what was said is on the disk

How a `Trial` is kept, in Optuna's terms (`optuna.load_study` and optuna-dashboard see an ordinary study):

    params, distributions         what was drawn
    intermediate values           {n: metric} of the n-th report that counts, n = 1, 2, ...
    system attribute report:<n>   [progress, step, life, [metrics...]] of it
    system attribute trial        everything else, written when it changes
    user attributes               config; metrics (the last report, at the end); error
    state                         RUNNING until it ends; COMPLETE, PRUNED (stopped by the scheduler), FAIL
    value                         the metric of the last report

`trial` says how many reports counted when it was written (`reports`); those after them count if they are of the same
life. A trial that goes back to a checkpoint begins its next life, so what it had reported beyond counts no more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rlplat.errors import ConfigError, MissingExtra
from rlplat.paths import expanded
from rlplat.tune.address import is_url, shown
from rlplat.tune.trial import CheckpointMark, Trial, TrialState

try:
    from optuna.distributions import BaseDistribution
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import BaseStorage
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial
    from optuna.trial import TrialState as OptunaState

    from rlplat.tune.journal import JournalStudy, ReadJournal, replayed, study_in
except ImportError:
    raise MissingExtra("optuna", "tune", "tuning") from None

if TYPE_CHECKING:
    from rlplat.tune.database import DatabaseStudy


T = TypeVar("T")
Direction = Literal["max", "min"]

_DIRECTIONS: dict[Direction, StudyDirection] = {
    "max": StudyDirection.MAXIMIZE,
    "min": StudyDirection.MINIMIZE,
}
_OPTUNA_STATES = {
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.STOPPED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
}
_METRIC_NAMES = "study:metric_names"
"""The study's system attribute in which Optuna keeps them (`Study.set_metric_names`)."""


@dataclass
class _Written:
    """What the storage knows of a trial that has not ended."""

    trial_id: int
    """Optuna's."""
    config: str = ""
    """The user attribute."""
    record: str = ""
    reports: int = 0
    """That count."""
    life: int = 0


class Study:
    def __init__(
        self, open_study: JournalStudy | DatabaseStudy, storage: str | Path, name: str, direction: Direction
    ) -> None:
        """`Study.open` makes one. direction: of the first metric."""
        self._open = open_study
        self._storage, self._name = storage, name
        self._is_closed = False
        self._sign = -1.0 if direction == "min" else 1.0
        self._written: dict[int, _Written] = {}
        self.distributions: Callable[[dict[str, Any]], Mapping[str, BaseDistribution]] = lambda params: {}
        """What the params of a new trial were drawn from: a searcher with a model of Optuna's says it."""

    @classmethod
    def open(
        cls, storage: str | Path, name: str, directions: Sequence[Direction], *, resume: bool,
        say: Callable[[str], None] = print,
    ) -> Study:  # fmt: skip
        """storage: a path, or postgresql://user@host/database. resume: the study may be there already (if the tuner
        was killed before it had written anything, it is not). say: for what the user must know, such as a server that
        is waited for. ConfigError: it is there and resume is False; it cannot be reached; another process is at it."""
        ways = [_DIRECTIONS[direction] for direction in directions]
        study: JournalStudy | DatabaseStudy
        if is_url(storage):
            from rlplat.tune.database import DatabaseStudy

            study = DatabaseStudy(str(storage), name, ways, resume=resume, say=say)
        else:
            study = JournalStudy(expanded(storage), name, ways, say)
        try:
            if not study.is_new and not resume:
                other = (
                    "give the new one another name (--set name=...)"
                    if is_url(storage)
                    else "start a new one with --out"
                )
                raise ConfigError(
                    f"there is an experiment {name!r} in {shown(storage)}: continue with --resume, or {other}"
                )
            there = study.do(lambda: study.storage.get_study_directions(study.study_id))
            if there != ways:
                were = ["max" if way is StudyDirection.MAXIMIZE else "min" for way in there]
                raise ConfigError(
                    f"mode was {', '.join(were)} and is {', '.join(directions)} now; an experiment keeps what "
                    "it began with; start a new one with --out"
                )
        except BaseException:
            study.close()
            raise
        return cls(study, storage, name, directions[0])

    # ----------------------------------------------------------------------------------------- the experiment's own

    @property
    def settings(self) -> dict[str, Any]:
        """What `settle` has written."""
        return self._do(lambda storage, study_id: storage.get_study_user_attrs(study_id))

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Write the experiment's settings, as far as they are not there."""
        known = self.settings
        for key, value in settings.items():
            plain = as_plain(value, key)
            if key not in known or known[key] != plain:
                self._set_study_attr("user", key, plain)

    def name_metrics(self, names: Sequence[str]) -> None:
        """So that Optuna's dashboard writes them at its axes, instead of "Objective 0"."""
        self._set_study_attr("system", _METRIC_NAMES, list(names))

    def _set_study_attr(self, whose: Literal["user", "system"], key: str, value: Any) -> None:
        self._do(lambda storage, id: getattr(storage, f"set_study_{whose}_attr")(id, key, value))

    # ------------------------------------------------------------------------------------------------------- trials

    def create(self, trial: Trial, distributions: Mapping[str, BaseDistribution] | None = None) -> None:
        """distributions: Optuna's, by the names of `trial.params` that have one; None: `self.distributions` says."""
        if wrong := key_that_is_no_text(trial.config, "config"):
            raise ConfigError(wrong)
        if distributions is None:
            distributions = self.distributions(trial.params)
        known = {name: domain for name, domain in distributions.items() if name in trial.params}
        config, record = as_json(trial.config, "config"), self._record(trial, 0, 0)
        template = FrozenTrial(
            number=trial.number,
            trial_id=-1,
            state=OptunaState.RUNNING,
            value=None,
            datetime_start=datetime.now(),
            datetime_complete=None,
            params={name: trial.params[name] for name in known},
            distributions=known,
            user_attrs={"config": json.loads(config)},
            system_attrs={"trial": json.loads(record)},
            intermediate_values={},
        )

        def create(storage: BaseStorage, study_id: int) -> int:
            try:  # the answer to this may have been lost
                return storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            except KeyError:
                return storage.create_new_trial(study_id, template)

        self._written[trial.number] = _Written(self._do(create), config, record)

    def report(self, trial: Trial) -> None:
        """A report, and if it had values, the last entry of `trial.history`."""
        written, number = self._written[trial.number], len(trial.history)
        if number <= written.reports:  # without values
            self.note(trial)
            return
        progress, score = trial.history[-1]
        self._of_trial(
            trial.number,
            "set_trial_system_attr",
            f"report:{number}",
            [progress, trial.step, written.life, list(trial.values)],
        )
        self._of_trial(trial.number, "set_trial_intermediate_value", number, self._sign * score)
        written.reports = number

    def note(self, trial: Trial) -> None:
        """Whatever else has changed; a shorter `trial.history`: it has gone back to a checkpoint."""
        written = self._written[trial.number]
        if len(trial.history) < written.reports:
            written.life += 1
        written.reports = len(trial.history)
        record = self._record(trial, written.reports, written.life)
        if record != written.record:
            self._of_trial(trial.number, "set_trial_system_attr", "trial", json.loads(record))
            written.record = record
        config = as_json(trial.config, "config")
        if config != written.config:  # for who looks at the storage
            self._of_trial(trial.number, "set_trial_user_attr", "config", json.loads(config))
            written.config = config

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended: the last word on it."""
        if trial.last:
            self._of_trial(trial.number, "set_trial_user_attr", "metrics", as_plain(trial.last, "metrics"))
        if trial.error:
            self._of_trial(trial.number, "set_trial_user_attr", "error", trial.error)
        self.note(trial)
        self._finish(trial)

    def _finish(self, trial: Trial) -> None:
        state = _OPTUNA_STATES[trial.state]
        values = [float(value) for value in trial.values]
        if not values or any(math.isnan(value) for value in values):
            state = OptunaState.FAIL  # Optuna's best_trial and samplers take a COMPLETE one to have a value
        given = None if state is OptunaState.FAIL else values
        trial_id = self._written[trial.number].trial_id

        def finish(storage: BaseStorage, study_id: int) -> None:
            with suppress(UpdateFinishedTrialError):  # the answer to this was lost
                storage.set_trial_state_values(trial_id, state, given)

        self._do(finish)
        del self._written[trial.number]

    def load(self) -> list[Trial]:
        """All trials by number, with their history; those that have not ended can be reported on again. Works on a
        closed study too."""
        if self._is_closed:
            return self.read(self._storage, self._name)
        trials = []
        for stored in self._do(lambda storage, study_id: storage.get_all_trials(study_id, deepcopy=False)):
            trial = restored(stored, self._sign, shown(self._storage))
            trials.append(trial)
            if not stored.state.is_finished():
                self._go_on(trial, stored)
        return trials

    def _go_on(self, trial: Trial, stored: FrozenTrial) -> None:
        record = stored.system_attrs["trial"]
        self._written[trial.number] = _Written(
            stored._trial_id,
            as_json(stored.user_attrs["config"], "config"),
            as_json(record, "trial"),
            len(trial.history),
            record["life"],
        )
        if trial.state.has_ended:  # killed between the trial's last word and Optuna's
            self._finish(trial)

    @classmethod
    def read(cls, storage: str | Path, name: str | None = None) -> list[Trial]:
        """All trials by number, without a lock: also beside the tuner that writes them. name None: the only study
        there. ConfigError: there is none."""
        directions, trials = stored_study(storage, name)
        sign = -1.0 if directions[0] is StudyDirection.MINIMIZE else 1.0
        return [restored(stored, sign, shown(storage)) for stored in trials]

    def sync(self, wait: bool = False) -> None:
        """What was said survives the end of this process. wait: and that of the machine; before something is deleted
        that the storage named until now. ConfigError: the disk is full, the server stays away; nothing is lost."""
        self._open.sync(wait)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._open.close()

    def _do(self, action: Callable[[BaseStorage, int], T]) -> T:
        return self._open.do(lambda: action(self._open.storage, self._open.study_id))

    def _of_trial(self, number: int, verb: str, *arguments: Any) -> None:
        """Call the storage's method `verb` on a trial."""
        trial_id, study = self._written[number].trial_id, self._open
        study.do(lambda: getattr(study.storage, verb)(trial_id, *arguments))

    @staticmethod
    def _record(trial: Trial, reports: int, life: int) -> str:
        """The system attribute `trial`, as JSON."""
        record: dict[str, Any] = {
            "state": trial.state.value,
            "seed": trial.seed,
            "params": trial.params,
            "config": trial.config,
            "reports": reports,
            "life": life,
            "step": trial.step,
            "progress": trial.progress,
        }
        if trial.last and not trial.state.has_ended:
            record["last"] = trial.last  # `end` writes it as the user attribute `metrics`
            record["last_step"] = trial.step
        if trial.checkpoint is not None:
            mark = trial.checkpoint
            record["checkpoint"] = [mark.step, mark.name, mark.progress]
        for key in ("failures", "error", "notes", "run_s"):
            if value := getattr(trial, key):
                record[key] = value
        return as_json(record, f"trial {trial.number}")


def stored_study(storage: str | Path, name: str | None) -> tuple[list[StudyDirection], list[FrozenTrial]]:
    """As Optuna has it, without a lock; name None: the only one there. ConfigError: it is not there."""
    if is_url(storage):
        from rlplat.tune.database import read_database

        return read_database(str(storage), name)
    path = expanded(storage)
    journal = replayed(ReadJournal(path))
    study_id = study_in(journal, name, path)
    return journal.get_study_directions(study_id), journal.get_all_trials(study_id, deepcopy=False)


def restored(stored: FrozenTrial, sign: float, place: str) -> Trial:
    """ConfigError: it is not one of ours, or damaged. place: of the study."""
    try:
        return _restored(stored, sign)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{place}: trial {stored.number} was not written by this version of rlplat, or is damaged "
            f"({type(error).__name__}: {error}): restore the study from a copy, or start a new experiment with --out"
        ) from None


def _restored(stored: FrozenTrial, sign: float) -> Trial:
    record = stored.system_attrs["trial"]
    trial = Trial(
        number=stored.number,
        config=record["config"],
        params=record["params"],
        seed=record["seed"],
        state=TrialState(record["state"]),
        step=record["step"],
        progress=record["progress"],
        checkpoint=CheckpointMark(*record["checkpoint"]) if "checkpoint" in record else None,
        failures=record.get("failures", 0),
        error=record.get("error", ""),
        notes=record.get("notes", {}),
        run_s=record.get("run_s", 0.0),
    )
    attributes = stored.system_attrs
    for number in range(1, 1 + sum(key.startswith("report:") for key in attributes)):
        progress, step, life, values = attributes[f"report:{number}"]
        if number > record["reports"]:
            if life != record["life"]:
                break
            trial.step, trial.progress = step, progress
        trial.values = tuple(values)
        trial.history.append((progress, sign * values[0]))
    if trial.state.has_ended:
        trial.last = stored.user_attrs.get("metrics", {})
    elif record.get("last_step") == trial.step:
        trial.last = record["last"]
    return trial


def as_json(value: Any, name: str) -> str:
    """ConfigError names what in it is not JSON."""
    try:
        return json.dumps(value, default=_number)
    except (TypeError, ValueError):
        raise ConfigError(_what_is_notas_json(value, name)) from None


def as_plain(value: Any, name: str) -> Any:
    return json.loads(as_json(value, name))


def _number(value: Any) -> Any:
    """A numpy scalar is a number to everybody but `json`."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def key_that_is_no_text(value: Any, name: str) -> str:
    """JSON would make a text of it without a word."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                return f"{name} has the key {key!r}, which is not a text"
            if wrong := key_that_is_no_text(part, f"{name}.{key}"):
                return wrong
    return ""


def _what_is_notas_json(value: Any, name: str) -> str:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        parts = [(f"{name}.{key}", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(value)]
    for place, part in parts:
        try:
            json.dumps(part, default=_number)
        except (TypeError, ValueError):
            return _what_is_notas_json(part, place)
    return (
        f"{name} is {value!r}, a {type(value).__name__}: what an experiment remembers is kept as JSON, so it must be a "
        "number, a text, true, false, null, or a list or a mapping of them"
    )
