"""The runtime environments that a node was told of, and the builds of those that need a venv, or folders that have come
from another machine.

A build is a child process of the node; its output is in the logs, and its last lines are in the error. An environment
that failed stays failed for this cluster: nothing is tried again behind the user's back.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rlplat.runtime.envs import spec as runtime_env
from rlplat.runtime.machine.session import main_of
from rlplat.runtime.machine.worker_logs import SNAPSHOTS, LogFile
from rlplat.runtime.wire.values import ErrorInfo

_TIMEOUT_S = 600.0
_ERROR_LINES = 15
_KEY = re.compile(r"[0-9a-zA-Z_-]{1,64}")
"""Also part of the name of the build's log file."""


class _Build(msgspec.Struct):
    process: Any
    """A `subprocess.Popen`, which is imported when there is something to build."""
    venv: Path | None
    deadline: float | None
    timeout_s: float
    log: LogFile
    is_late: bool = False


class _Known(msgspec.Struct):
    env: runtime_env.Env
    spec: str
    python: str | None = None
    """None while it is built, "" when a fork of the zygote will do."""
    error: ErrorInfo | None = None
    tail: bytes = b""
    early_deaths: int = 0


class EnvBuilds:
    """`on_settled(key)`: it is built, or has failed. `folder` is the session's, with logs and snapshots."""

    def __init__(self, poller: select.poll, folder: str, on_settled: Callable[[str], None]) -> None:
        self._poller, self._on_settled = poller, on_settled
        self._log_folder, self._snapshots = os.path.join(folder, "logs"), os.path.join(folder, SNAPSHOTS)
        self._known: dict[str, _Known] = {}
        self._builds: dict[int, tuple[str, _Build]] = {}
        """By the descriptor of the build's output."""

    def define(self, key: str, spec: str) -> None:
        """Begin to build what it needs."""
        if key in self._known:
            return
        from rlplat.runtime.envs import build as env_build

        if not _KEY.fullmatch(key) or not isinstance(json.loads(spec), dict):
            raise ValueError(f"environment {key!r:.50} is {spec!r:.50}")
        env = runtime_env.placed(spec, self._snapshots)
        archives = [f"{path}{runtime_env.ARCHIVE}" for path in runtime_env.search_path(env) if not os.path.isdir(path)]
        timeout_s = float(env.get("config", {}).get("setup_timeout_seconds", _TIMEOUT_S))
        try:
            venv, failure = env_build.venv_folder(env), ""
        except OSError as error:
            venv, failure = None, f"{type(error).__name__}: {error}"
        known = self._known[key] = _Known(env, json.dumps(env))
        if failure:
            self.fail(key, failure)
        elif archives or not (venv is None or env_build.is_complete(venv)):
            self._begin(key, known.spec, venv, archives, timeout_s)
        else:
            known.python = _python_of(env, venv)

    def _begin(self, key: str, spec: str, venv: Path | None, archives: list[str], timeout_s: float) -> None:
        import subprocess

        try:
            process = subprocess.Popen(
                [sys.executable, "-c", main_of("rlplat.runtime.envs.build"), spec, str(venv or ""), *archives],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self.fail(key, f"{type(error).__name__}: {error}")
            return
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        log = LogFile(os.path.join(self._log_folder, f"env-{key}.log"))
        self._builds[descriptor] = (key, _Build(process, venv, time.monotonic() + timeout_s, timeout_s, log))
        self._poller.register(descriptor, select.POLLIN)

    def start_of(self, key: str) -> tuple[str, str] | None:
        """For a worker of it: (python to execute or "" for a fork, spec); None while it is built."""
        if not key:
            return "", ""
        known = self._known.get(key)
        if known is None or known.python is None:
            return None
        return known.python, known.spec

    def error(self, key: str) -> ErrorInfo | None:
        known = self._known.get(key)
        return None if known is None else known.error

    def hear(self, descriptor: int) -> bool:
        """Whether that was the output of a build."""
        if descriptor not in self._builds:
            return False
        key, build = self._builds[descriptor]
        data = os.read(descriptor, 65536)
        if data:
            build.log.write(data)
            self._known[key].tail = (self._known[key].tail + data)[-8192:]
        else:
            self._end(descriptor)
        return True

    def _end(self, descriptor: int) -> None:
        from rlplat.runtime.envs import build as env_build

        key, build = self._builds.pop(descriptor)
        self._poller.unregister(descriptor)
        assert build.process.stdout is not None
        build.process.stdout.close()
        code = build.process.wait()
        known = self._known[key]
        if code == 0 and (build.venv is None or env_build.is_complete(build.venv)):
            known.python = _python_of(known.env, build.venv)
            self._on_settled(key)
            return
        why = f"it took more than {build.timeout_s:g} s" if build.is_late else f"exit code {code}"
        last = "\n  ".join(known.tail.decode(errors="replace").splitlines()[-_ERROR_LINES:])
        what = "its venv could not be built" if build.venv else "its folders could not be unpacked"
        self.fail(key, f"{what} ({why}); the last lines (all: {build.log.path}):\n  {last}")

    def fail(self, key: str, why: str) -> None:
        known = self._known[key]
        what = {name: value for name, value in known.env.items() if name != "env_vars"}
        known.error = ErrorInfo("RuntimeEnvFailed", f"the runtime environment {what} could not be set up: {why}")
        self._on_settled(key)

    def died_early(self, key: str, reason: str) -> None:
        """A worker of it ended before it was ready; three in a row mean that none will ever be."""
        known = self._known.get(key)
        if known is not None and known.error is None:
            known.early_deaths += 1
            if known.early_deaths >= 3:
                self.fail(key, f"three worker processes in a row ended while they started, the last one {reason}")

    def was_ready(self, key: str) -> None:
        if key in self._known:
            self._known[key].early_deaths = 0

    def next_deadline(self) -> float | None:
        return min((b.deadline for _, b in self._builds.values() if b.deadline is not None), default=None)

    def keep_house(self, now: float) -> None:
        for _, build in self._builds.values():
            if build.deadline is not None and build.deadline <= now:
                build.deadline, build.is_late = None, True
                _kill_tree(build.process.pid)


def _python_of(env: runtime_env.Env, venv: Path | None) -> str:
    from rlplat.runtime.envs import build as env_build

    if venv is not None:
        return env_build.venv_python(venv)
    return sys.executable if runtime_env.needs_own_process(env) else ""


def _kill_tree(pid: int) -> None:
    from rlplat.runtime.machine.proc_files import children

    below = children(pid)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for child in below:  # pip holds the output open: the build would not end with its parent alone
        _kill_tree(child)
