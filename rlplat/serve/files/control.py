"""How `rlplat serve deploy`, `status` and `shutdown` reach the process that serves a file: a Unix socket.

    with ControlServer(file, answer): ...                  # answer({"do": "status"}) -> JSON values
    ask(file, {"do": "status"})                            # None where no process serves this file

The socket is in a folder of the user's alone, ~/.rlplat/serve; one JSON line each way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlplat.errors import RlplatError, UsageError
from rlplat.machine_limits import socket_folder


def folder_of(file: Path) -> Path:
    """Of the socket and the log; made where there is none."""
    folder = _place_of(file)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made, in which commands find what serves {file}: {error.strerror}; name a home that "
            "can be written by HOME"
        ) from None
    return folder


def _place_of(file: Path) -> Path:
    file = file.absolute()
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:12]
    return Path.home() / ".rlplat" / "serve" / f"{file.stem[:30]}-{digest}"


def ask(file: Path, question: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """The answer of the process that serves the file; None where there is none. RlplatError with what it says, or where
    it gives no answer in time."""
    who = "the process"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            with socket_folder(_place_of(file)) as folder:
                connection.connect(f"{folder}/control")
            pid = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
            who = f"process {pid}"
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as reader:
                line = reader.readline()
        except (FileNotFoundError, ConnectionError):
            return None
        except TimeoutError:
            raise RlplatError(
                f"{who} that serves {file} gave no answer to {question['do']} within {timeout_s:g} s: it is busy, "
                f"stopped or hangs (its log, where deploy started it: {_place_of(file) / 'log.txt'}); wait longer with "
                "--timeout-s, or end the process"
            ) from None
    if not line:
        return None  # it ended meanwhile
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise (UsageError if answer.get("is_usage") else RlplatError)(answer["error"])
    return answer


class ControlServer:
    def __init__(self, file: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """UsageError where another process serves the file."""
        self._lock = (folder_of(file) / "lock").open("w")
        if not _take(self._lock):
            self._lock.close()
            raise UsageError(
                f"{file} is served already: rlplat serve deploy {file} changes it, rlplat serve shutdown {file} ends it"
            )
        self._path = folder_of(file) / "control"
        self._path.unlink(missing_ok=True)  # of a process that was killed

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    said = answer(json.loads(self.rfile.readline()))
                except Exception as error:  # it is told, and the server stays
                    said = {"error": str(error) or repr(error), "is_usage": isinstance(error, UsageError)}
                with contextlib.suppress(OSError):  # who asked has gone
                    self.wfile.write(json.dumps(said).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        with socket_folder(self._path.parent) as folder:
            self._server = Server(f"{folder}/control", Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="rlplat-serve-control", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._lock.close()


def wait_until_free(file: Path, timeout_s: float) -> bool:
    """Until the process that serves the file has ended; whether it has, within this time."""
    end = time.monotonic() + timeout_s
    with (folder_of(file) / "lock").open("w") as lock:
        while not (is_free := _take(lock)) and time.monotonic() < end:
            time.sleep(0.02)
    return is_free


def _take(lock: Any) -> bool:
    """Take the lock, which its process holds as long as it lives; False where another one holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
