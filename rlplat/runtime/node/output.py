"""What workers print: whole into their log files, and a bounded share of it, line by line, onto the driver's stderr.

A worker that prints more than `MOST_LINES` or `MOST_BYTES` in a second is cut off there until the second is over; then
one line says how many were dropped and where they are. When nobody reads the driver's stderr (a pager, a stopped
terminal), lines gather up to a bound and are then dropped as well: the node never waits for a terminal.

A progress bar (tqdm's) writes its states over each other, with carriage returns, and ends its line when it is done.
What a terminal would show of it becomes a line after 1, 2, 4, 8 s and then every 10 s, and when the line ends.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque

from rlplat.runtime.machine.worker_logs import LogFile
from rlplat.runtime.wire.agent_messages import Printed

MOST_LINES = 2_000
MOST_BYTES = 1_000_000
"""In a second, from each worker."""
_MOST_LINE_BYTES = 65_536
_MOST_WAITING = 4 << 20
_LAST_LINES = 20
_PIPE_BYTES = 4096


class Console:
    """Standard error, which the node shares with the driver: never waited for."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._num_dropped = 0
        self.has_told_of_loss = False
        """That a log file cannot be written: once for all workers."""
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLOUT)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def write(self, text: str) -> None:
        data = text.encode(errors="replace")
        if len(self._waiting) + len(data) > _MOST_WAITING:
            self._num_dropped += 1
            return
        self._waiting += data
        self.flush()

    def show(self, worker: str, name: str, lines: list[str]) -> None:
        """What a worker has printed."""
        for line in lines:
            self.write(f"({name}) {line}\n")

    def flush(self, within_s: float = 0.0) -> None:
        """Write as much as there is room for, or will be in that time."""
        while self._waiting and self._has_room(within_s):
            # A pipe that polls as writable takes this many bytes without blocking.
            try:
                del self._waiting[: os.write(self._descriptor, self._waiting[:_PIPE_BYTES])]
            except OSError:  # the terminal is gone
                self._waiting.clear()
        if not self._waiting and self._num_dropped:
            number, self._num_dropped = self._num_dropped, 0
            self.write(f"... {number:,} pieces of output were dropped: nobody read this for a while\n")

    def _has_room(self, within_s: float) -> bool:
        ready = self._poller.poll(within_s * 1000)
        return bool(ready) and bool(ready[0][1] & (select.POLLOUT | select.POLLERR | select.POLLHUP))


class WorkerOutput:
    """What one worker prints. `forward`: onto the console at all."""

    def __init__(self, worker: str, console: Console, file: LogFile, forward: bool) -> None:
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.report_at: float | None = None
        """When `report` is due: lines were dropped."""
        self.file = file
        self._worker, self._console, self._forward = worker, console, forward
        self._rest = b""
        self._second = 0.0
        self._num_lines = self._num_bytes = self._num_dropped = 0
        self._bar_at, self._bar_pause_s = 0.0, 0.0
        """When the next state of a progress bar is shown, and how long after the one before."""

    def take(self, data: bytes, name: str, now: float) -> None:
        """`name` goes before each line."""
        self.file.write(data)
        if self.file.failure and not self._console.has_told_of_loss:
            self._console.has_told_of_loss = True
            self._console.write(
                f"rlplat: output of workers is lost: {self.file.path} cannot be written: {self.file.failure}\n"
            )
        *lines, rest = (self._rest + data).split(b"\n")
        lines = [_as_seen(line) for line in lines]
        is_bar = b"\r" in rest
        self._rest = _as_seen(rest) + (b"\r" if rest.endswith(b"\r") else b"")
        if lines:
            self._bar_pause_s = 0.0
        if is_bar and not self._bar_pause_s:
            self._bar_pause_s, self._bar_at = 1.0, now + 1.0
        elif is_bar and now >= self._bar_at:
            lines.append(_as_seen(rest))
            self._bar_pause_s = min(2 * self._bar_pause_s, 10.0)
            self._bar_at = now + self._bar_pause_s
        if len(self._rest) > _MOST_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        self._take_lines(lines, name, now)

    def end(self, name: str, now: float) -> None:
        """The worker is gone: its last line may lack a line end."""
        if self._rest:
            lines, self._rest = [_as_seen(self._rest)], b""
            self._take_lines(lines, name, now)
        self.report(name)

    def _take_lines(self, lines: list[bytes], name: str, now: float) -> None:
        self.last_lines.extend(line.decode(errors="replace") for line in lines[-_LAST_LINES:])
        if not self._forward:
            return
        if now - self._second >= 1:
            self.report(name)
            self._second, self._num_lines, self._num_bytes = now, 0, 0
        shown: list[str] = []
        for line in lines:
            self._num_lines += 1
            self._num_bytes += len(line)
            if self._num_lines > MOST_LINES or self._num_bytes > MOST_BYTES:
                self._num_dropped += len(lines) - len(shown)
                self.report_at = self._second + 1
                break
            shown.append(line.decode(errors="replace"))
        if shown:
            self._console.show(self._worker, name, shown)

    def report(self, name: str) -> None:
        """Say how many lines were dropped, if any were."""
        if self._num_dropped:
            lost = self.file.num_lost_bytes
            where = f", but for {lost:,} bytes that could not be written there" if lost else ""
            text = f"... {self._num_dropped:,} lines dropped; they are in {self.file.path}{where}"
            self._console.show(self._worker, name, [text])
        self._num_dropped, self.report_at = 0, None


class FarOutput:
    """At the head: what workers on other machines print, as far as it is shown, is kept beside that of its own.

    (All of it is in the log files of their machine.)
    """

    def __init__(self, console: Console, folder: str, forward: bool) -> None:
        self._console, self._folder, self._forward = console, folder, forward
        self._files: dict[str, tuple[LogFile, str]] = {}
        """By worker: with who it is, as the file was told."""

    def take(self, node: str, printed: Printed) -> None:
        worker, name = printed.worker, printed.name
        who, _, pid = name.rpartition(" pid=")
        file, told = self._files.get(worker, (None, worker))
        if file is None:
            file = LogFile(os.path.join(self._folder, f"{worker}.log"))
            file.add_to_head(f"# {worker} pid={pid} started={time.time():.0f} on {node}\n")
        if who != told:
            file.add_to_head(f"# Actor {who}\n")
        self._files[worker] = file, who
        file.write("".join(f"{line}\n" for line in printed.lines).encode(errors="replace"))
        if self._forward:
            self._console.show(worker, f"{name} on {node}", printed.lines)

    def forget(self, worker: str) -> None:
        self._files.pop(worker, None)


def _as_seen(line: bytes) -> bytes:
    """What a terminal shows of it: what stands behind its last carriage return."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")
