"""What `rlplat serve FILE.yaml`, `deploy`, `status` and `shutdown` do.

One process serves a file, in the foreground or behind it (`deploy` starts it where there is none): it holds the
applications' controllers, and reads the file again when it is told to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlplat.errors import RlplatError, UsageError
from rlplat.serve.files.applications import Applications
from rlplat.serve.files.control import ControlServer, ask, folder_of, wait_until_free
from rlplat.serve.files.settings import read_applications

TIMEOUT_S = {"status": 10.0, "deploy": 600.0, "shutdown": 120.0}
"""How long each verb waits."""


def serve_file(file: Path, wait: Callable[[], int]) -> int:
    """In the foreground until `wait` returns; its result. UsageError where another process serves the file."""
    wanted = read_applications(file)
    applications = Applications()
    is_ready = threading.Event()

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "deploy":
            return {"done": applications.apply(read_applications(file))}
        return {"pid": os.getpid(), "is_ready": is_ready.is_set(), "applications": applications.status()}

    with ControlServer(file, answer), applications:
        applications.apply(wanted)
        is_ready.set()
        for name, status in applications.status().items():
            print(f"serving {name} at {status['url']}", flush=True)
        return wait()


def deploy(file: Path, timeout_s: float = TIMEOUT_S["deploy"]) -> dict[str, str]:
    """What was done, by application: what runs is changed to what the file says, or a process is started for it."""
    end = time.monotonic() + timeout_s
    is_served = ask(file, {"do": "status"}, min(timeout_s, TIMEOUT_S["status"])) is not None
    answer = ask(file, {"do": "deploy"}, timeout_s) if is_served else None
    if answer is not None:
        done: dict[str, str] = answer["done"]
        return done
    wanted = read_applications(file)
    log = log_of(file)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlplat.cli", "serve", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while True:
        code = process.poll()
        if code is not None:
            said = "\n".join(log.read_text(errors="replace").strip().splitlines()[-5:])
            raise (UsageError if code == 2 else RlplatError)(f"{file} is not served: {said}")
        there = ask(file, {"do": "status"}, TIMEOUT_S["status"])
        if there is not None and there["is_ready"]:
            return dict.fromkeys(wanted, "started")
        if time.monotonic() > end:
            raise RlplatError(
                f"{file} is not ready after {timeout_s:g} s; process {process.pid} goes on starting it (log: {log}), "
                f"and rlplat serve shutdown {file} ends it"
            )
        time.sleep(0.05)


def status(file: Path, timeout_s: float = TIMEOUT_S["status"]) -> dict[str, Any]:
    """JSON values. UsageError where no process serves the file."""
    there = ask(file, {"do": "status"}, timeout_s)
    if there is None:
        raise UsageError(f"{file} is not served; rlplat serve deploy {file} starts it")
    return there


def shutdown(file: Path, timeout_s: float = TIMEOUT_S["shutdown"]) -> None:
    """Returns when the requests that ran are finished and nothing is left."""
    pid = status(file, min(timeout_s, TIMEOUT_S["status"]))["pid"]
    os.kill(pid, signal.SIGTERM)
    if not wait_until_free(file, timeout_s):
        raise RlplatError(
            f"process {pid} that serves {file} has not ended {timeout_s:g} s after it was told to: requests run still, "
            f"or it hangs; a second shutdown does not wait for them, and kill -9 {pid} ends it in any case"
        )


def log_of(file: Path) -> Path:
    """Of a process that `deploy` started."""
    return folder_of(file) / "log.txt"
