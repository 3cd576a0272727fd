"""A PostgreSQL server: its address, connections to it, and patience with one that is away.

server = Server("postgresql://user@host/database", say=print)
connection = server.connect()
server.patiently(lambda: ...)            # again and again while the server is away
with limited(lambda: connection): ...    # a server that hangs is as one that went away
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage

from rlplat.errors import ConfigError, MissingExtra
from rlplat.rl.run.interruption import raise_pending
from rlplat.tune.core.error_text import first_line
from rlplat.tune.storage.address import problem_of, shown

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
REPLY_S = 20.0
"""A server that takes longer over a turn's writes hangs, and is treated as one that went away."""


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
            except psycopg2.InterfaceError as error:
                problem = f"{self.place}: {line_of(error)}"
            except psycopg2.OperationalError as error:
                problem = f"{self.place}: {line_of(error)}"
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{problem}; waited for {PATIENCE_S:g} s; when it is back, continue with --resume"
                )
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
                return RDBStorage(
                    "postgresql+psycopg2://", engine_kwargs=engine, skip_table_creation=read_only
                )
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


@contextmanager
def limited(connection: Callable[[], Any]) -> Iterator[None]:
    """libpq waits for a reply for ever: after `REPLY_S` the connection is shut, and the call fails. connection: the one
    that is in use by then."""

    def shut() -> None:
        with suppress(psycopg2.Error, OSError), socket.socket(fileno=os.dup(connection().fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(REPLY_S, shut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def line_of(error: BaseException) -> str:
    """The first line of what the server or the driver says."""
    return first_line(str(error)) or type(error).__name__
