"""What a cluster leaves in the machine while it lives: a private folder in shared memory, and a mark on its processes.

The folder (mode 0700, named after the driver's pid and start time) holds sockets and segments, and a link to another
one on disk for segments that were spilled. The node removes both when the driver ends, the zygote when both are gone,
and the next `init()` on this machine when all three were killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Collection

from rlplat.errors import ConfigError, ObjectStoreFull
from rlplat.given.say import say
from rlplat.processes import marked, start_time, state_of
from rlplat.runtime.process.own_frames import IMPORT_ROOT

SPILL_LINK = "spill"
"""In the session's folder: a link to the folder on disk where segments are spilled to."""


MARK = "RLPLAT_SESSION"
"""Environment variable that every process of a cluster inherits, through double forks and new sessions as well."""
WORKER_MARK = "RLPLAT_WORKER"
"""Environment variable with the id of the worker that a process belongs to (itself, or a descendant of its)."""
NO_WORKER = "-" * 15
"""Its value elsewhere: room for an id, see `mark_as_worker`."""
_PREFIX = "rlplat-"
_SHARED_MEMORY = "/dev/shm"
_MIN_STORE_BYTES = 32 << 20
_END_S = 2.0
_KILL_S = 3.0
_CLEANERS = (b"resource_tracker import main", b"torch_shm_manager")
"""In their command lines: processes of multiprocessing, loky and torch that remove the semaphores, shared memory and
folders of a program when its last process has ended, and end then."""
_IN_MEMORY = (0x01021994, 0x858458F6)
"""tmpfs and ramfs, as statfs(2) calls them."""
_PR_SET_CHILD_SUBREAPER = 36


def main_of(module: str) -> str:
    """Code for `python -c` that calls the module's `main`, of this very package, and takes the current folder (the
    empty text that stands first with `-c`) out of sys.path: a `queue.py` in it is not Python's.

    (PYTHONPATH would outlast that: with the site-packages in it that hold a wheel, no venv's packages would count.)
    """
    return f"import sys; sys.path[:1] = [{IMPORT_ROOT!r}]; from {module} import main; del sys.path[0]; main()"


def make_session() -> str:
    """A new folder for a cluster of this process."""
    root = shared_memory_root()
    if root != _SHARED_MEMORY:
        say(f"large values are in {root}, which may be slow: {_SHARED_MEMORY} cannot be written")
    remove_dead_sessions(root)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-", dir=root)


def make_spill_folder(session: str, parent: str | None) -> None:
    """A private folder on disk for segments that shared memory has no room for; "" for none.

    It is in the temp directory unless told otherwise, named like the session, and reached through a link in that.
    A temp directory in memory (tmpfs) would give nothing back: /var/tmp, or no spilling.
    """
    if parent == "":
        return
    if parent is None:
        disks = [path for path in (temporary_folder(), "/var/tmp") if path and not is_in_memory(path)]
        parent = next((path for path in disks if os.access(path, os.W_OK)), None)
        if parent is None:
            say(
                "objects are never spilled to disk: there is no temporary folder on one that can be written "
                "(rlplat.init(spill_dir=...) names another)"
            )
            return
    elif is_in_memory(parent):
        say(f"spill_dir: {parent!r} is in memory, so what is spilled there still takes memory")
    try:
        remove_dead_sessions(parent)  # after a reboot the sessions are gone, and their folders on disk are not
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-", dir=parent)
    except OSError as error:
        raise ConfigError(
            f"spill_dir: no folder can be made in {parent!r} ({error.strerror}): name a folder of a disk with room, "
            'or spill_dir="" for a store that never spills'
        ) from None
    os.symlink(os.path.abspath(folder), os.path.join(session, SPILL_LINK))


def remove_session(session: str) -> None:
    """The session's folder, and what was spilled from it. Nothing that a link in a shared folder leads to."""
    spilled = ""
    try:
        folder = os.open(session, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it is gone, or no folder
        return
    try:
        if os.fstat(folder).st_uid != os.getuid():
            return
        spilled = os.readlink(SPILL_LINK, dir_fd=folder)
    except OSError:  # it never had any, or another process removes it
        pass
    finally:
        os.close(folder)
    if _driver_of(spilled) == _driver_of(session):
        shutil.rmtree(spilled, ignore_errors=True)
    shutil.rmtree(session, ignore_errors=True)


def _driver_of(folder: str) -> str:
    """Its pid and start time, with which the names of both folders of a session begin."""
    return os.path.basename(folder).rpartition("-")[0]


def is_own_folder(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder of this user, and no link to one: names in shared folders are anybody's choice."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def adopt_orphans() -> None:
    """Make this process a sub-reaper: what its descendants leave behind becomes its child, not init's (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_workers(pids: Collection[int]) -> None:
    """SIGTERM, and time for their `atexit` handlers."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _END_S
    while any(state_of(pid) in ("R", "S", "D") for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.003)


def kill_marked(mark: str) -> None:
    """SIGKILL every process that inherited the cluster's mark, and every child of this one, until none is left.

    The mark finds grandchildren in sessions of their own, but not a process that is just being executed: its
    environment reads as empty. Orphans of a cluster become children of its node or zygote (sub-reapers): the rest.
    """
    needle = f"{MARK}={mark}"
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        found = marked(needle) | _children()
        _kill(found, deadline)
        if not _has_children_after_reaping() and not found:
            return
        time.sleep(0.003)


def mark_as_worker(worker: str) -> None:
    """Make this fork of the zygote, and whatever it forks or executes, recognisable as the worker's.

    /proc/<pid>/environ shows the memory in which the process was given its environment, not what `putenv` makes of it;
    a fork has a copy of that memory. So the id is written into it, over the value of `WORKER_MARK`.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(WORKER_MARK.encode())
    if place and ctypes.string_at(place) == NO_WORKER.encode():
        ctypes.memmove(place, worker.encode()[: len(NO_WORKER)].ljust(len(NO_WORKER), b"\0"), len(NO_WORKER))
    os.environ[WORKER_MARK] = worker


def kill_family(mark: str, worker: str, known_children: set[int]) -> None:
    """SIGKILL what a dead worker has left: its descendants, which are this sub-reaper's children now, and theirs."""
    needles = {f"{MARK}={mark}", f"{WORKER_MARK}={worker}"}
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        orphans = _children() - known_children
        if not orphans:
            return
        found = marked(*needles)
        _kill(found, deadline)
        if not found and not any(_is_being_executed(pid) for pid in orphans):
            return
        time.sleep(0.003)


def _kill(pids: set[int], deadline: float) -> None:
    """Cleaners last: they end by themselves when the others are dead, or have until one second is left."""
    for pid in pids:
        if not _is_cleaner(pid) or time.monotonic() > deadline - 1.0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:  # it has ended
        return False
    return any(name in line for name in _CLEANERS)


def _is_being_executed(pid: int) -> bool:
    """Its environment reads as empty, and it is no zombie."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not file.read(1) and state_of(pid) not in ("", "Z", "X")
    except OSError:
        return False


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return set(map(int, file.read().split()))
    except OSError:  # a kernel without that file: the mark has to do
        return set()


def _has_children_after_reaping() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def temporary_folder() -> str:
    """Python's; "" where none can be written: a read-only root without a writable /tmp."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return ""


def is_in_memory(folder: str) -> bool:
    status = (ctypes.c_long * 64)()  # more than a `struct statfs`, which begins with the type
    return ctypes.CDLL(None).statfs(os.fsencode(folder), status) == 0 and status[0] in _IN_MEMORY


def shared_memory_root() -> str:
    root = _SHARED_MEMORY
    if not os.access(root, os.W_OK):
        root = temporary_folder()
    if not root:
        raise ConfigError(
            "neither /dev/shm nor a temporary folder can be written, and a cluster needs one of them: give the "
            "container a /dev/shm that this user may write (docker run --shm-size=2g), or name a folder by TMPDIR"
        )
    free = shutil.disk_usage(root).free
    if free < _MIN_STORE_BYTES:
        raise ObjectStoreFull(
            f"{root} has only {free / 1e6:.0f} MB free, and objects live there: free some, or give the container "
            "more shared memory (docker run --shm-size=2g)"
        )
    return root


def kill_sessions_of(process: str) -> None:
    """What a process that was killed has left of its clusters; `process`: its pid and start time, PID-START."""
    for root in _roots():
        for name in os.listdir(root):
            path = os.path.join(root, name)
            if name.startswith(f"{_PREFIX}{process}-") and is_own_folder(path):
                kill_session(path)


def kill_session(path: str) -> None:
    """Its processes, and its folder."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline and (left := marked(f"{MARK}={os.path.basename(path)}")):
        _kill(left, deadline)
        time.sleep(0.01)
    remove_session(path)


def _roots() -> list[str]:
    return [root for root in (_SHARED_MEMORY, temporary_folder()) if os.path.isdir(root)]


def running_sessions() -> list[str]:
    """Folders of this user's clusters whose driver lives, oldest first."""
    found = []
    for root in _roots():
        for name in os.listdir(root):
            path = os.path.join(root, name)
            try:
                prefix, pid, started, _ = name.split("-", 3)
                if f"{prefix}-" != _PREFIX or not is_own_folder(path):
                    continue
                if start_time(int(pid)) == started and os.path.exists(os.path.join(path, "node")):
                    found.append((int(started), path))
            except (ValueError, OSError):  # not a session, or its driver is gone
                continue
    return [path for _, path in sorted(found)]


def driver_pid(session: str) -> int:
    return int(os.path.basename(session).split("-", 3)[1])


def hold(*folders: str) -> None:
    """The folders are a living cluster's as long as this process lives, to `is_held`.

    The pid in their names proves nothing in another PID namespace: containers that share /dev/shm or /tmp. The
    descriptors stay open until then.
    """
    for folder in folders:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # nothing is spilled from this session
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            os.close(descriptor)


def is_held(folder: str | os.PathLike[str]) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def is_session_alive(name: str) -> bool:
    """Whether the driver of the session of that name lives; ValueError when that is no session's name."""
    _, pid, started, _ = name.split("-", 3)
    return start_time(int(pid)) == started


def is_abandoned(path: str | os.PathLike[str]) -> bool:
    """Whether this folder of a session is nobody's any more."""
    return not (is_session_alive(os.path.basename(path)) or is_held(path))


def remove_dead_sessions(root: str) -> None:
    """Folders of drivers that are gone, whose node was killed as well (pid, start time and lock prove it)."""
    for name in os.listdir(root):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(root, name)
        try:
            # (its node may still be busy removing it)
            if is_own_folder(path) and is_abandoned(path) and time.time() - os.lstat(path).st_mtime > 10:
                remove_session(path)
        except (ValueError, OSError):
            continue


def checkpoint_path(session: str, actor: str) -> str:
    return os.path.join(session, "once-" + actor.replace(":", "-"))
