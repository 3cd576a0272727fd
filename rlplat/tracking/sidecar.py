"""The process that copies a run while it trains: it follows the run's files until the run ends, and repeats what fails,
so that a tracker that is down costs the training nothing."""

from __future__ import annotations

import contextlib
import fcntl
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlplat.errors import ConfigError, RlplatError
from rlplat.tracking.copying import FOLDER, Copier, file_name, state_of

POLL_S = 2.0
LONGEST_PAUSE_S = 60.0
WAIT_S = 60.0
"""For a sidecar, after the training has ended."""


class TrackingFailed(RlplatError):
    """The run has ended and the tracker still refuses."""


@contextlib.contextmanager
def only_one(directory: Path, name: str) -> Iterator[None]:
    """One copier per run and tracker; ConfigError where there is one."""
    (directory / FOLDER).mkdir(exist_ok=True)
    with open(directory / FOLDER / f"{file_name(name)}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is copying {directory} to {name} already") from None
        yield


def follow(
    copier: Copier,
    directory: Path,
    say: Callable[[str], None],
    *,
    patience_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Copy until the run has ended and all of it is copied; returns its state.

    TrackingFailed where the tracker fails for `patience_s` seconds after the end; the same command sends the rest.
    """
    failures, refused_s = 0, 0.0
    while True:
        state = state_of(directory)  # before the turn: what was written until then is in the copy
        try:
            while copier.turn():
                pass
            if not directory.is_dir():
                return "gone"
            if state != "running":
                copier.finish(state)
                return state
            failures, refused_s = 0, 0.0
            sleep(POLL_S)
        except Exception as error:  # of a package that is not ours: anything
            copier.drop()
            failures += 1
            pause_s = min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
            refused_s += pause_s if state != "running" else 0.0
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            if refused_s > patience_s:
                raise TrackingFailed(f"the tracker still refuses, and the run has ended: {reason}") from error
            say(f"{reason}; trying again in {pause_s:g} s")
            sleep(pause_s)


class Sidecar:
    """`rlplat track` in a process of its own, which a Ctrl-C for the training does not reach."""

    def __init__(self, directory: Path, name: str) -> None:
        self._name, self._directory = name, directory
        self._log = directory / FOLDER / f"{file_name(name)}.log"
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "rlplat.cli", "track", str(directory), "--to", name]
        try:
            self._log.parent.mkdir(exist_ok=True)
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            print(f"warning: no copy to {name}: {error}; the training continues", file=sys.stderr)

    def wait(self, seconds: float = WAIT_S) -> None:
        """For what is still to be copied; says what to do where it takes longer, or has failed."""
        if self._process is None:
            return
        again = f"rlplat track {shlex.quote(str(self._directory))} --to {self._name}"
        try:
            if self._process.wait(seconds):
                print(f"the copy to {self._name} failed ({self._log}); again: {again}", file=sys.stderr)
        except subprocess.TimeoutExpired:
            print(f"still copying to {self._name}, in the background ({self._log})", file=sys.stderr)
