"""A study in a PostgreSQL database: Optuna's `RDBStorage` over the one connection that holds the tuner's lock.

One tuner per study: it holds an advisory lock as long as its connection lives, and all that it writes goes through that
connection. Several studies share a database. A server that goes away is waited for, and what was being written is
written again: each write may be made twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from rlplat.errors import ConfigError
from rlplat.tune.storage.journal import silently
from rlplat.tune.storage.postgres import Server, ServerError, drivers_errors, limited, line_of

T = TypeVar("T")

_LOCK_GRACE_S = 2.0
"""How long the connection of a tuner that was just killed may take to vanish."""
LOCKS = 0x726C7000
"""First half of our advisory locks' keys; the second is a study's id, or 0 for the tables themselves."""


class DatabaseStudy:
    def __init__(
        self, url: str, name: str, directions: Sequence[StudyDirection], *, resume: bool,
        say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """Makes the tables and the study where they are not there; a study without a single report is not there, unless
        `resume`. ConfigError: the server cannot be reached, or another tuner is at this study."""
        self._server = Server(url, say)
        self._name = name
        self._connection = self._server.connect()  # only a server that goes away after this is waited for
        try:
            refusal = self._server.patiently(lambda: self._open(directions, resume))
        except ServerError as error:
            raise ConfigError(f"{self._server.place}: {line_of(error)}") from None
        if refusal is not None:
            raise refusal

    def do(self, action: Callable[[], T]) -> T:
        """With the storage; again and again while the server is away, or hangs."""

        def attempt() -> T:
            with limited(lambda: self._connection), drivers_errors():
                return action()

        return self._server.patiently(attempt)

    def sync(self, wait: bool = False) -> None:
        """Each write is in the database when it returns."""

    def close(self) -> None:
        self._connection.close()

    def _open(self, directions: Sequence[StudyDirection], resume: bool) -> ConfigError | None:
        """Once more from the start where the server went away in the middle: what was made is found. Returns a refusal,
        which nobody needs to wait for."""
        self.study_id = 0
        self._connect()
        try:
            self._query("SELECT pg_advisory_lock(%s, 0)", LOCKS)  # two that make the tables at once fail
            self.storage: BaseStorage = self._server.optuna_storage(self._connect)
            with drivers_errors():
                self._open_study(directions, resume)
            self._query("SELECT pg_advisory_unlock(%s, 0)", LOCKS)
        except ConfigError as refusal:
            self._connection.close()
            return refusal
        except BaseException:
            self._connection.close()  # with its locks
            raise
        return None

    def _open_study(self, directions: Sequence[StudyDirection], resume: bool) -> None:
        try:
            self.study_id, self.is_new = self.storage.get_study_id_from_name(self._name), False
        except KeyError:
            self.is_new = True
        else:
            self._lock()
            if not resume and self._is_abandoned():  # its first tuner was refused, or killed at once
                self.storage.delete_study(self.study_id)
                self.is_new = True
        if self.is_new:
            self.study_id = silently(lambda: self.storage.create_new_study(directions, self._name))
            self._lock()

    def _connect(self) -> Any:
        """The connection; a new one, with the lock, where the server has ended it."""
        if self._connection.closed:
            self._connection = self._server.connect()
            if self.study_id:
                try:
                    self._lock()
                except BaseException:
                    self._connection.close()
                    raise
        self._connection.autocommit = False
        return self._connection

    def _lock(self) -> None:
        deadline = time.monotonic() + _LOCK_GRACE_S
        while not self._query("SELECT pg_try_advisory_lock(%s, %s)", LOCKS, self.study_id)[0][0]:
            if time.monotonic() > deadline:
                holders = self._query(
                    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
                    "WHERE locktype = 'advisory' AND classid = %s AND objid = %s",
                    LOCKS,
                    self.study_id,
                )
                who = f": {holders[0][0]}" if holders else ""
                raise ConfigError(
                    f"the experiment {self._name!r} in {self._server.place} is still running{who}"
                )
            time.sleep(0.05)

    def _is_abandoned(self) -> bool:
        return not any(trial.intermediate_values for trial in self.storage.get_all_trials(self.study_id))

    def _query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(text, values)
            rows = list(cursor.fetchall())
        self._connection.commit()
        return rows


def read_database(
    url: str, name: str | None, say: Callable[[str], None] = print
) -> tuple[list[StudyDirection], list[FrozenTrial]]:
    """The directions and trials of a study, without a lock; name None: the only one. ConfigError: it is not there."""
    server = Server(url, say)
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('studies') IS NOT NULL")
            has_tables = cursor.fetchone()[0]
        ids: dict[str, int] = {}
        if has_tables:
            storage = server.optuna_storage(lambda: connection, read_only=True)
            ids = {study.study_name: study._study_id for study in storage.get_all_studies()}
        if name not in ids and (name is not None or len(ids) != 1):
            held = f"holds {', '.join(map(repr, sorted(ids)))}" if ids else "holds no experiment"
            wanted = f", not {name!r}" if name is not None else ": name one"
            raise ConfigError(f"{server.place} {held}{wanted if ids else ''}")
        study_id = ids[name] if name is not None else next(iter(ids.values()))
        with drivers_errors():
            return storage.get_study_directions(study_id), storage.get_all_trials(study_id)
    except ServerError as error:
        raise ConfigError(f"{server.place}: {line_of(error)}") from None
    finally:
        connection.close()
