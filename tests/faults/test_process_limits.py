"""Processes that cannot be made, and processes that a dead worker leaves."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied
from tests.faults.programs import Program, next_line, program
from tests.patience import soon

pytestmark = pytest.mark.process

NODE_THAT_CANNOT_FORK = """
import os, subprocess, time
import rlplat.runtime.start.start
popen = subprocess.Popen

def limited(command, **options):
    # A node whose zygote gets EAGAIN from fork while the file GATE exists.
    code = '''
import errno, os
from rlplat.runtime.node import node, processes
from rlplat.runtime.start import zygote
processes._WARN_AFTER_S = 0.3
class limited_os:
    def __getattr__(self, name): return getattr(os, name)
    def fork(self):
        if os.path.exists(%r): raise OSError(errno.%s, "no")
        return os.fork()
zygote.os = limited_os()
from rlplat.runtime.start import launch; launch.main()
''' % (GATE, ERRNO)
    return popen([*command[:2], code, *command[3:]], **options)

subprocess.Popen = limited
import rlplat
rlplat.init(num_cpus=2, num_gpus=0)

@rlplat.remote
def f(x):
    return x + 1

@rlplat.remote
class Actor:
    def f(self):
        return 7

refs = [f.remote(1), Actor.remote().f.remote()]
print("running", flush=True)
input()  # it was warned
print(len(rlplat.wait(refs, num_returns=2, timeout=1.2)[0]), flush=True)
os.unlink(GATE)
print(rlplat.get(refs, timeout=60))
rlplat.shutdown()
"""


def stderr_up_to(words: str, driver: Program) -> str:
    """What it says until a line has these words."""
    assert driver.process.stderr is not None
    said = line = next_line(driver.process.stderr)
    while line and words not in line:
        line = next_line(driver.process.stderr)
        said += line
    return said


@pytest.mark.parametrize(("name", "words"), [("EAGAIN", "ulimit -u"), ("ENOMEM", "vm.overcommit_memory")])
def test_a_fork_that_fails_leaves_tasks_queued(tmp_path: Path, name: str, words: str) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    script = f"GATE, ERRNO = {str(gate)!r}, {name!r}\n" + NODE_THAT_CANNOT_FORK
    with program(script) as driver:
        warning = stderr_up_to("could be started", driver)
        code, out, errors = driver.finish("\n")
    errors = warning + errors
    assert (code, out) == (0, "0\n[2, 7]\n"), errors
    assert "rlplat: no worker process could be started for" in errors
    assert "stays queued: fork: " in errors
    assert words in errors
    assert errors.count("could be started") == 1, "one warning, not one for each attempt"


def test_out_of_descriptors_new_workers_wait_and_the_limit_is_named() -> None:
    script = """
import os, resource
import rlplat
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
rlplat.init(num_cpus=2, num_gpus=0)

@rlplat.remote
class Actor:
    def pid(self):
        return os.getpid()

actors = [Actor.remote() for _ in range(30)]
refs = [actor.pid.remote() for actor in actors]
print("running", flush=True)
input()  # it was warned
ready, _ = rlplat.wait(refs, num_returns=15, timeout=60)
rest = rlplat.wait(refs, num_returns=30, timeout=2)[1]
print(len(ready), len(rest) > 0)
for ref, actor in list(zip(refs, actors)):
    if ref in ready[:15]:
        rlplat.kill(actor)
print(len(rlplat.wait(rest, num_returns=len(rest), timeout=60)[1]))
rlplat.shutdown()
"""
    with program(script) as driver:
        warning = stderr_up_to("ulimit -n", driver)
        code, out, errors = driver.finish("\n")
    errors = warning + errors
    assert (code, out) == (0, "15 True\n0\n"), errors
    assert "a process may have 64 open files" in errors


def test_out_of_descriptors_a_connection_waits_and_the_limit_is_named() -> None:
    """The driver's own: it has them full of its own files."""
    script = """
import os, resource
import rlplat
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
rlplat.init(num_cpus=1, num_gpus=0)

@rlplat.remote(num_cpus=0)
class Actor:
    def limit(self):
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

print("running", flush=True)
limit = rlplat.get(Actor.remote().limit.remote())
print(limit == hard, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = []
try:
    while True:
        files.append(open(os.devnull))
except OSError:
    pass
actors = [Actor.remote() for _ in range(8)]
refs = [actor.limit.remote() for actor in actors]
print(len(rlplat.wait(refs, num_returns=8, timeout=2)[0]) < 8)
del files
print(len(rlplat.get(refs, timeout=60)))
rlplat.shutdown()
"""
    with program(script) as driver:
        code, out, errors = driver.finish()
    assert (code, out) == (0, "True 64\nTrue\n8\n"), errors
    assert errors.count("this process has as many files open as it may (64, ulimit -n)") == 1


class Parent:
    """Starts descendants of each kind; all of them sleep."""

    def start(self, folder: str) -> list[int]:
        import subprocess
        import sys
        import time

        plain = subprocess.Popen(["sleep", "600"])
        session = subprocess.Popen(["sleep", "600"], start_new_session=True)
        forked = os.fork()
        if not forked:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        daemon = Path(folder, f"daemon-{os.getpid()}")
        if not (middle := os.fork()):  # a double fork: the daemon's parent is gone at once
            os.setsid()
            if not os.fork():
                daemon.with_suffix(".draft").write_text(str(os.getpid()))
                daemon.with_suffix(".draft").rename(daemon)
                time.sleep(600)
            os._exit(0)
        os.waitpid(middle, 0)
        nested = subprocess.Popen(
            [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"],
            start_new_session=True,
        )
        assert soon(daemon.exists, 60)
        return [plain.pid, session.pid, forked, int(daemon.read_text()), nested.pid]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["SIGKILL", "rlplat.kill", "out of scope"])
def test_what_a_worker_has_started_ends_with_it(cluster: None, tmp_path: Path, how: str) -> None:
    @rlplat.remote
    class Actor(Parent):
        def pid(self) -> int:
            return os.getpid()

    actor, other = Actor.remote(), Actor.remote()
    mine, others = rlplat.get([each.start.remote(str(tmp_path)) for each in (actor, other)], timeout=60)
    assert len(alive(mine)) == len(alive(others)) == 5
    if how == "SIGKILL":
        os.kill(rlplat.get(actor.pid.remote()), signal.SIGKILL)
    elif how == "rlplat.kill":
        rlplat.kill(actor)
    else:
        del actor
    assert soon(lambda: not alive(mine), 60), alive(mine)
    assert alive(others) == others, "those of another worker live on"
    assert rlplat.get(other.pid.remote())


@pytest.mark.process
def test_workers_that_cannot_start_are_not_started_in_a_storm(tmp_path: Path) -> None:
    """Each start leaves a line; a worker that dies at once would otherwise be replaced thousands of times a second."""
    log = tmp_path / "log"
    script = f"""
import os, subprocess, time
import rlplat.runtime.start.start
popen = subprocess.Popen

def broken(command, **options):
    code = '''
import os
import rlplat.runtime.node.node as node, rlplat.runtime.worker.worker as worker
def main(*args):
    with open({str(log)!r}, "a") as file:
        file.write("start")
    os._exit(3)
worker.main = main
from rlplat.runtime.start import launch; launch.main()
'''
    return popen([*command[:2], code, *command[3:]], **options)

subprocess.Popen = broken
import rlplat
rlplat.init(num_cpus=2, num_gpus=0)
ref = rlplat.remote(os.getpid).remote()
print("running", flush=True)
input()  # there were two
rlplat.wait([ref], timeout=3)
rlplat.shutdown()
"""
    with program(script) as driver:
        assert soon(lambda: log.exists() and log.read_text().count("start") >= 2, 60)
        code, _, errors = driver.finish("\n")
    assert code == 0, errors
    assert log.read_text().count("start") <= 40


def test_an_actor_that_cannot_be_killed_twice_is_reported_once(cluster: None) -> None:
    @rlplat.remote
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    actor = Actor.remote()
    pid = rlplat.get(actor.pid.remote())
    rlplat.kill(actor)
    rlplat.kill(actor)
    with pytest.raises(ActorDied, match=r"rlplat\.kill"):
        rlplat.get(actor.pid.remote())
    assert soon(lambda: not alive([pid]), 60)


def test_a_driver_that_can_start_no_thread_writes_spills_and_hears_of_deaths(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """So it is at a limit of threads, and in a handler of `atexit` from Python 3.12 on."""
    rlplat.init(num_cpus=1, num_gpus=0, object_store_memory=250_000_000)

    @rlplat.remote
    class Actor:
        def put(self) -> list[rlplat.ObjectRef]:
            return [rlplat.put(np.ones(12_500_000))]

        def end(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    try:
        actor = Actor.remote()
        actor.on_death(print)
        mine = [rlplat.put(np.ones(12_500_000))]
        monkeypatch.setattr(threading.Thread, "start", refuse)
        mine.append(rlplat.put(np.zeros(12_500_000)))
        theirs = rlplat.get(actor.put.remote(), timeout=60)
        assert [rlplat.get(ref).sum() for ref in (*mine, *theirs)] == [12_500_000, 0, 12_500_000]
        with pytest.raises(ActorDied):
            rlplat.get(actor.end.remote(), timeout=60)
        assert "no callback of on_death is called (can't create new thread" in capfd.readouterr().err
        with pytest.raises(RuntimeError, match="can't create new thread"):
            actor.end.remote().future()
    finally:
        monkeypatch.undo()
        rlplat.shutdown()
