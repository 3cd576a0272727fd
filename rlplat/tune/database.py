"""A study in a PostgreSQL database: Optuna's `RDBStorage` over the one connection that holds the tuner's lock.

One tuner per study: it holds an advisory lock as long as its connection lives, and all that it writes goes through that
connection. Several studies share a database. A server that goes away is waited for, and what was being written is
written again: each write may be made twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from rlplat.errors import ConfigError, MissingExtra
from rlplat.rl.run.interruption import raise_pending
from rlplat.tune.address import problem_of, shown
from rlplat.tune.journal import quietly
from rlplat.tune.trial import first_line

try:
    import psycopg2
    from psycopg2.extensions import make_dsn, parse_dsn
    from sqlalchemy.pool import StaticPool
except ImportError:
    raise MissingExtra("psycopg2-binary", "postgres", "--storage postgresql://...") from None


T = TypeVar("T")
ServerError = psycopg2.Error
"""What the server or the driver refuses, and that they cannot reach each other."""

CONNECT_S = 5
"""Limit for each address of the server."""
PATIENCE_S = 60.0
"""How long a server that went away is waited for."""


class Server:
    """Where the database is, and how to get at it. The password is in `dsn` only, which nobody prints."""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        if problem := problem_of(url):
            raise ConfigError(f"storage {shown(url)}: {problem}")
        try:
            given = parse_dsn(f"postgresql://{url.partition('://')[2]}")
        except psycopg2.ProgrammingError as error:
            raise ConfigError(f"storage {shown(url)} is no PostgreSQL address: {line_of(error)}") from None
        settings = {
            "connect_timeout": CONNECT_S,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
            "client_encoding": "UTF8",
            "application_name": f"rlplat tune (pid {os.getpid()} on {socket.gethostname()})"[:63],
        }
        self.dsn = make_dsn(**{**settings, **given})
        host = given.get("host") or os.environ.get("PGHOST") or "the local socket"
        port = given.get("port") or os.environ.get("PGPORT") or 5432
        database = given.get("dbname") or os.environ.get("PGDATABASE") or given.get("user", "")
        self.place = f"PostgreSQL at {host}:{port}, database {database!r}"
        self._say = say

    def connect(self) -> Any:
        """A connection that commits by itself. ConfigError names the server and what it said."""
        try:
            connection = psycopg2.connect(self.dsn)
        except psycopg2.OperationalError as error:
            text, hint = line_of(error), ""
            if "password" in text:
                hint = " (a password can be given in PGPASSWORD or ~/.pgpass)"
            raise ConfigError(f"storage cannot be reached: {self.place}: {text}{hint}") from None
        connection.autocommit = True
        return connection

    def patiently(self, action: Callable[[], T]) -> T:
        """`action`, again and again while the server is away, or until a signal comes. ConfigError: away for more than
        `PATIENCE_S`."""
        deadline, pause_s, said = time.monotonic() + PATIENCE_S, 0.1, False
        while True:
            try:
                return action()
            except ConfigError as error:
                problem = str(error)
            except (psycopg2.InterfaceError, psycopg2.OperationalError) as error:
                problem = f"{self.place}: {line_of(error)}"
            if time.monotonic() > deadline:
                raise ConfigError(f"{problem}; waited for {PATIENCE_S:g} s; when it is back, continue with --resume")
            if not said:
                self._say(f"waiting for the storage, {PATIENCE_S:g} s at most: {problem}")
                said = True
            raise_pending()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def optuna_storage(self, connect: Callable[[], Any], *, read_only: bool = False) -> RDBStorage:
        """Over one connection, for which `connect` is called again where it has ended. read_only: no table is made, and
        what is read is of one moment."""
        engine: dict[str, Any] = {"creator": connect, "poolclass": StaticPool}
        if read_only:
            engine["isolation_level"] = "REPEATABLE READ"
        try:
            with drivers_errors():
                return RDBStorage("postgresql+psycopg2://", engine_kwargs=engine, skip_table_creation=read_only)
        except (RuntimeError, StorageInternalError) as error:  # a schema of another version of Optuna
            raise ConfigError(f"{self.place}: {line_of(error)}") from None


@contextmanager
def drivers_errors() -> Iterator[None]:
    """Those of psycopg2, as Optuna and SQLAlchemy wrap them, are raised themselves."""
    try:
        yield
    except Exception as error:
        for wrapper in (error, error.__cause__):
            if isinstance(cause := getattr(wrapper, "orig", None), ServerError):
                raise cause from None
        raise


def line_of(error: BaseException) -> str:
    """The first line of what the server or the driver says."""
    return first_line(str(error)) or type(error).__name__


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
        self._server, self._name, self.study_id = Server(url, say), name, 0
        self._connection = self._server.connect()  # only a server that goes away later is waited for
        try:
            self._query("SELECT pg_advisory_lock(%s, 0)", LOCKS)  # two that make the tables at once fail
            self.storage: BaseStorage = self._server.optuna_storage(self._connect)
            with drivers_errors():
                self._open_study(directions, resume)
            self._query("SELECT pg_advisory_unlock(%s, 0)", LOCKS)
        except BaseException as error:
            self._connection.close()  # with its locks
            if isinstance(error, ServerError):
                raise ConfigError(f"{self._server.place}: {line_of(error)}") from None
            raise

    def do(self, action: Callable[[], T]) -> T:
        """With the storage; again and again while the server is away."""

        def attempt() -> T:
            with drivers_errors():
                return action()

        return self._server.patiently(attempt)

    def sync(self, wait: bool = False) -> None:
        """Each write is in the database when it returns."""

    def close(self) -> None:
        self._connection.close()

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
            with quietly():
                self.study_id = self.storage.create_new_study(directions, self._name)
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
                raise ConfigError(f"the experiment {self._name!r} in {self._server.place} is still running{who}")
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
