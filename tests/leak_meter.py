"""What a test left behind: processes, shared memory, files, sockets, threads; and messages that nobody could handle.

    meter = LeakMeter.start()         # puts a random mark into the environment, which every child process inherits
    ...the test...
    leaks = meter.finish()            # waits up to 30 s for things to settle (a loaded machine); [] when all is clean

Several processes may test at once (`pytest -n`): what belongs to another one is none of this one's leaks.
A process is found by the mark in `/proc/*/environ`, so neither a double fork nor `setsid` hides it; a bare `fork`
(whose environ is this process's own) is found as a child. When nothing leaked, all this costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

MARK = "RLPLAT_TEST_MARK"
DROPS_FILE = "RLPLAT_DROPS_FILE"
"""Every process writes there what it could not handle (`rlplat.runtime.link.dropped`). In a test that is our bug."""
SHM_PREFIX = "rlplat-"
SETTLE_S = 30.0
log_root: Path | None = None
"""Where the clusters of this process's tests log, each in a folder of its session's name; None: not set up."""

_ALLOWED_THREAD_CLASSES = {
    "TMonitor",  # tqdm's monitor: one per process, started by the first bar, never ended by tqdm
    "_RepeatTimer",  # gymnasium's and torch's housekeeping timers
}
_ALLOWED_FILES = (
    "/dev/shm/pym-",  # multiprocessing's shared heap: one arena per process, unlinked, kept for its next array
    "/dev/urandom",  # libraries that keep it open after the first random number (torch, OpenSSL)
    "/dev/null",  # opened once by OpenMP and by pygame's dummy drivers
    "/sys/devices/system/",  # libraries that read the CPU topology once (hwloc, OpenMP)
    "/proc/",  # psutil keeps none, but MuJoCo and torch's cpuinfo do
)
_MATPLOTLIB_FONTS = "/matplotlib/mpl-data/fonts/"  # a cache of open fonts: as many as a picture's text needs
# Native threads that are not Python's belong to library pools (OpenMP, OpenBLAS, torch's intra-op pool), which start
# lazily and live as long as the process. ZeroMQ's are the exception: they end with their context.
_WATCHED_NATIVE_THREADS = "ZMQbg"


@dataclass(frozen=True)
class Snapshot:
    """What this process holds; each entry is what the report will say of it, by a key that is not reused."""

    files: dict[tuple[int, str], str]
    threads: dict[int, str]
    shared_memory: set[str]
    children: dict[int, str]
    ticks: int
    """When: clock ticks since boot, as `/proc` has them."""
    ended: tuple[float, ...]
    """What all children that have ended used, in time, memory and faults: each adds to it."""

    @classmethod
    def take(cls) -> Snapshot:
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        ended = tuple(resource.getrusage(resource.RUSAGE_CHILDREN))
        return cls(_files(), _threads(), _shared_memory(), _children(), now, ended)


class LeakMeter:
    def __init__(self, mark: str, outer_mark: str | None, before: Snapshot) -> None:
        self.mark, self._outer_mark, self._before = mark, outer_mark, before
        self._num_dropped = len(_dropped())

    @classmethod
    def start(cls) -> LeakMeter:
        mark, outer_mark = uuid.uuid4().hex, os.environ.get(MARK)
        before = Snapshot.take()
        os.environ[MARK] = mark
        return cls(mark, outer_mark, before)

    def finish(self, settle_s: float = SETTLE_S) -> list[str]:
        """What is left after at most `settle_s` seconds, a line each; ends what it can, for the next test's sake."""
        deadline, pause_s, has_collected = time.monotonic() + settle_s, 0.005, False
        try:
            while leaks := self.leaks():
                if time.monotonic() > deadline:
                    self._clean_up()
                    return leaks + self.dropped()
                if not has_collected:  # files and sockets in reference cycles end with the next collection
                    has_collected = True
                    gc.collect()
                else:
                    time.sleep(pause_s)
                    pause_s = min(0.1, 2 * pause_s)
            return self.dropped()
        finally:
            if self._outer_mark is None:
                os.environ.pop(MARK, None)
            else:
                os.environ[MARK] = self._outer_mark

    def dropped(self) -> list[str]:
        """Messages that a process of the test could not handle."""
        return [f"a message that was dropped: {line}" for line in _dropped()[self._num_dropped :]]

    def leaks(self) -> list[str]:
        before, now = self._before, Snapshot.take()
        has_begun_some = now.ended != before.ended or now.children.keys() != before.children.keys()
        marked = marked_processes(self.mark) if has_begun_some else {}
        found = [f"process {pid}: {command}" for pid, command in marked.items()]
        found += [
            f"child process {pid}: {command}"
            for pid, command in now.children.items()
            if pid not in before.children and pid not in marked and not _began_before(f"/proc/{pid}", before)
        ]
        found += [f"shared memory /dev/shm/{name}" for name in sorted(now.shared_memory - before.shared_memory)]
        found += [f"open {text}" for key, text in now.files.items() if key not in before.files]
        found += [
            f"thread {text}"
            for key, text in now.threads.items()
            if key not in before.threads and not _began_before(f"/proc/self/task/{key}", before)
        ]
        return found

    def _clean_up(self) -> None:
        refs = sys.modules.get("rlplat.runtime.refs")
        if refs is not None and refs.connection() is not None:
            import rlplat

            rlplat.shutdown()
        for pid in marked_processes(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _began_before(path: str, snapshot: Snapshot) -> bool:
    """A process or thread that the snapshot should have: the kernel cuts a list of threads off when one ends."""
    try:
        stat = Path(f"{path}/stat").read_text()
    except OSError:  # it has ended
        return True
    return int(stat.rpartition(")")[2].split()[19]) < snapshot.ticks


def _dropped() -> list[str]:
    path = os.environ.get(DROPS_FILE)
    return Path(path).read_text().splitlines() if path and os.path.exists(path) else []


def marked_processes(mark: str) -> dict[int, str]:
    """Command line by pid of every living process that inherited the mark."""
    needle = f"{MARK}={mark}".encode()
    me = os.getpid()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != me:
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if needle in file.read():
                        found[int(name)] = _command(int(name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def _command(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(ended)"
    return command[:160] or "(zombie)"


def _children() -> dict[int, str]:
    """Direct children of this process, zombies included: a child that nobody waited for is a leak as well."""
    found: dict[int, str] = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{thread}/children").read_text().split()
        except OSError:
            continue
        for pid in map(int, pids):
            command = _command(pid)
            if "resource_tracker" not in command:  # multiprocessing keeps one per process, for good
                found[pid] = command
    return found


def _shared_memory() -> set[str]:
    """Sessions on /dev/shm of this process, of its children, and of drivers of its tests that are dead."""
    found = set()
    for name in os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else ():
        if name.startswith(SHM_PREFIX):
            driver, _, rest = name.removeprefix(SHM_PREFIX).partition("-")
            if not rest:
                continue  # rlplat-UID: logs of programs whose TMPDIR is /dev/shm
            if not driver.isdigit() or int(driver) == os.getpid() or not _is_foreign(int(driver), name):
                found.add(name)
    return found


def _is_foreign(driver: int, session: str) -> bool:
    needle = f"{MARK}={os.environ.get(MARK, '?')}".encode()
    try:
        return needle not in Path(f"/proc/{driver}/environ").read_bytes()
    except OSError:  # dead: its session must be gone, if it was of these tests, whose logs are here
        if log_root is not None and not (log_root / session).exists():
            return True
        with contextlib.suppress(OSError):
            os.utime(f"/dev/shm/{session}")  # kept young: a start elsewhere removes what is 10 s old
        return False


def _files() -> dict[tuple[int, str], str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this very listing
            continue
        if not target.startswith(_ALLOWED_FILES) and _MATPLOTLIB_FONTS not in target:
            found[int(name), target] = f"fd {name}: {target}"
    return found


def _threads() -> dict[int, str]:
    found = {
        thread.native_id: f"{thread.name} ({type(thread).__name__})"
        for thread in threading.enumerate()
        if thread.native_id is not None and type(thread).__name__ not in _ALLOWED_THREAD_CLASSES
    }
    for name in os.listdir("/proc/self/task"):
        try:
            command = Path(f"/proc/self/task/{name}/comm").read_text().strip()
        except OSError:
            continue
        if command.startswith(_WATCHED_NATIVE_THREADS):
            found[int(name)] = command
    return found
