"""The journal of an experiment: a file of JSON lines in Optuna's journal format, with one writer.

    journal = Journal(path)
    storage = JournalStorage(journal)        # Optuna's: all that it writes is in memory
    journal.sync()                           # in the file; on the disk within 50 ms
    journal.sync(wait=True)                  # on the disk

The lines are those of Optuna's `JournalFileBackend`, so `optuna-dashboard EXP/study.journal` and
`optuna.load_study(storage=JournalStorage(JournalFileBackend(path)), ...)` read it, also while it is written: only whole
lines are ever appended. What differs is the price: Optuna takes a lock file and waits for the disk with every line,
because anybody may write; here the lock of the experiment's directory keeps others away, and a thread waits for the
disk.

What `sync` has confirmed survives kill -9 of this process at once, and the loss of power after 50 ms (`wait=True`: at
once; for when something is about to be deleted that the disk may still name). A last line that was not written whole is
cut off when the journal is opened again; a full disk takes back the half that it took, and the lines wait for the next
`sync`.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from rlplat.errors import ConfigError, MissingExtra
from rlplat.given.say import silenced

try:
    from optuna.storages import BaseStorage, JournalStorage
    from optuna.storages.journal import BaseJournalBackend
    from optuna.storages.journal._storage import JournalOperation
    from optuna.study import StudyDirection
except ImportError:
    raise MissingExtra("optuna", "tune", "tuning") from None


T = TypeVar("T")

_DISK_PERIOD_S = 0.05

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Logs:
    """All whole lines of a journal; takes no lock: also while another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0, 0, b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """ConfigError: a damaged line, or one that speaks of what the lines before it do not have."""
        offset = num_trials = 0
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return  # somebody is writing it
                self._at = number, offset, line
                try:
                    log = json.loads(line)
                    num_trials += log["op_code"] == JournalOperation.CREATE_TRIAL
                    is_damaged = log.get("trial_id", -1) >= num_trials
                except (LookupError, TypeError, ValueError, AttributeError):
                    is_damaged = True
                if is_damaged:
                    raise self.damage()
                offset += len(line)
                yield log

    def damage(self) -> ConfigError:
        """At the line that was given last."""
        number, offset, line = self._at
        return ConfigError(
            f"{self._path} is damaged in line {number} (at byte {offset}), or before it: {line[:60]!r}; "
            "restore the file from a copy, or start a new experiment with --out"
        )


def replayed(backend: ReadJournal | Journal) -> JournalStorage:
    """Optuna's storage with what is in a journal. ConfigError: a line is not one of this version of Optuna."""
    try:
        return JournalStorage(backend)
    except (ConfigError, OSError):
        raise
    except Exception:  # whatever Optuna stumbles over
        raise backend.logs.damage() from None


class ReadJournal(BaseJournalBackend):
    """Of another process, or of none."""

    def __init__(self, path: Path) -> None:
        """ConfigError: there is no such file."""
        self.path, self.logs = path, Logs(path)
        if not path.is_file():
            raise ConfigError(f"{path} is not a file" if path.exists() else f"there is no {path}")

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return islice(self.logs, log_number_from, None)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise ConfigError(f"{self.path} is open for reading only")


class Journal(BaseJournalBackend):
    """Open for writing, by this process alone: the lock of the experiment's directory sees to that."""

    def __init__(self, path: Path) -> None:
        """ConfigError: it cannot be written."""
        self.path, self.logs = path, Logs(path)
        self.num_cut = 0
        """Bytes of a last line that was not whole."""
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a file")
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._cut_torn_line()
        self._waiting: list[bytes] = []
        self._unread: list[dict[str, Any]] = []
        """Appended since Optuna read the last time, which it does after each of its operations."""
        self._disk = _Disk(self._descriptor)

    @property
    def is_empty(self) -> bool:
        return not self._waiting and os.fstat(self._descriptor).st_size == 0

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """A line for each; TypeError when something in them is not JSON, and then there is none."""
        self._waiting += [_encode(log).encode() + b"\n" for log in logs]
        self._unread += logs

    def flush(self) -> None:
        """Into the file, where others can read it. ConfigError: the disk refuses (it is full, say), nothing of it is in
        the file, and it waits for the next time."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):  # a disk that is almost full takes a part
                written += os.write(self._descriptor, data[written:])
                if written < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise self._refused(error) from None
        self._waiting.clear()

    def sync(self, wait: bool = False) -> None:
        """What was appended survives this process; wait: and the machine. ConfigError: as in `flush`, or somebody has
        removed the file."""
        if self._waiting:
            self.flush()
            if os.fstat(self._descriptor).st_nlink == 0:
                raise ConfigError(f"{self.path} was removed while the experiment was going, and so it ends")
            self._disk.is_behind.set()
        try:
            if wait or self._disk.error is not None:  # it may have recovered
                os.fdatasync(self._descriptor)
                self._disk.error = None
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.path} cannot be written: {error.strerror}; what was recorded before is safe: fix it, continue with "
            "--resume"
        )

    def close(self) -> None:
        try:
            self.sync(wait=True)
        finally:
            self._disk.close()
            os.close(self._descriptor)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """All, those in memory included; or what was appended since: nobody else appends what Optuna must hear of."""
        logs, self._unread = self._unread, []
        if log_number_from:
            return logs
        self.flush()
        return self.logs

    def _cut_torn_line(self) -> None:
        """Keep what ends with a line end."""
        written = self.path.read_bytes()
        if written and not written.endswith(b"\n"):
            whole = written.rfind(b"\n") + 1
            self.num_cut = len(written) - whole
            os.ftruncate(self._descriptor, whole)


class _Disk:
    """A thread that has the disk take what is in the file, at most every `_DISK_PERIOD_S`."""

    def __init__(self, descriptor: int) -> None:
        self.is_behind = threading.Event()
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.wait(_DISK_PERIOD_S):
            self.is_behind.wait()
            self.is_behind.clear()
            try:
                os.fdatasync(self._descriptor)
                self.error = None
            except OSError as error:
                self.error = error

    def close(self) -> None:
        self._is_closed.set()
        self.is_behind.set()
        self._thread.join()


class JournalStudy:
    """A study in a journal file, for the only tuner that writes it."""

    def __init__(
        self, path: Path, name: str, directions: Sequence[StudyDirection], say: Callable[[str], None] = print
    ) -> None:
        """ConfigError: it cannot be written, it is damaged."""
        self._journal = Journal(path)
        try:
            if self._journal.num_cut:
                say(f"{path}: its last line was not written whole (a crash, a full disk) and is dropped")
            self.is_new = self._journal.is_empty
            self.storage: BaseStorage = replayed(self._journal)
            if self.is_new:
                with quietly():
                    self.study_id = self.storage.create_new_study(directions, name)
            else:
                self.study_id = study_in(self.storage, name, path)
        except BaseException:
            self._journal.close()
            raise

    def do(self, action: Callable[[], T]) -> T:
        """With the storage."""
        return action()

    def sync(self, wait: bool = False) -> None:
        self._journal.sync(wait)

    def close(self) -> None:
        self._journal.close()


def study_in(storage: BaseStorage, name: str | None, path: Path) -> int:
    """The id of the study of that name in a journal, or of the only one: an experiment may get another name.
    ConfigError: it is not there."""
    there = {study.study_name: study._study_id for study in storage.get_all_studies()}
    if name in there:
        return there[name]
    if len(there) == 1:
        return next(iter(there.values()))
    held = f"holds the experiments {', '.join(map(repr, there))}" if there else "is empty"
    raise ConfigError(f"{path} {held}" + (f", not {name!r}" if name is not None else ""))


def quietly() -> AbstractContextManager[None]:
    """Without what Optuna logs and warns of: what of it concerns the user of an experiment, we say in our words."""
    return silenced("optuna")


def has_reports(path: Path) -> bool:
    """Whether a study in a journal has any: its line of an intermediate value has op code 7."""
    with open(path, "rb") as lines:
        return any(b'"op_code":7,' in line for line in lines)
