"""Read the log files that the node writes of each worker's output, while the cluster runs and after it has ended.

A worker's file begins with `# w3 pid=123 started=...`, and has `# Actor Learner` from when it is an actor. At its cap a
file becomes `w3.log.1` and is begun anew, with the same head. What workers on other machines printed is there as far
as it was shown; their first line ends with ` on n2`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlplat.errors import ConfigError
from rlplat.runtime.machine.worker_logs import default_root

_BLOCK = 1 << 16
_PAUSE_S = 0.1
_OUR_LINES = 4
"""That may be among the last lines, beside the worker's."""
_HEAD = re.compile(r"^# \w+ pid=(\d+) started=\d+(?: on (\w+))?$", re.MULTILINE)
_ACTOR = re.compile(r"^# Actor (\S+)$", re.MULTILINE)
_OURS = re.compile(r"# (\w+ pid=\d+ started=\d+( on \w+)?|Actor \S+)$")
"""Lines that the node writes itself."""


def find_logs(session: str | None) -> Path:
    """The folder of a session that may have ended (by its name, folder or driver's pid), or of the newest one."""
    try:
        root = default_root()
    except FileNotFoundError as error:
        raise ConfigError(f"there are no logs of ended clusters: {error.strerror}") from None
    found = sorted(root.glob("rlplat-*-*-*/logs"), key=lambda path: path.stat().st_mtime)
    if session is not None:
        wanted = os.path.basename(session.rstrip("/"))
        found = [path for path in found if wanted in (path.parent.name, path.parent.name.split("-")[1])]
    if not found:
        which = "of any cluster" if session is None else f"of a cluster {session!r}"
        raise ConfigError(f"there are no logs {which} in {root} (RLPLAT_LOG_DIR and init(log_dir=) put them elsewhere)")
    return found[-1]


@dataclass
class WorkerLog:
    path: Path
    worker: str
    pid: int = 0
    node: str = ""
    """Where it ran, if not on the head's machine; the whole of its log is there."""
    actor: str = ""
    """Class of the actor that it was, if it was one."""
    num_bytes: int = 0
    _offset: int = field(default=0, repr=False)
    _inode: int = field(default=0, repr=False)
    _rest: bytes = field(default=b"", repr=False)

    def tail(self, num_lines: int) -> list[str]:
        """The last lines, from the older part as well when the new one is short; reading goes on behind them."""
        lines, self._offset, self._inode = _last_lines(self.path, num_lines)
        if len(lines) < num_lines:
            lines = _last_lines(_older(self.path), num_lines - len(lines))[0] + lines
        return lines

    def news(self) -> list[str]:
        """Whole lines that came since the last call."""
        try:
            inode = self.path.stat().st_ino
        except OSError:
            return []
        data = b""
        if self._inode and inode != self._inode:  # begun anew: first the end of the part that was moved away
            data = _read(_older(self.path), self._offset)
            self._offset = 0
        new = _read(self.path, self._offset)
        self._inode = inode
        self._offset += len(new)
        *lines, self._rest = (self._rest + data + new).split(b"\n")
        return _printed(lines)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _printed(lines: list[bytes]) -> list[str]:
    decoded = (line.decode(errors="replace") for line in lines)
    return [line for line in decoded if not _OURS.match(line)]


def worker_logs(folder: Path) -> list[WorkerLog]:
    """One for each worker that has printed something, by number."""
    found = []
    for path in folder.glob("w*.log"):
        log = WorkerLog(path, path.name.removesuffix(".log"), num_bytes=path.stat().st_size)
        start = _read(path, 0, _BLOCK).decode(errors="replace")
        if head := _HEAD.search(start):
            log.pid, log.node = int(head[1]), head[2] or ""
        if actor := _ACTOR.search(start):
            log.actor = actor[1]
        found.append(log)
    return sorted(found, key=lambda log: (int(log.worker[1:]) if log.worker[1:].isdecimal() else -1, log.worker))


def choose(logs: list[WorkerLog], name: str) -> list[WorkerLog]:
    """Those of a worker's id or pid, or of every worker that was an actor of this class."""
    if name == "all":
        return logs
    found = [log for log in logs if name in (log.worker, str(log.pid), log.actor, log.actor.split(".")[-1])]
    if not found:
        known = ", ".join(f"{log.worker} {log.actor}".strip() for log in logs) or "none"
        raise ConfigError(f"no worker or actor {name!r} has printed anything; those that have: {known}")
    return found


def follow(
    logs: list[WorkerLog], more: Callable[[], list[WorkerLog]], is_over: Callable[[], bool]
) -> Iterator[tuple[WorkerLog, str]]:
    """Lines as they come, also of workers that begin to print, until the cluster has ended."""
    known = {log.path: log for log in logs}
    while True:
        ends = is_over()  # before reading: what was written by then is read
        for log in more():
            known.setdefault(log.path, log)
        did = False
        for log in known.values():
            for line in log.news():
                did = True
                yield log, line
        if ends:
            return
        if not did:
            time.sleep(_PAUSE_S)


def _read(path: Path, offset: int, most: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError:
        return b""


def _last_lines(path: Path, num_lines: int) -> tuple[list[str], int, int]:
    """The last whole lines, the offset behind them, and the file's inode."""
    try:
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            position = file.seek(0, os.SEEK_END)
            data = b""
            while position and data.count(b"\n") <= num_lines + _OUR_LINES:
                step = min(_BLOCK, position)
                position -= step
                file.seek(position)
                data = file.read(step) + data
            whole = data.rfind(b"\n") + 1
            lines = data[:whole].split(b"\n")[:-1]
            end = position + whole
    except OSError:
        return [], 0, 0
    return _printed(lines)[-num_lines:] if num_lines else [], end, inode
