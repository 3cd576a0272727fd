"""A real PostgreSQL server for the tests: its own, on a free port, gone when the test ends."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.patience import soon

PASSWORD = "open sesame%:/"
"""With characters that an address must quote."""


def _binaries() -> Path | None:
    """Where `postgres` and `initdb` are; /usr/lib/postgresql/<version>/bin is not on the PATH of Debian."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        candidates.insert(0, Path(found).resolve().parent)
    return next((path for path in candidates if (path / "postgres").exists() and (path / "initdb").exists()), None)


def _user() -> str | None:
    """Whom to run it as: PostgreSQL refuses root."""
    if os.getuid() != 0:
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _free_port() -> int:
    """Below those that the kernel gives to outgoing connections: nobody takes it while the server is stopped, not even
    a client that tries to reach it."""
    for port in random.sample(range(15_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port between 15000 and 32000")


class PostgresServer:
    def __init__(self, directory: Path, binaries: Path, user: str) -> None:
        self.data, self._binaries, self._user = directory / "data", binaries, user
        self._sockets = directory / "s"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = directory
        self._sockets.mkdir()
        password_file = directory / "password"
        password_file.write_text(PASSWORD)
        if user:
            for path in (directory, self._sockets, password_file):
                shutil.chown(path, user)
        self._run(
            "initdb", "--pgdata", str(self.data), "--username", "tuner", "--auth-host", "scram-sha-256",
            "--auth-local", "trust", "--pwfile", str(password_file), "--no-sync", "--encoding", "UTF8", "--locale", "C",
        )  # fmt: skip

    @property
    def url(self) -> str:
        from urllib.parse import quote

        return f"postgresql://tuner:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/postgres"

    @property
    def url_without_password(self) -> str:
        return f"postgresql://tuner@127.0.0.1:{self.port}/postgres"

    @property
    def socket_url(self) -> str:
        return f"postgresql://tuner@/postgres?host={self._sockets}&port={self.port}"

    def start(self) -> None:
        command = [
            str(self._binaries / "postgres"), "-D", str(self.data), "-p", str(self.port), "-h", "127.0.0.1",
            "-k", str(self._sockets), "-c", "fsync=off", "-c", "max_connections=20", "-c", "shared_buffers=8MB",
            "-c", "dynamic_shared_memory_type=mmap",
        ]  # fmt: skip
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(self._as_user(command), stdout=log, stderr=log, cwd="/")
        assert soon(self._answers), (self._directory / "log").read_text()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast (ends connections); SIGQUIT: at once, with recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def is_stopped(self) -> bool:
        return self._process is None

    def signal_all(self, number: signal.Signals) -> None:
        """To every process of it."""
        assert self._process is not None
        for process in [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children()]:
            process.send_signal(number)

    def ask(self, query: str) -> str:
        return self._run(
            "psql", "-h", str(self._sockets), "-p", str(self.port), "-U", "tuner", "-Atc", query, "postgres"
        )

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self._directory / "log").read_text()
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", str(self._sockets), "-p", str(self.port)]
        return subprocess.run(ready).returncode == 0

    def _as_user(self, command: list[str]) -> list[str]:
        if not self._user:
            return command
        ids = pwd.getpwnam(self._user)
        return [
            "setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups",
            "--pdeathsig", "INT", *command,
        ]  # fmt: skip

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            self._as_user([str(self._binaries / program), *arguments]),
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Skips the test where there is no server to start."""
    pytest.importorskip("psycopg2", reason="needs the extra 'postgres'")
    binaries, user = _binaries(), _user()
    if binaries is None:
        pytest.skip("no PostgreSQL server here (postgres and initdb on PATH or in /usr/lib/postgresql)")
    if user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
    directory = Path(tempfile.mkdtemp(prefix="rlplat-pg-", dir="/tmp"))  # short: a socket's path has 107 characters
    directory.chmod(0o755)
    server = None
    try:
        server = PostgresServer(directory, binaries, user)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)
