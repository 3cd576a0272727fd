"""A machine as containers have it: a small /dev/shm, no folder on disk that can be written, /tmp in memory."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlplat.runtime.machine.session import is_in_memory, make_spill_folder
from tests.faults.programs import ROOT

pytestmark = pytest.mark.process

SHARED = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
READ_ONLY = "mount -o remount,bind,ro /"
BEGIN = """
import os, sys, time
import numpy as np
import rlplat, rlplat.state
"""


@functools.cache
def can_mount(mounts: str) -> bool:
    return subprocess.run(_inside(mounts, "true"), capture_output=True).returncode == 0


def _inside(mounts: str, *command: str) -> list[str]:
    namespaces = ["unshare", "--user", "--map-root-user", "--mount"]
    return [*namespaces, "bash", "-c", f'{mounts} && exec "$@"', "bash", *command]


def run_inside(mounts: str, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A driver that sees these mounts; skips the test where they cannot be made."""
    if not can_mount(mounts):
        pytest.skip("no mount namespace can be made here (root, or user namespaces)")
    return subprocess.run(
        _inside(mounts, sys.executable, "-B", "-c", BEGIN + script),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RLPLAT_LOG_DIR": "", **environment},
    )


def test_nothing_but_shared_memory_can_be_written() -> None:
    """Logs are in the session's folder then, and nothing is spilled."""
    script = """
rlplat.init(num_cpus=1, num_gpus=0)
@rlplat.remote
def task():
    print("a line")
rlplat.get(task.remote())
[log] = rlplat.state.open_logs().workers()
print(log.tail(5), rlplat.get(rlplat.put(np.ones(1_000_000))).sum())
rlplat.shutdown()
rlplat.state.open_logs()
"""
    done = run_inside(f"{SHARED} && {READ_ONLY}", script)
    assert done.stdout == "['a line'] 1000000.0\n", done.stderr
    assert "objects are never spilled to disk: there is no temporary folder" in done.stderr
    assert done.stderr.count("the output of workers is in /dev/shm/") == 1
    assert "ConfigError: there are no logs of ended clusters: No usable temporary directory" in done.stderr


def test_without_shared_memory_large_values_are_in_the_temporary_folder_and_that_is_said(
    tmp_path: Path,
) -> None:
    """Sockets are in it too, however long its path."""
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    script = "rlplat.init(num_cpus=1); print(rlplat.get(rlplat.put(np.ones(100_000))).sum()); rlplat.shutdown()"
    done = run_inside("mount -t tmpfs -o ro tmpfs /dev/shm", script, TMPDIR=str(folder))
    assert done.stdout == "100000.0\n", done.stderr
    said = f"rlplat: large values are in {folder}, which may be slow: /dev/shm cannot be written\n"
    assert done.stderr == said


def test_a_value_larger_than_a_file_may_be_is_no_full_store() -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
rlplat.init(num_cpus=1)
try:
    rlplat.put(np.ones(1_000_000))
except OSError as error:
    print(error)
rlplat.shutdown()
"""
    done = run_inside(SHARED, script)
    assert "a value of 8.0 MB is a larger file than allowed (ulimit -f)" in done.stdout, done.stderr


def test_nothing_at_all_can_be_written() -> None:
    done = run_inside(f"mount -t tmpfs -o ro tmpfs /dev/shm && {READ_ONLY}", "rlplat.init()")
    assert "ConfigError: neither /dev/shm nor a temporary folder can be written" in done.stderr


SPILL = """
rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=8 << 20, store_full_timeout_s=0.1)
refs = []
try:
    refs += [rlplat.put(np.ones(500_000)) for _ in range(4)]
except rlplat.errors.ObjectStoreFull as error:
    print("may not spill" in str(error))
print(os.path.dirname(os.path.realpath(rlplat.runtime.refs.backend().session + "/spill")), len(refs))
rlplat.shutdown()
"""


@pytest.mark.skipif(is_in_memory("/var/tmp"), reason="/var/tmp is in memory here")
def test_a_temporary_folder_in_memory_is_not_spilled_to(tmp_path: Path) -> None:
    """The bytes would stay in memory, counted by nobody."""
    done = run_inside(f"mount -t tmpfs tmpfs {tmp_path}", SPILL, TMPDIR=str(tmp_path))
    assert (done.stdout, done.stderr) == ("/var/tmp 4\n", "")


def test_without_a_folder_on_disk_nothing_is_spilled_and_that_is_said(tmp_path: Path) -> None:
    mounts = f"mount -t tmpfs tmpfs {tmp_path} && mount -t tmpfs tmpfs /var/tmp"
    done = run_inside(mounts, SPILL, TMPDIR=str(tmp_path))
    assert done.stdout.splitlines()[0] == "True"
    assert done.stderr.count("objects are never spilled to disk") == 1


def test_a_spill_folder_in_memory_that_the_user_names_is_taken_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not is_in_memory("/dev/shm"):
        pytest.skip("/dev/shm is not in memory here")
    make_spill_folder(str(tmp_path), "/dev/shm")
    os.rmdir(os.path.realpath(tmp_path / "spill"))
    assert capfd.readouterr().err == (
        "rlplat: spill_dir: '/dev/shm' is in memory, so what is spilled there still takes memory\n"
    )


FULL_BY_OTHERS = """
from rlplat.runtime.store.segments import Store
rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=50 << 20, store_full_timeout_s=1, spill_dir=SPILL_DIR)
@rlplat.remote
class Actor:
    def make(self):
        return [rlplat.put(np.ones(1 << 20)) for _ in range(2)]
actor = Actor.remote()
held = rlplat.get(actor.make.remote())
with open("/dev/shm/other", "wb") as file:
    file.write(bytes(40 << 20))
attempts, write = [], Store.write
Store.write = lambda *arguments: attempts.append(1) or write(*arguments)
try:
    refs = [rlplat.put(np.ones(1 << 20)) for _ in range(2)]
    print([float(rlplat.get(ref).sum()) for ref in refs + held])
except rlplat.errors.ObjectStoreFull as error:
    print(error)
print(len(attempts))
rlplat.shutdown()
"""


def test_where_other_programs_fill_shared_memory_objects_of_all_processes_are_spilled(tmp_path: Path) -> None:
    """The account has room, so it does not tell."""
    done = run_inside(SHARED, f"SPILL_DIR = {str(tmp_path)!r}\n" + FULL_BY_OTHERS)
    assert done.stdout.startswith(f"{[float(1 << 20)] * 4}\n"), done.stdout + done.stderr


def test_where_other_programs_fill_shared_memory_and_nothing_is_spilled_that_is_said() -> None:
    """A writer waits without writing all the while."""
    said, attempts = run_inside(SHARED, "SPILL_DIR = ''\n" + FULL_BY_OTHERS).stdout.splitlines()
    assert "16.8 of 52.4 MB are taken" in said
    assert "(other programs hold 4" in said
    assert attempts == "1"


EXACTLY_ONCE = """
@rlplat.remote(exactly_once=True, max_restarts=1)
class Actor:
    def __init__(self):
        self.state = b""
    def grow(self, num_mb):
        self.state = bytes(num_mb << 20)
        return len(self.state) >> 20
    def look(self):
        return os.getpid(), len(self.state) >> 20
    def get_state(self):
        return self.state
    def set_state(self, state):
        self.state = state
rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=4 << 20, spill_dir=SPILL_DIR)
actor = Actor.remote()
try:
    for num_mb in (1, 40, 50):
        print(rlplat.get(actor.grow.remote(num_mb), timeout=60))
    pid, _ = rlplat.get(actor.look.remote())
    os.kill(pid, 9)
    print(rlplat.get(actor.look.remote(), timeout=60)[1], rlplat.get(actor.grow.remote(1), timeout=60))
    session = rlplat.runtime.refs.backend().session
    print(sum(os.path.islink(f"{session}/{name}") for name in os.listdir(session) if "once" in name))
    print(os.listdir(session + "/spill"))
except rlplat.errors.ActorDied as error:
    print(str(error).splitlines()[-1])
rlplat.shutdown()
"""


def test_an_exactly_once_state_that_shared_memory_has_no_room_for_is_kept_on_disk(tmp_path: Path) -> None:
    done = run_inside(SHARED, f"SPILL_DIR = {str(tmp_path)!r}\n" + EXACTLY_ONCE)
    assert done.stdout.splitlines() == ["1", "40", "50", "50 1", "0", "[]"], done.stderr


def test_an_exactly_once_state_that_can_be_kept_nowhere_is_named() -> None:
    done = run_inside(SHARED, "SPILL_DIR = ''\n" + EXACTLY_ONCE)
    assert "an exactly-once actor's state of" in done.stdout + done.stderr
    assert "MB is not kept: No space left on device" in done.stdout + done.stderr
