"""Where the output of workers is kept: `<root>/<session>/logs/<worker>.log`, which is all that stays after the end.

The root is `init(log_dir=)`, else `$RLPLAT_LOG_DIR`, else `rlplat-<uid>` in the temporary directory; its folders have
mode 0700. The session's name is that of its folder in shared memory: `rlplat-<driver's pid>-<its start time>-<random>`.
Where no folder on disk can be made, they are in that one, and go with it. The last `KEPT_SESSIONS` sessions stay, and
those that live.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from rlplat.errors import OptionError
from rlplat.given.say import say
from rlplat.paths import user_path
from rlplat.runtime.machine.session import is_abandoned, is_own_folder

KEPT_SESSIONS = 5
SNAPSHOTS = "snapshots"
"""Folder of a session with copies of directories (`runtime_env`); gone at its end."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
MOST_BYTES = 10 << 20
"""Of a log file; then it becomes `<worker>.log.1`, in the place of an earlier one."""


def default_root() -> Path:
    named = os.environ.get("RLPLAT_LOG_DIR")
    return user_path(named) if named else Path(tempfile.gettempdir(), f"rlplat-{os.getuid()}")


def make_session_folder(session: str, root: str | None) -> Path:
    """The folder on disk of a session (its `logs` in it), by its folder; those of older sessions are removed."""
    name = os.path.basename(session)
    try:
        top = user_path(root) if root is not None else default_root()
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_named = root is not None or bool(os.environ.get("RLPLAT_LOG_DIR"))  # a link that the user names is meant
        if not is_own_folder(top.resolve() if is_named else top):
            raise PermissionError(f"{top} is not a folder of this user")
        _remove_old(top)
        return _made(top / name)
    except OSError as error:
        if root is not None:
            raise OptionError(f"rlplat.init: log_dir={root!r} cannot be used: {error}") from None
        try:
            folder = _made(Path(tempfile.mkdtemp(prefix=f"rlplat-{os.getuid()}-"), name))
        except OSError:
            folder = _made(Path(session))
        say(f"the output of workers is in {folder / 'logs'}: {error}")
        return folder


def _made(folder: Path) -> Path:
    (folder / "logs").mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    return folder


def _remove_old(root: Path) -> None:
    """All but the newest; room is made for the one that comes."""
    dead = []
    for path in root.glob("rlplat-*-*-*"):
        try:
            if not path.is_symlink() and path.is_dir() and is_abandoned(path):
                dead.append((path.stat().st_mtime, path))
        except (
            ValueError,
            FileNotFoundError,
        ):  # somebody else's folder; one that another start has just removed
            continue
    dead.sort()
    for _, path in dead:  # snapshots of directories stay where driver and node were both killed
        shutil.rmtree(path / SNAPSHOTS, ignore_errors=True)
    for _, path in dead[: len(dead) - KEPT_SESSIONS + 1] if len(dead) >= KEPT_SESSIONS else []:
        shutil.rmtree(path, ignore_errors=True)


class LogFile:
    """Written to its cap, then begun anew beside its older part. A full disk loses lines, not the run.

    It is opened for each write: a node has many workers, and few descriptors to spare.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.num_lost_bytes = 0
        """Could not be written: the disk is full, or the folder is gone; `failure` says what."""
        self.failure = ""
        self._head = b""
        self._size = 0

    def add_to_head(self, line: str) -> None:
        """A line that begins every part of the file, from now on."""
        self._head += line.encode()
        if self._size:
            self.write(line.encode())

    def write(self, data: bytes) -> None:
        written = 0
        try:
            if self._size + len(data) > MOST_BYTES and self._size:
                os.replace(self.path, self.path + ".1")
                self._size = 0
            if not self._size:
                data = self._head + data
            descriptor = os.open(self.path, _FLAGS, 0o600)
            try:
                written = os.write(descriptor, data)
            finally:
                os.close(descriptor)
            self.failure = self.failure if written == len(data) else "the disk is full"
        except OSError as error:
            self.failure = str(error.strerror)
        self._size += written
        self.num_lost_bytes += len(data) - written
