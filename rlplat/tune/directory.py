"""The directory of an experiment: what is in it, who may write to it.

    EXP/  experiment.yaml (complete, resolved)  study.journal (the truth)  results.jsonl  results.csv  best.yaml
          tensorboard/  trials/00007/  log.txt

    directory = ExperimentDirectory.open(spec.out, spec, resume=False, say=view.say)
    directory.record(trial, metrics)       # a report
    directory.end(trial)
    directory.flush()                      # once per turn: nothing is written before
    directory.close()

The process that tunes holds a lock on log.txt, as one that trains does, so that nobody goes on with an experiment that
is still going. All but the study is derived from it: a full disk drops lines and is told once, it never stops trials.
"""

from __future__ import annotations

import fcntl
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from rlplat.config import load_yaml
from rlplat.errors import ConfigError
from rlplat.metrics import CsvWriter, replace_file
from rlplat.rl.run.run_directory import is_running
from rlplat.tune.address import shown
from rlplat.tune.journal import has_reports
from rlplat.tune.lines import (
    ExperimentCurves,
    ReportLines,
    as_json,
    forget_superseded,
    read_reports,
    trial_row,
)
from rlplat.tune.spec import ExperimentSpec
from rlplat.tune.trial import Trial, TrialState

BEST_PERIOD_S = 2.0


class ExperimentDirectory:
    def __init__(self, path: Path, spec: ExperimentSpec, log_file: Any, say: Callable[[str], None] | None) -> None:
        """Use `open`."""
        self.path = path
        self._spec = spec
        self._log_file = log_file
        self._say = say
        self._reports = ReportLines(path / "results.jsonl")
        self._rows = CsvWriter(path / "results.csv")
        self._curves = ExperimentCurves(path / "tensorboard", self.trials, spec.metric)
        self._best: tuple[Trial, Mapping[str, Any] | str | None] | None = None
        self._next_best_s = 0.0
        self.dropped = 0
        """Writes that the disk refused."""

    @classmethod
    def open(
        cls, path: Path, spec: ExperimentSpec, *, resume: bool, say: Callable[[str], None] | None = None
    ) -> ExperimentDirectory:
        """ConfigError where an experiment (or anything else) is there already and `resume` is not said, where there is
        none to resume, where another process is at it, where it cannot be written.

        say: for a line of text to the user.
        """
        from rlplat.tune.experiment_file import code_of, dump_experiment, refuse_changes

        saved = path / "experiment.yaml"
        if resume and not saved.exists() and not _has_just_begun(path) and not spec.storage:
            raise ConfigError(f"there is no experiment in {path} to continue: it has no experiment.yaml")
        if not resume:
            refuse_existing(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            log_file = open(path / "log.txt", "a", encoding="utf-8")
        except OSError as error:
            raise _cannot_write(path, error) from None
        try:
            fcntl.flock(log_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if saved.exists():
                refuse_changes(spec, load_yaml(saved).values, str(path))
            (path / "trials").mkdir(exist_ok=True)
            replace_file(saved, dump_experiment(spec) + code_of(spec))
            return cls(path, spec, log_file, say)
        except ConfigError:
            log_file.close()
            raise
        except BlockingIOError:
            log_file.close()
            raise ConfigError(
                f"the experiment in {path} is still running in another process; "
                f"to look at it: rlplat tune show {shlex.quote(str(path))}"
            ) from None
        except OSError as error:
            log_file.close()
            raise _cannot_write(path, error) from None

    def __enter__(self) -> ExperimentDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def storage(self) -> str:
        """Where the study is."""
        return self._spec.storage or str(self.path / "study.journal")

    @property
    def has_results(self) -> bool:
        path = self.path / "results.jsonl"
        return path.exists() and path.stat().st_size > 0

    def trial_directory(self, number: int) -> Path:
        """`trials/00007/`, made when it is not there."""
        path = self.trials / f"{number:05d}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def refuse_cut_study(self, known: Collection[int]) -> None:
        """ConfigError where the study has no trial for a report: each was recorded there before it began. known: its
        trials."""
        lost = sorted({report["trial"] for report in read_reports(self._reports.path)} - set(known))
        if lost:
            raise ConfigError(
                f"{shown(self.storage)} was cut: it has no trial {lost[0]}, whose reports are in results.jsonl; "
                "restore it from a copy, or start a new experiment with --out (to continue with what is left, remove "
                f"results.jsonl from {self.path})"
            )

    def recall(self, trials: Sequence[Trial]) -> None:
        """An experiment goes on: the study has the values of each report, and the other metrics of the last one only
        where it was recorded with something else. Here they all are."""
        lacking = {trial.number: trial for trial in trials if not trial.state.has_ended and not trial.last}
        for report in read_reports(self._reports.path) if lacking else ():
            trial = lacking.get(report["trial"])
            if trial is not None and report["step"] == trial.step:
                trial.last = report["metrics"]

    def reconcile(self, trials: Sequence[Trial], ending: Collection[int] = ()) -> None:
        """An experiment goes on: the derived files get the state of the study.

        trials: all of them, those that run again set back to the step from which they go on. What was reported beyond
        it goes, and so do trials of which the study knows nothing.
        ending: numbers of those that come to their end only now, of which `end` will be told.
        """
        last_steps = {trial.number: trial.step for trial in trials}
        try:
            forget_superseded(self._reports.path, last_steps)
            self._reports.close()
            self._reports = ReportLines(self._reports.path)  # it is another file now, and params are written anew
            self._rows.close()
            (self.path / "results.csv").unlink(missing_ok=True)
            self._rows = CsvWriter(self.path / "results.csv")
            for trial in trials:
                if trial.state.has_ended and trial.number not in ending:
                    self._rows.write(trial_row(trial))
        except OSError as error:
            self._refused(error)

    def record(self, trial: Trial, metrics: Mapping[str, Any]) -> None:
        """A report; `trial.step`, `.progress` and `.run_s` are those right after it."""
        self._reports.record(trial, metrics)
        self._curves.record(trial, metrics)

    def end(self, trial: Trial) -> None:
        """The trial's state has ended: its row, and the end of its session in TensorBoard."""
        self._reports.end(trial)
        self._try(lambda: self._rows.write(trial_row(trial)))
        self._try(lambda: self._curves.end(trial))

    def best(self, trial: Trial, document: Mapping[str, Any] | str | None = None) -> None:
        """A new best trial. document: what `best.yaml` says (as text: its YAML), for an algorithm what
        `rlplat train best.yaml` reads; None: the trial's config."""
        self._best = (trial, document)

    def flush(self, *, is_last: bool = False) -> None:
        """Write what is pending; best.yaml every other second, as replacing a file costs milliseconds."""
        self._try(self._reports.flush)
        self._try(self._curves.flush)
        now = time.monotonic()
        if self._best is not None and (is_last or now >= self._next_best_s):
            self._next_best_s = now + BEST_PERIOD_S
            trial, document = self._best
            self._best = None
            self._try(lambda: replace_file(self.path / "best.yaml", describe_best(trial, document, self._spec)))

    def say(self, text: str) -> None:
        """To the user and to log.txt."""
        if self._say is not None:
            self._say(text)
        self.log(text)

    def log(self, text: str) -> None:
        try:
            self._log_file.write(f"{datetime.now().isoformat(' ', 'seconds')}  {text}\n")
            self._log_file.flush()
        except (OSError, ValueError):
            pass  # a full disk must not end the experiment

    def close(self) -> None:
        self.flush(is_last=True)
        if self._reports.has_superseded:
            self._try(lambda: forget_superseded(self._reports.path))
        for part in (self._reports, self._rows, self._curves):
            self._try(part.close)
        if self.dropped:
            self.say(f"{self.path}: {self.dropped} writes of results were refused by the disk; the study has them all")
        try:
            self._log_file.close()
        except OSError:
            pass  # what was buffered does not fit on the disk

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._refused(error)

    def _refused(self, error: OSError) -> None:
        self.dropped += 1
        if self.dropped == 1:
            self.say(f"results: {error}; the experiment continues, results that cannot be written are dropped")


def refuse_existing(path: Path) -> None:
    """A new experiment needs a directory of its own: one that is not there yet, or an empty one."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if (path / "experiment.yaml").exists():
        raise ConfigError(
            f"an experiment is already in {path}; continue it: --resume (in Python resume=True), "
            "or choose another place: --out DIRECTORY (in Python out=...)"
        )
    raise ConfigError(f"{path} already exists; choose another place: --out DIRECTORY (in Python out=...)")


def can_resume(path: Path, storage: str = "") -> bool:
    """Whether there is an experiment, even one that was killed while it began. In a database: there may be one,
    unless something else is in its directory."""
    if (path / "experiment.yaml").exists() or ((path / "log.txt").exists() and _has_just_begun(path)):
        return True
    return bool(storage) and (not path.exists() or (path.is_dir() and not any(path.iterdir())))


def take_back(path: Path) -> None:
    """An experiment was refused before its first report (no such metric, say): remove what it has left, so that the
    same command can begin it again. What trials wrote of their own stays, and the directory with it; and everything
    where another process is at it (the same command, given twice at once)."""
    try:
        if is_running(path):
            return
        if (path / "results.jsonl").exists() and (path / "results.jsonl").stat().st_size:
            return
        journal = path / "study.journal"
        if journal.exists() and has_reports(journal):  # a full disk refused the rest
            return
        for name in ("experiment.yaml", "log.txt", "results.jsonl", "results.csv", "best.yaml"):
            (path / name).unlink(missing_ok=True)
        for file in path.glob("study.journal*"):
            file.unlink()
        shutil.rmtree(path / "tensorboard", ignore_errors=True)
        for empty in sorted((path / "trials").glob("**/"), reverse=True):
            empty.rmdir()
        path.rmdir()
    except OSError:
        pass  # not empty


def _has_just_begun(path: Path) -> bool:
    """Killed before it had written what it is."""
    return path.is_dir() and {entry.name for entry in path.iterdir()} <= {"log.txt", "trials"}


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to the experiment's directory {path}: {error.strerror or error}")


def describe_best(trial: Trial, document: Mapping[str, Any] | str | None, spec: ExperimentSpec) -> str:
    """The text of best.yaml: what it is in comments, then the config."""
    figures = ", ".join(
        f"{name} {value:g} ({mode})" for name, value, mode in zip(spec.metric, trial.values, spec.mode, strict=False)
    )
    verb = "" if trial.state is TrialState.RUNNING else f", {trial.state}"
    head = f"# the best trial so far of {spec.name}: {trial.number}, {figures} after {trial.step} reports{verb}\n"
    if isinstance(document, str):
        return head + document
    return head + config_text(trial.config if document is None else document)


def config_text(config: Mapping[str, Any]) -> str:
    """As YAML, a key a line; what is small and deep inside on one line."""
    is_flat = not any(isinstance(value, Mapping | list | tuple) for value in config.values())
    style = False if is_flat else None
    return yaml.safe_dump(as_json(config), sort_keys=False, default_flow_style=style, width=100, allow_unicode=True)
