"""Start a private cluster: a session folder, a node process, and this process as its driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rlplat.errors import NodeLost, ObjectStoreFull
from rlplat.runtime.client import Client
from rlplat.runtime.node import MARK
from rlplat.runtime.resources import machine_resources, raise_file_limit

_PREFIX = "rlplat-"
_MIN_STORE_BYTES = 32 << 20


class Driver(Client):
    """The client of the process that called `init()`; it holds the pipe that keeps the node alive."""

    def __init__(self, session: str, node: subprocess.Popen[bytes]) -> None:
        super().__init__(session, "driver", spin=True)
        self._node = node
        assert node.stdout is not None
        self._loop.watch(node.stdout.fileno())

    def shutdown(self) -> None:
        self.close()
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.close()
        try:
            self._node.wait(5)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
        self._node.stdout.close()
        shutil.rmtree(self._session, ignore_errors=True)


def start_private_cluster(
    num_cpus: float | None, num_gpus: int | None, resources: dict[str, float] | None, preload: Sequence[str]
) -> Driver:
    raise_file_limit()  # the node and its workers inherit it
    total = machine_resources(num_cpus, num_gpus, resources)
    root = _shared_memory_root()
    _remove_dead_sessions(root)
    session = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_start_time(os.getpid())}-", dir=root)
    config = {"session": session, "total": total, "preload": list(preload), "sys_path": sys.path}
    node = subprocess.Popen(
        [sys.executable, "-c", "from rlplat.runtime.node import main; main()", json.dumps(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=_environment(session),
    )
    assert node.stdout is not None
    try:
        if node.stdout.readline() != b"ready\n":
            raise NodeLost(
                f"the node process could not start (exit code {node.wait()}); see its message above"
            )
        driver = Driver(session, node)
        driver.start()
    except BaseException:
        node.kill()
        node.wait()
        shutil.rmtree(session, ignore_errors=True)
        raise
    return driver


def _environment(session: str) -> dict[str, str]:
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Worker processes are many: numpy's own threads would only fight over the cores. torch has its own setting.
    return {**os.environ, MARK: os.path.basename(session), "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}


def _shared_memory_root() -> str:
    root = "/dev/shm"
    if not os.access(root, os.W_OK):
        root = tempfile.gettempdir()
    free = shutil.disk_usage(root).free
    if free < _MIN_STORE_BYTES:
        raise ObjectStoreFull(
            f"{root} has only {free / 1e6:.0f} MB free, and objects live there: free some, or give the container "
            "more shared memory (docker run --shm-size=2g)"
        )
    return root


def _start_time(pid: int) -> str:
    """The kernel's start time of a process: with the pid it names one process for good."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b")", 1)[1].split()[19].decode()


def _remove_dead_sessions(root: str) -> None:
    """Folders of drivers that are gone, whose node was killed as well (pid and start time prove it)."""
    for name in os.listdir(root):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(root, name)
        try:
            _, pid, started, _ = name.split("-", 3)
            if os.stat(path).st_uid != os.getuid():
                continue
            try:
                if _start_time(int(pid)) == started:
                    continue
            except FileNotFoundError:
                pass
            if time.time() - os.stat(path).st_mtime > 10:  # its node may still be busy removing it
                shutil.rmtree(path, ignore_errors=True)
        except (ValueError, OSError):
            continue
