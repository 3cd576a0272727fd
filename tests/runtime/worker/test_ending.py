"""How the process of a worker ends: as a program, which leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rlplat
from tests.patience import soon

pytestmark = pytest.mark.process

PROGRAM = """
import atexit, multiprocessing, os, signal, sys, tempfile, time
from multiprocessing import shared_memory
import rlplat

def use(place):
    import builtins
    memory = shared_memory.SharedMemory(create=True, size=100)
    lock = multiprocessing.get_context("spawn").Lock()
    folder = tempfile.TemporaryDirectory(dir=place)
    atexit.register(lambda: open(os.path.join(place, "handler"), "w").close())
    builtins.kept = memory, lock, folder
    return ["/dev/shm/" + memory.name, "/dev/shm/sem." + lock._semlock.name[1:], folder.name]

class Busy:
    def use(self, place):
        return use(place)
    def work(self):
        time.sleep(1000)

place, how = sys.argv[1:]
rlplat.init(num_cpus=1)
if how == "kill":
    print(*rlplat.get(rlplat.remote(use).remote(place)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
busy = rlplat.remote(Busy).remote()
print(*rlplat.get(busy.use.remote(place)), flush=True)
busy.work.remote()
rlplat.shutdown()
"""


@pytest.mark.parametrize("how", ["shutdown", "kill"])
def test_a_worker_leaves_nothing_behind(tmp_path: Path, how: str) -> None:
    """An actor in the middle of a call, and a worker that waits for a task, of a driver that is killed."""
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), how]
    program = subprocess.run(words, capture_output=True, text=True, check=False)
    assert program.returncode == (-signal.SIGKILL if how == "kill" else 0), program.stderr
    made = program.stdout.split()
    assert len(made) == 3
    assert soon(lambda: not any(map(os.path.exists, made)) and (tmp_path / "handler").exists()), made


def test_trackers_outlive_a_worker_that_is_killed(cluster: None) -> None:
    class Owner:
        def make(self) -> str:
            import builtins
            from multiprocessing import shared_memory

            builtins.kept = shared_memory.SharedMemory(create=True, size=100)  # type: ignore[attr-defined]
            return f"/dev/shm/{builtins.kept.name}"  # type: ignore[attr-defined]

    owner = rlplat.remote(Owner).remote()
    name = rlplat.get(owner.make.remote())
    assert os.path.exists(name)
    rlplat.kill(owner)
    assert soon(lambda: not os.path.exists(name))


def test_a_child_of_user_code_has_no_part_in_it(cluster: None) -> None:
    @rlplat.remote
    def fork() -> int:
        import atexit
        import time

        read, write = os.pipe()
        atexit.register(lambda: os.write(write, b"x"))
        child = os.fork()
        if not child:
            time.sleep(1000)
        os.kill(child, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(write, b"end")
        return status if os.read(read, 100) == b"end" else 1

    assert rlplat.get(fork.remote()) == -signal.SIGTERM
