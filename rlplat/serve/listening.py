"""The listening socket: one process opens it and hands it to every replica; there is no proxy.

    controller: socket, bind, listen ──door (Unix socket, a private folder)──SCM_RIGHTS──▶ replica: accept

All replicas accept from one queue of the kernel, which stays when one of them ends or is killed. With SO_REUSEPORT
each would have a queue of its own, and what waits in it is reset when its owner closes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlplat.errors import UsageError
from rlplat.listening import in_url, is_loopback, listen
from rlplat.machine_limits import socket_folder

BACKLOG = 4096
PREFIX = "rlplat-serve-"
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Of this process or machine for a moment: a replica that comes is let in later."""


class ListeningSocket:
    """Opened at once, so that a port in use is known before any replica starts; connections wait until one is ready."""

    def __init__(self, host: str, port: int, token: str = "") -> None:
        """UsageError where the address cannot be had, and beyond loopback without a token."""
        if not token and not is_loopback(host):
            raise UsageError(
                f"{host} can be reached from other machines: give a token that callers must show "
                "(--token-file FILE, or $RLPLAT_SERVE_TOKEN), or serve on 127.0.0.1"
            )
        folders = _folders()
        if folders is None:
            raise UsageError(
                "a server keeps its sockets in a folder for temporary files, and none can be written (/tmp, /var/tmp): "
                "mount one, or name it by TMPDIR (TMPDIR=/dev/shm keeps it in memory)"
            )
        self.host = host
        self._socket = listen(host, port, BACKLOG)
        self._canary = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """Connections go in at the first end and out at the second (http/sharing.py)."""
        self.port: int = self._socket.getsockname()[1]
        sweep(folders)
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        self._life = _lock(self._folder)
        (self._folder / "server.json").write_text(json.dumps({"url": self.url, "pid": os.getpid()}))
        self.door = str(self._folder / "door")
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_folder(self._folder) as folder:
            self._door.bind(f"{folder}/door")
        self._door.listen(64)
        self._thread = threading.Thread(target=self._hand_out, name="rlplat-serve-door", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{in_url(host, self.port)}"

    def close(self) -> None:
        """Once: the numbers of its descriptors may be others' by the second call."""
        if self._door.fileno() == -1:
            return
        try:
            self._door.shutdown(socket.SHUT_RDWR)  # ends the accept() in the thread
        except OSError:
            pass
        self._door.close()
        self._thread.join(timeout=5)
        for each in (self._socket, *self._canary):
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._life)

    def _hand_out(self) -> None:
        while True:
            try:
                visitor, _ = self._door.accept()
            except OSError as error:
                if error.errno not in _FULL:
                    return  # it is closed
                time.sleep(0.1)
                continue
            with visitor:
                try:
                    sockets = (self._socket, *self._canary)
                    socket.send_fds(visitor, [b"."], [each.fileno() for each in sockets])
                except OSError:
                    pass  # the replica died meanwhile


def _folders() -> Path | None:
    """Where they are; None where Python finds nothing that it may write: a read-only root without /tmp."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return None


def _lock(folder: Path) -> int:
    """A descriptor of a file there that is locked as long as this process lives. It gets its name when it is locked:
    a file `life` without a lock is of a process that was killed."""
    descriptor = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(folder / "new", folder / "life")
    return descriptor


def sweep(parent: Path) -> None:
    """Remove the folders of servers that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or gone meanwhile, or one that lives: BlockingIOError
            with _own(folder) as opened, _open_at(opened, "life") as life:
                fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def running_servers() -> dict[str, int]:
    """Address -> process id of the servers of this user on this machine."""
    found = {}
    folders = _folders()
    for folder in folders.glob(f"{PREFIX}*") if folders else ():
        # Of another user, or it begins or ends just now.
        with contextlib.suppress(OSError, ValueError, KeyError), _own(folder) as opened:
            with _open_at(opened, "life") as life:
                try:
                    fcntl.flock(life, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:  # it lives
                    with _open_at(opened, "server.json") as file:
                        said = json.loads(file.read(10_000))
                    found[str(said["url"])] = int(said["pid"])
    return found


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[int]:
    """A descriptor of it. Folders are in a shared temporary directory: only one that belongs to this user and is closed
    to others is believed, and no link is followed; OSError for others."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{folder} is another user's, or open to others")
        yield opened
    finally:
        os.close(opened)


def _open_at(folder: int, name: str) -> IO[bytes]:
    """A regular file of that folder; OSError for anything else."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{name} is not a file")
    return open(descriptor, "rb")


def fetch_sockets(door: str) -> list[socket.socket]:
    """In a replica: the listening socket and both ends of the canary's queue, not blocking."""
    folder, name = os.path.split(door)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor, socket_folder(folder) as short:
        visitor.settimeout(10)
        visitor.connect(f"{short}/{name}")
        _, descriptors, _, _ = socket.recv_fds(visitor, 1, 3)
    sockets = [socket.socket(fileno=each) for each in descriptors]
    if len(sockets) < 3:
        for each in sockets:
            each.close()
        raise OSError(f"{door} handed out no sockets")
    for each in sockets:
        each.setblocking(False)
    return sockets
