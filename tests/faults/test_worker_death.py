"""Workers that die: tasks run again, poison ends, actors are reported, and others live on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, ObjectLost, OwnerDied, WorkerCrashed
from tests.faults.programs import program
from tests.patience import soon

pytestmark = pytest.mark.process


def attempts(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_task_whose_worker_is_killed_runs_again(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)

    @rlplat.remote
    def task(x: int) -> int:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        if len(open(log).read().splitlines()) == 1:
            open(gate).read()  # nobody opens the other end
        return x * 2

    ref = task.remote(21)
    assert soon(lambda: attempts(log) == 1, 60)
    os.kill(int(log.read_text()), signal.SIGKILL)
    assert rlplat.get(ref, timeout=60) == 42
    pids = log.read_text().split()
    assert len(pids) == 2
    assert pids[0] != pids[1]


def test_retries_can_be_turned_off(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(max_retries=0)
    def task() -> None:
        with open(log, "a") as file:
            file.write("x\n")
        os.kill(os.getpid(), 9)

    with pytest.raises(WorkerCrashed, match=r"task .*task.*SIGKILL"):
        rlplat.get(task.remote(), timeout=60)
    assert attempts(log) == 1


def _segfault() -> None:
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("die", "reason"),
    [
        (lambda: os._exit(0), "exited with code 0"),
        (lambda: os._exit(9), "exited with code 9"),
        (os.abort, "SIGABRT"),
        (_segfault, "SIGSEGV"),
    ],
    ids=["exit 0", "exit 9", "abort", "segfault"],
)
def test_a_task_that_always_kills_its_worker_ends_after_its_retries(
    cluster: None, tmp_path: Path, die: Any, reason: str
) -> None:
    log = tmp_path / "log"

    @rlplat.remote(max_retries=2)
    def poison() -> None:
        with open(log, "a") as file:
            file.write("x\n")
        die()

    @rlplat.remote(num_cpus=0.5)  # another demand: they share neither worker nor fate
    def healthy(x: int) -> int:
        return x

    bad, good = poison.remote(), [healthy.remote(i) for i in range(100)]
    with pytest.raises(WorkerCrashed, match=f"(?s)poison.*no retries are left.*{reason}"):
        rlplat.get(bad, timeout=60)
    assert attempts(log) == 3
    assert rlplat.get(good, timeout=60) == list(range(100))


def test_a_poison_task_takes_none_of_its_own_kind_with_it(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(max_retries=2)
    def maybe(x: int) -> int:
        if x == 150:
            with open(log, "a") as file:
                file.write("x\n")
            os._exit(1)
        return x

    assert rlplat.get([maybe.remote(i) for i in range(100)], timeout=60) == list(range(100))
    refs = {x: maybe.remote(x) for x in range(100, 400)}  # the pace is known: many travel ahead to one worker
    with pytest.raises(WorkerCrashed):
        rlplat.get(refs.pop(150), timeout=60)
    assert rlplat.get(list(refs.values()), timeout=60) == list(refs)
    assert attempts(log) == 3  # also when the first time was in company, where nobody could tell who did it


class Bomb:
    """Kills whoever unpickles it, and writes that down."""

    def __init__(self, log: Path) -> None:
        self.code = f"open({str(log)!r}, 'a').write('x\\n'); __import__('os')._exit(1)"

    def __reduce__(self) -> Any:
        return exec, (self.code,)


def test_an_argument_whose_unpickling_kills_the_worker_is_poison(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(max_retries=4)
    def f(x: Any) -> Any:
        return x

    assert rlplat.get([f.remote(i) for i in range(50)], timeout=60) == list(range(50))
    refs = [f.remote(Bomb(log) if i == 100 else i) for i in range(200)]
    with pytest.raises(
        WorkerCrashed, match=r"(?s)task .*f: .* no retries are left: pid \d+ exited with code 1"
    ) as died:
        rlplat.get(refs.pop(100), timeout=60)
    assert attempts(log) == 5
    assert "5 attempts failed" in str(died.value)
    assert str(died.value).count("exited with code 1") == 3  # the last three
    assert rlplat.get(refs, timeout=60) == [i for i in range(200) if i != 100]


def test_an_actor_that_is_killed_in_a_call_is_reported_with_its_signal(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    class Actor:
        def pid(self) -> int:
            print("my last words", flush=True)
            return os.getpid()

        def hang(self) -> None:
            open(gate).read()

    actor, other = rlplat.remote(Actor).remote(), rlplat.remote(Actor).remote()
    pid, other_pid = rlplat.get([actor.pid.remote(), other.pid.remote()])
    hanging, queued = actor.hang.remote(), actor.pid.remote()
    os.kill(pid, signal.SIGKILL)
    for ref in (hanging, queued):
        with pytest.raises(ActorDied, match=r"(?s)actor .*Actor.* died.*SIGKILL.*my last words"):
            rlplat.get(ref, timeout=30)
    with pytest.raises(ActorDied, match="SIGKILL"):
        rlplat.get(actor.pid.remote(), timeout=1)  # known at once: nobody is asked
    assert rlplat.get(other.pid.remote()) == other_pid


def test_the_resources_of_the_dead_are_free(cluster: None) -> None:
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    for _ in range(3):
        actor = rlplat.remote(num_cpus=2)(Actor).remote()
        os.kill(rlplat.get(actor.pid.remote(), timeout=60), signal.SIGKILL)
    assert soon(lambda: rlplat.available_resources() == {"CPU": 2.0, "GPU": 0.0}, 60)


def test_a_large_result_outlives_the_worker_that_made_it() -> None:
    """Read and unread results of a task and an actor, after the node has removed what the dead had made."""
    script = """
import os, signal, time
import numpy as np
import rlplat
rlplat.init(num_cpus=2, num_gpus=0)

@rlplat.remote
def make(value):
    return os.getpid(), np.full(200_000, value, np.float64)

class Maker:
    def make(self):
        return os.getpid(), np.full(200_000, 5.0)

ref, unread, from_actor = make.remote(3), make.remote(4), (maker := rlplat.remote(Maker).remote()).make.remote()
rlplat.wait([ref, unread, from_actor], num_returns=3)
pid, view = rlplat.get(ref)
print("running", flush=True)
os.kill(pid, signal.SIGKILL)
rlplat.kill(maker)
time.sleep(0.5)
assert rlplat.get(make.remote(6))[1][0] == 6
time.sleep(0.2)
for value, array in [(3, view), (3, rlplat.get(ref)[1]), (4, rlplat.get(unread)[1]), (5, rlplat.get(from_actor)[1])]:
    assert (array == value).all()
print("intact")
rlplat.shutdown()
"""
    with program(script) as driver:
        code, out, errors = driver.finish()
    assert (code, out) == (0, "intact\n"), errors


def test_the_files_of_a_dead_worker_stay_until_all_owners_have_heard() -> None:
    """The owner is stopped when the worker dies (Ctrl-Z, a debugger, native code that holds the GIL)."""
    script = """
import os, subprocess, time
import numpy as np
import rlplat
rlplat.init(num_cpus=1, num_gpus=0)
session = rlplat.runtime.refs.backend().session

class Maker:
    def make(self):
        return os.getpid(), np.full(200_000, 5.0)

maker = rlplat.remote(Maker).remote()
ref = maker.make.remote()
pid = rlplat.get(ref)[0]
files = lambda: [name for name in os.listdir(session) if name.startswith("s-w")]
print("running", flush=True)
stop = f"kill -STOP {os.getpid()}; kill -KILL {pid}; sleep 1; ls {session}; kill -CONT {os.getpid()}"
others = subprocess.Popen(["bash", "-c", stop], stdout=subprocess.PIPE, text=True)
names = others.communicate()[0].split()
print(len([name for name in names if name.startswith("s-w")]), rlplat.get(ref)[1].sum())
deadline = time.monotonic() + 5
while files() and time.monotonic() < deadline:
    time.sleep(0.02)
print(files())
rlplat.shutdown()
"""
    with program(script) as driver:
        code, out, errors = driver.finish()
    assert (code, out) == (0, "1 1000000.0\n[]\n"), errors


def test_the_death_of_an_owner_is_an_error_and_no_hang(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    @rlplat.remote(num_cpus=0)
    def never() -> None:
        open(gate).read()

    class Owner:
        def make(self) -> list:
            return [rlplat.put(np.ones(200_000)), rlplat.put(1), never.remote()]

        def pid(self) -> int:
            return os.getpid()

    owner = rlplat.remote(Owner).remote()
    refs, pid = rlplat.get([owner.make.remote(), owner.pid.remote()])
    os.kill(pid, signal.SIGKILL)
    for ref in refs:
        with pytest.raises((OwnerDied, ObjectLost), match="died"):
            rlplat.get(ref, timeout=30)


def test_views_stay_intact_when_their_owner_dies(cluster: None) -> None:
    class Maker:
        def make(self, value: int) -> np.ndarray:
            return np.full(200_000, value, np.float64)

    class Owner:
        def ask(self, box: list) -> list:
            ref = box[0].make.remote(7)
            rlplat.wait([ref])
            return [ref]

    maker, owner = rlplat.remote(Maker).remote(), rlplat.remote(Owner).remote()
    (inner,) = rlplat.get(owner.ask.remote([maker]))
    view = rlplat.get(inner)
    rlplat.kill(owner)
    with pytest.raises(ActorDied):
        rlplat.get(owner.ask.remote([maker]))
    for i in range(50):
        assert rlplat.get(maker.make.remote(i))[0] == i
    assert (view == 7).all()


def test_objects_of_a_task_outlive_its_lease(cluster: None) -> None:
    @rlplat.remote
    def make() -> list:
        return [rlplat.put("small"), rlplat.put(np.ones(200_000))]

    small, large = rlplat.get(make.remote())
    assert soon(lambda: rlplat.available_resources()["CPU"] == 2, 60)

    @rlplat.remote
    def other() -> int:
        return 1

    for _ in range(3):  # let leases come and go
        rlplat.get([other.remote(), other.remote()])
        assert soon(lambda: rlplat.available_resources()["CPU"] == 2, 60)
    assert rlplat.get(small) == "small"
    assert rlplat.get(large).sum() == 200_000


def test_a_view_of_a_dead_actors_object_stays_readable() -> None:
    """In a process of its own: where it goes wrong, the reader dies of SIGBUS."""
    script = """
import time
import numpy as np
import rlplat
rlplat.init(num_cpus=1, num_gpus=0)

class Actor:
    def make(self):
        return [rlplat.put(np.ones(200_000))]

actor = rlplat.remote(Actor).remote()
view = rlplat.get(rlplat.get(actor.make.remote())[0])
rlplat.kill(actor)
print("running", flush=True)
time.sleep(0.5)

@rlplat.remote
def f():
    return 1

rlplat.get(f.remote())
time.sleep(0.2)
print(view.sum())
rlplat.shutdown()
"""
    with program(script) as driver:
        code, out, errors = driver.finish()
    assert (code, out) == (0, "200000.0\n"), errors


def test_fork_in_a_task_is_refused_in_the_child(cluster: None) -> None:
    @rlplat.remote
    def fork() -> str:
        read, write = os.pipe()
        if not os.fork():
            try:
                rlplat.put(1)
                text = "no error"
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write, text.encode())
            os._exit(0)
        os.wait()
        os.close(write)
        return os.read(read, 4096).decode() + str(rlplat.get(rlplat.put(1)))

    text = rlplat.get(fork.remote())
    assert text.startswith("NotInitialized")
    assert "os.fork" in text
    assert text.endswith("1")


def test_every_worker_at_once(cluster: None) -> None:
    @rlplat.remote
    def pid() -> int:
        return os.getpid()

    for _ in range(5):
        for each in set(rlplat.get([pid.remote() for _ in range(10)], timeout=60)):
            with contextlib.suppress(ProcessLookupError):  # one that nobody needed may have ended
                os.kill(each, signal.SIGKILL)
        assert rlplat.get(pid.remote(), timeout=60)


def test_a_killing_spree_loses_nothing(cluster: None, tmp_path: Path) -> None:
    """A tenth of the tasks kill their worker on the first attempt; each result is right and there once."""

    @rlplat.remote(max_retries=10)
    def task(x: int) -> int:
        marker = tmp_path / str(x)
        if x % 10 == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x * x

    assert rlplat.get([task.remote(x) for x in range(100)], timeout=90) == [x * x for x in range(100)]
