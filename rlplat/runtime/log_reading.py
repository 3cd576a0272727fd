"""Read the log files that the node writes of each worker's output, while the cluster runs and after it has ended.

A worker's file begins with `# w3 pid=123 started=...`; `# Actor ClassName` follows when it becomes an actor. At its cap
a file becomes `w3.log.1` and is begun anew.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlplat.errors import ConfigError

_BLOCK = 1 << 16
_PAUSE_S = 0.1
_HEAD = re.compile(rb"# (\w+) pid=(\d+)")
_ACTOR = re.compile(rb"^# Actor (.+)$", re.MULTILINE)


def default_root() -> Path:
    return Path(
        os.environ.get("RLPLAT_LOG_DIR") or os.path.join(tempfile.gettempdir(), f"rlplat-{os.getuid()}")
    )


def find_logs(session: str | None) -> Path:
    """The folder of a session that may have ended (by its name, folder or driver's pid), or of the newest one."""
    found = sorted(default_root().glob("rlplat-*-*-*/logs"), key=lambda path: path.stat().st_mtime)
    if session is not None:
        wanted = os.path.basename(session.rstrip("/"))
        found = [path for path in found if wanted in (path.parent.name, path.parent.name.split("-")[1])]
    if not found:
        which = "of any cluster" if session is None else f"of a cluster {session!r}"
        raise ConfigError(
            f"there are no logs {which} in {default_root()} (RLPLAT_LOG_DIR and init(log_dir=) put them elsewhere)"
        )
    return found[-1]


@dataclass
class WorkerLog:
    path: Path
    worker: str
    pid: int = 0
    actor: str = ""
    """Class of the actor that it was, if it was one."""
    num_bytes: int = 0
    _offset: int = field(default=0, repr=False)
    _inode: int = field(default=0, repr=False)
    _rest: bytes = field(default=b"", repr=False)

    def tail(self, num_lines: int) -> list[str]:
        """The last lines, from the older part as well when the new one is short; reading goes on behind them."""
        lines, end, inode = _last_lines(self.path, num_lines)
        self._offset, self._inode = end, inode
        if len(lines) < num_lines:
            older = self.path.with_name(self.path.name + ".1")
            lines = _last_lines(older, num_lines - len(lines))[0] + lines
        return lines

    def news(self) -> list[str]:
        """Whole lines that came since the last call."""
        try:
            inode = self.path.stat().st_ino
        except OSError:
            return []
        data = b""
        if self._inode and inode != self._inode:  # begun anew: first the end of the part that was moved away
            data = _read(self.path.with_name(self.path.name + ".1"), self._offset)
            self._offset = 0
        new = _read(self.path, self._offset)
        self._inode = inode
        self._offset += len(new)
        *lines, self._rest = (self._rest + data + new).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def worker_logs(folder: Path) -> list[WorkerLog]:
    """One for each worker that has printed something, by number."""
    found = []
    for path in folder.glob("*.log"):
        log = WorkerLog(path, path.name.removesuffix(".log"), num_bytes=path.stat().st_size)
        with open(path, "rb") as file:
            start = file.read(_BLOCK)
        head, actor = _HEAD.match(start), _ACTOR.search(start)
        if head is not None:
            log.pid = int(head[2])
        if actor is not None:
            log.actor = actor[1].decode(errors="replace").strip()
        found.append(log)
    return sorted(
        found, key=lambda log: (int(log.worker[1:]) if log.worker[1:].isdigit() else -1, log.worker)
    )


def choose(logs: list[WorkerLog], name: str) -> list[WorkerLog]:
    """Those of a worker's id or pid, or of every worker that was an actor of this class."""
    if name == "all":
        return logs
    found = [log for log in logs if name in (log.worker, str(log.pid), log.actor)]
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


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""


def _last_lines(path: Path, num_lines: int) -> tuple[list[str], int, int]:
    """The last whole lines, the offset behind them, and the file's inode."""
    try:
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            position = file.seek(0, os.SEEK_END)
            data = b""
            while position and data.count(b"\n") <= num_lines:
                step = min(_BLOCK, position)
                position -= step
                file.seek(position)
                data = file.read(step) + data
            whole = data.rfind(b"\n") + 1
            lines = data[:whole].split(b"\n")[:-1]
            end = position + whole
    except OSError:
        return [], 0, 0
    kept = lines[-num_lines:] if num_lines else []
    return [line.decode(errors="replace") for line in kept], end, inode
