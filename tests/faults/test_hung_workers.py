"""Workers that hang: a stopped one is dead, a busy one is not, and a pause of everything is nobody's fault."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlplat
from rlplat.errors import ActorDied, NodeLost, WorkerCrashed
from tests.faults.programs import program
from tests.leak_meter import MARK, marked_processes
from tests.patience import soon

pytestmark = pytest.mark.process


@pytest.fixture
def watchful_cluster() -> Iterator[None]:
    rlplat.init(num_cpus=2, num_gpus=0, hang_timeout_s=1)
    yield
    rlplat.shutdown()


def test_a_stopped_worker_is_killed_and_its_task_runs_again(watchful_cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote
    def task() -> int:
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        if len(log.read_text().splitlines()) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return os.getpid()

    second = rlplat.get(task.remote(), timeout=30)
    first, *_, again = map(int, log.read_text().split())
    assert again == second != first
    assert soon(lambda: not os.path.exists(f"/proc/{first}"), 60)


def test_a_stopped_actor_is_dead_and_says_why(watchful_cluster: None) -> None:
    @rlplat.remote
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    actor, other = Actor.remote(), Actor.remote()
    os.kill(rlplat.get(actor.pid.remote()), signal.SIGSTOP)
    with pytest.raises(ActorDied, match=r"hung for 1 s and was killed: it was stopped \(SIGSTOP\).*hang_timeout_s=1"):
        rlplat.get(actor.pid.remote(), timeout=30)
    assert rlplat.get(other.pid.remote())


def test_native_code_that_holds_the_gil_and_waits_is_hung(watchful_cluster: None) -> None:
    @rlplat.remote(max_retries=0)
    def wait() -> None:
        ctypes.PyDLL(None).sleep(600)

    with pytest.raises(WorkerCrashed, match="neither answered nor used any CPU time"):
        rlplat.get(wait.remote(), timeout=30)


@pytest.mark.parametrize("is_killed", [False, True], ids=["start", "end"])
def test_a_stopped_zygote_ends_the_cluster_whether_a_start_or_an_end_is_awaited(
    capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest, is_killed: bool
) -> None:
    request.getfixturevalue("watchful_cluster")  # now: its node's stderr is what `capfd` reads

    @rlplat.remote(num_cpus=0)
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    actor = Actor.remote()
    pid = rlplat.get(actor.pid.remote())
    zygote = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])  # its parent
    os.kill(zygote, signal.SIGSTOP)
    if is_killed:
        os.kill(pid, signal.SIGKILL)
    actors = [actor] if is_killed else [Actor.remote() for _ in range(8)]
    with pytest.raises(NodeLost):
        rlplat.get([actor.pid.remote() for actor in actors], timeout=30)
    said = capfd.readouterr().err
    assert "the zygote, which starts the workers of this cluster, hung for 1 s" in said
    assert "it was stopped (SIGSTOP)" in said


class Napper:
    def nap(self, seconds: int) -> int:
        """Hold the GIL in the kernel, in state D, as in a read of a file server that does not answer: the parent of a
        `vfork` waits like that for its child."""
        libc = ctypes.PyDLL(None)
        stack = ctypes.create_string_buffer(1 << 16)
        top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16)) & -16)
        clone_vm, clone_vfork = 0x100, 0x4000
        pid = libc.clone(libc.sleep, top, clone_vm | clone_vfork | signal.SIGCHLD, ctypes.c_void_p(seconds))
        os.waitpid(pid, 0)
        return pid


@pytest.mark.parametrize("max_concurrency", [1, 2], ids=["main thread", "another thread"])
def test_a_wait_for_a_disk_in_the_kernel_is_no_hang(watchful_cluster: None, max_concurrency: int) -> None:
    napper = rlplat.remote(Napper).options(max_concurrency=max_concurrency).remote()
    assert rlplat.get(napper.nap.remote(3), timeout=60)


@pytest.fixture
def patient_cluster() -> Iterator[None]:
    """Where one must live that the machine may keep from its CPU for a while."""
    rlplat.init(num_cpus=2, num_gpus=0, hang_timeout_s=3)
    yield
    rlplat.shutdown()


def test_native_code_that_holds_the_gil_and_computes_lives(patient_cluster: None) -> None:
    @rlplat.remote(max_retries=0)
    def compute() -> int:
        end = time.monotonic() + 4
        assert any(map(end.__lt__, iter(time.monotonic, None)))  # in C alone: the GIL is not given up meanwhile
        return 1

    assert rlplat.get(compute.remote(), timeout=60) == 1


def test_one_that_sleeps_answers_and_lives(patient_cluster: None) -> None:
    @rlplat.remote(max_retries=0)
    def sleep() -> int:
        time.sleep(4)
        return 1

    @rlplat.remote
    def waits(refs: list) -> int:
        return rlplat.get(refs[0])

    asleep = sleep.remote()
    assert rlplat.get([asleep, waits.remote([asleep])], timeout=30) == [1, 1]


def test_a_pause_of_every_process_kills_nobody() -> None:
    script = """
import os, time, rlplat
rlplat.init(num_cpus=2, num_gpus=0, hang_timeout_s=2)

@rlplat.remote
class Actor:
    def pid(self):
        return os.getpid()

@rlplat.remote(max_retries=0)
def task():
    time.sleep(5)
    return os.getpid()

actors = [Actor.remote() for _ in range(2)]
pids = rlplat.get([actor.pid.remote() for actor in actors])
ref = task.remote()
print("running", rlplat.runtime.refs.backend()._node.pid, flush=True)
assert rlplat.get(ref, timeout=60)
assert rlplat.get([actor.pid.remote() for actor in actors], timeout=60) == pids
print("alive")
rlplat.shutdown()
"""
    with program(script) as driver:
        (node,) = driver.numbers
        others = [pid for pid in marked_processes(os.environ[MARK]) if pid != node]
        os.kill(node, signal.SIGSTOP)  # first, and it goes on last: it must not see the others stopped alone
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4.2)  # the fault itself: longer than twice the limit
        for pid in (*others, node):
            os.kill(pid, signal.SIGCONT)
        code, out, errors = driver.finish()
        assert (code, out) == (0, "alive\n"), errors
        assert soon(lambda: not driver.left_behind(), 60)


@pytest.mark.parametrize("value", [0, -1, "x", True, None])
def test_the_limit_is_checked(value: object) -> None:
    with pytest.raises(rlplat.errors.ConfigError, match=r"hang_timeout_s must be a number of at least 0\.5"):
        rlplat.init(hang_timeout_s=value)  # type: ignore[arg-type]
