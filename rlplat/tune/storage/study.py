"""The study: an experiment's trials in one of Optuna's storages, as the truth that a resumed experiment begins from.

    study = Study.open(out / "study.journal", "demo", ["max"], resume=resume)
    study.settle({"experiment": {...}})
    trials = study.load()                                      # after a crash: as they were
    study.create(trial, distributions); study.report(trial); study.note(trial); study.end(trial)
    study.sync()                                               # once per turn: what was said is on the disk

How a `Trial` is kept, in Optuna's terms (`optuna.load_study` and optuna-dashboard see an ordinary study):

    params, distributions         what was drawn
    intermediate values           {n: metric} of the n-th report that counts, n = 1, 2, ...
    system attribute report:<n>   [progress, step, metrics...] of it, where that is not [n, n, metric]
    system attribute at           [n, step, progress] where that is not what the n-th report said
    system attribute trial        everything else that is not in the other places, written when it changes
    user attributes               config; metrics (the last report, at the end); error
    state                         RUNNING until it ends; COMPLETE, PRUNED (stopped by the scheduler), FAIL
    value                         the metric of the last report

A trial that goes back to a checkpoint has more intermediate values than reports that count. System attribute `counts`
is [how many count, how many there are]; it is written with each report until the old ones are overwritten.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rlplat.errors import ConfigError, MissingExtra
from rlplat.tune.core.trial import CheckpointMark, Trial, TrialState
from rlplat.tune.storage.address import is_url, shown
from rlplat.tune.storage.plain_values import as_json, as_plain, key_that_is_no_text

try:
    from optuna.distributions import BaseDistribution, distribution_to_json
    from optuna.trial import TrialState as OptunaState

    from rlplat.tune.storage.journal_writer import JournalWriter, StoredTrial, read_journal
except ImportError:
    raise MissingExtra("optuna", "tune", "tuning") from None

Direction = Literal["max", "min"]

_OPTUNA_STATES = {
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.STOPPED: OptunaState.PRUNED,
    TrialState.FAILED: OptunaState.FAIL,
}


class StudyWriter(Protocol):
    """A storage as `Study` uses it: written without waiting, confirmed by `sync`."""

    is_new: bool
    directions: list[str]

    def create_trial(
        self, number: int, params: dict[str, float], distributions: dict[str, str],
        user_attrs: dict[str, Any], system_attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        """params: in Optuna's internal form (a choice is its index); distributions: as JSON."""
        ...

    def set_intermediate_value(self, number: int, step: int, value: float) -> None: ...

    def set_user_attr(self, number: int, key: str, value: Any) -> None: ...

    def set_system_attr(self, number: int, key: str, value: Any) -> None: ...

    def finish_trial(self, number: int, state: OptunaState, values: Sequence[float] | None) -> None: ...

    def set_study_attr(self, key: str, value: Any) -> None: ...

    def set_metric_names(self, names: Sequence[str]) -> None: ...

    def study_attrs(self) -> dict[str, Any]: ...

    def load_trials(self) -> list[StoredTrial]:
        """By number."""
        ...

    def sync(self, wait: bool = False) -> None: ...

    def close(self) -> None: ...


@dataclass
class _Written:
    """What the storage knows of a trial that has not ended."""

    reports: int = 0
    """Intermediate values that count."""
    highest: int = 0
    """Intermediate values that are there; more than `reports` after a step back to a checkpoint."""
    at: tuple[int, float] = (0, 0.0)
    """(step, progress)."""
    config: str = ""
    """The user attribute."""
    record: str = ""
    is_changed: bool = False
    """Its config is no longer the one it began with (PBT)."""


class Study:
    def __init__(
        self, writer: StudyWriter, storage: str | Path, name: str, directions: Sequence[Direction]
    ) -> None:
        """`Study.open` makes one."""
        self._writer = writer
        self._storage, self._name = storage, name
        self._is_closed = False
        self._sign = -1.0 if directions[0] == "min" else 1.0
        self._written: dict[int, _Written] = {}
        self._described_by_name: dict[str, tuple[BaseDistribution, str]] = {}
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
        writer: StudyWriter
        if is_url(storage):
            from rlplat.tune.storage.database import DatabaseWriter

            writer = DatabaseWriter(str(storage), name, directions, resume=resume, say=say)
        else:
            writer = JournalWriter(Path(storage), name, directions)
        try:
            if not writer.is_new and not resume:
                other = (
                    "give the new one another name (--set name=...)"
                    if is_url(storage)
                    else "start a new one with --out"
                )
                raise ConfigError(
                    f"there is an experiment {name!r} in {shown(storage)}: go on with --resume, or {other}"
                )
            if writer.directions != list(directions):
                raise ConfigError(
                    f"mode was {', '.join(writer.directions)} and is {', '.join(directions)} now; an experiment goes "
                    "on with what it began with: start a new one with --out"
                )
        except BaseException:
            writer.close()
            raise
        return cls(writer, storage, name, directions)

    # ----------------------------------------------------------------------------------------- the experiment's own

    @property
    def settings(self) -> dict[str, Any]:
        """What `settle` has written."""
        return self._writer.study_attrs()

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Write the experiment's settings, as far as they are not there."""
        known = self.settings
        for key, value in settings.items():
            plain = as_plain(value, key)
            if key not in known or known[key] != plain:
                self._writer.set_study_attr(key, plain)

    def name_metrics(self, names: Sequence[str]) -> None:
        """So that Optuna's dashboard writes them at its axes, instead of "Objective 0"."""
        self._writer.set_metric_names(names)

    # ------------------------------------------------------------------------------------------------------- trials

    def create(self, trial: Trial, distributions: Mapping[str, BaseDistribution] | None = None) -> None:
        """distributions: Optuna's, by the names of `trial.params` that have one; None: `self.distributions` says."""
        if wrong := key_that_is_no_text(trial.config, "config"):
            raise ConfigError(wrong)
        written = _Written(config=as_json(trial.config, "config"))
        written.record = as_json(_record(trial), f"trial {trial.number}")
        if distributions is None:
            distributions = self.distributions(trial.params)
        params, described = {}, {}
        for name, distribution in distributions.items():
            if name in trial.params:
                params[name] = distribution.to_internal_repr(trial.params[name])
                described[name] = self._described(name, distribution)
        self._writer.create_trial(
            trial.number, params, described,
            {"config": json.loads(written.config)}, {"trial": json.loads(written.record)},
        )  # fmt: skip
        self._written[trial.number] = written

    def report(self, trial: Trial) -> None:
        """A report, and if it had values, the last entry of `trial.history`."""
        written, number = self._written[trial.number], len(trial.history)
        if number <= written.reports:
            self._note_place(trial, written)
            return
        progress, score = trial.history[-1]
        value = self._sign * score
        is_again = number <= written.highest
        report = (progress, trial.step, *trial.values)
        if is_again or report != (number, number, value):
            self._writer.set_system_attr(trial.number, f"report:{number}", list(report))
        self._writer.set_intermediate_value(trial.number, number, value)
        written.reports, written.at = number, (trial.step, progress)
        if is_again:
            self._writer.set_system_attr(trial.number, "counts", [number, written.highest])
        else:
            written.highest = number
        self._note_place(trial, written)

    def note(self, trial: Trial) -> None:
        """Whatever else has changed; a shorter `trial.history`: it has gone back to a checkpoint."""
        written = self._written[trial.number]
        config = as_json(trial.config, "config")
        written.is_changed = written.is_changed or config != written.config
        if len(trial.history) != written.reports:
            written.reports, written.at = len(trial.history), (-1, 0.0)
            self._writer.set_system_attr(trial.number, "counts", [written.reports, written.highest])
        self._note_place(trial, written)
        record = _record(trial)
        if written.is_changed:
            record["config"] = trial.config  # in one line with the checkpoint that it goes on from
        text = as_json(record, f"trial {trial.number}")
        if text != written.record:
            self._writer.set_system_attr(trial.number, "trial", json.loads(text))
            written.record = text
        if config != written.config:  # for who looks at the storage
            self._writer.set_user_attr(trial.number, "config", json.loads(config))
            written.config = config

    def _note_place(self, trial: Trial, written: _Written) -> None:
        if written.at != (trial.step, trial.progress):
            written.at = (trial.step, trial.progress)
            self._writer.set_system_attr(trial.number, "at", [len(trial.history), *written.at])

    def end(self, trial: Trial) -> None:
        """`trial.state` has ended: the last word on it."""
        if trial.last:
            self._writer.set_user_attr(trial.number, "metrics", as_plain(trial.last, "metrics"))
        if trial.error:
            self._writer.set_user_attr(trial.number, "error", trial.error)
        self.note(trial)
        self._finish(trial)

    def _finish(self, trial: Trial) -> None:
        state = _OPTUNA_STATES[trial.state]
        values = [float(value) for value in trial.values]
        if not values or any(math.isnan(value) for value in values):
            state = OptunaState.FAIL  # Optuna's best_trial and samplers take a COMPLETE one to have a value
        self._writer.finish_trial(trial.number, state, None if state is OptunaState.FAIL else values)
        del self._written[trial.number]

    def load(self) -> list[Trial]:
        """All trials by number, with their history; those that have not ended can be reported on again. Works on a
        closed study too."""
        if self._is_closed:
            return self.read(self._storage, self._name)
        trials = []
        for stored in self._writer.load_trials():
            trial = restored(stored, self._sign)
            trials.append(trial)
            if not stored.is_finished:
                self._go_on(trial, stored)
        return trials

    def _go_on(self, trial: Trial, stored: StoredTrial) -> None:
        self._written[trial.number] = _Written(
            reports=len(trial.history),
            highest=_highest(stored),
            at=(trial.step, trial.progress),
            config=as_json(stored.user_attrs["config"], "config"),
            record=as_json(stored.system_attrs["trial"], "trial"),
            is_changed="config" in stored.system_attrs["trial"],
        )
        if trial.state.has_ended:  # killed between the trial's last word and Optuna's
            self._finish(trial)

    @classmethod
    def read(cls, storage: str | Path, name: str | None = None) -> list[Trial]:
        """All trials by number, without a lock: also beside the tuner that writes them. name None: the only study
        there. ConfigError: there is none."""
        if is_url(storage):
            from rlplat.tune.storage.database import read_database

            study = read_database(str(storage), name)
        else:
            study = read_journal(Path(storage), name)
        sign = -1.0 if study.directions[0] == "min" else 1.0
        return [restored(stored, sign) for stored in study.trials]

    def sync(self, wait: bool = False) -> None:
        """What was said survives the end of this process. wait: and that of the machine; before something is deleted
        that the storage named until now. ConfigError: the disk is full, the server stays away; nothing is lost."""
        self._writer.sync(wait)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._writer.close()

    # ------------------------------------------------------------------------------------------------------- a Trial

    def _described(self, name: str, distribution: BaseDistribution) -> str:
        known = self._described_by_name.get(name)
        if known is None or known[0] is not distribution:
            known = self._described_by_name[name] = (distribution, distribution_to_json(distribution))
        return known[1]


def _record(trial: Trial) -> dict[str, Any]:
    record: dict[str, Any] = {"state": trial.state.value, "seed": trial.seed, "params": trial.params}
    if trial.last and not trial.state.has_ended:
        record["last"] = trial.last  # `end` writes it as the user attribute `metrics`
        record["last_step"] = trial.step
    if trial.checkpoint is not None:
        mark = trial.checkpoint
        record["checkpoint"] = [mark.step, mark.name, mark.progress]
    for key in ("failures", "error", "notes", "run_s"):
        if value := getattr(trial, key):
            record[key] = value
    return record


def _highest(stored: StoredTrial) -> int:
    """The last report of which anything was written: a tuner may have died in the middle of one."""
    begun = (int(key.partition(":")[2]) for key in stored.system_attrs if key.startswith("report:"))
    return max(*stored.intermediate_values, *begun, 0, 0)


def restored(stored: StoredTrial, sign: float) -> Trial:
    record = stored.system_attrs["trial"]
    trial = Trial(
        number=stored.number,
        config=record.get("config", stored.user_attrs["config"]),
        params=record["params"],
        seed=record["seed"],
        state=TrialState(record["state"]),
        checkpoint=CheckpointMark(*record["checkpoint"]) if "checkpoint" in record else None,
        failures=record.get("failures", 0),
        error=record.get("error", ""),
        notes=record.get("notes", {}),
        run_s=record.get("run_s", 0.0),
    )
    highest = reports = max(stored.intermediate_values, default=0)
    counted, then_highest = stored.system_attrs.get("counts", (0, 0))
    if highest <= then_highest:
        reports = counted
    for number in range(1, reports + 1):
        value = stored.intermediate_values[number]
        progress, step, *values = stored.system_attrs.get(f"report:{number}", (number, number, value))
        trial.history.append((progress, sign * value))
        trial.step, trial.progress, trial.values = step, progress, tuple(values)
    place = stored.system_attrs.get("at")
    if place is not None and place[0] == reports:
        trial.step, trial.progress = place[1:]
    if trial.state.has_ended:
        trial.last = stored.user_attrs.get("metrics", {})
    elif record.get("last_step") == trial.step:
        trial.last = record["last"]
    return trial
