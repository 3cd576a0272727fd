"""However the driver or the node ends, nothing is left 5 s later: no process, no shared memory."""

from __future__ import annotations

import os
import signal

import pytest

import rlplat
from tests.faults.programs import BUSY_DRIVER, WORK, next_line, program
from tests.leak_meter import MARK, marked_processes
from tests.patience import soon

pytestmark = pytest.mark.process


def test_kill_of_the_driver_leaves_nothing() -> None:
    with program(BUSY_DRIVER + "time.sleep(600)") as driver:
        child, _ = driver.numbers
        assert len(driver.left_behind()) > 5
        assert os.path.exists(f"/proc/{child}")
        driver.kill(signal.SIGKILL)
        driver.process.wait()
        assert driver.is_all_gone(), driver.left_behind()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_forked_child_that_lives_on_does_not_keep_the_cluster(is_killed: bool) -> None:
    forks = "forked = os.fork()\nif not forked:\n    time.sleep(600)\n"
    orderly = "own = rlplat.runtime.refs.backend()\nrlplat.shutdown()\nprint(own._node.returncode, flush=True)\n"
    ends = "time.sleep(600)" if is_killed else orderly
    with program(BUSY_DRIVER + forks + "print(forked, flush=True)\n" + ends) as driver:
        _, node = driver.numbers
        assert driver.process.stdout is not None
        forked = int(next_line(driver.process.stdout))
        try:
            if is_killed:
                driver.kill(signal.SIGKILL)
                driver.process.wait()
            else:
                assert next_line(driver.process.stdout) == "0\n"  # it was not killed after 5 s
            assert soon(lambda: not os.path.exists(f"/proc/{node}"))
        finally:
            os.kill(forked, signal.SIGKILL)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise ValueError('the script is wrong')", 1),
        ("os._exit(7)", 7),
        ("sys.exit(3)", 3),
        ("pass", 0),
        ("rlplat.shutdown()", 0),
        ("os.kill(os.getpid(), 15)", -15),  # a shell calls it 143
        ("os.kill(os.getpid(), 1)", -1),  # the terminal was closed
        ("os.abort()", -6),
    ],
)
def test_every_end_of_the_driver_leaves_nothing(ending: str, code: int) -> None:
    with program(BUSY_DRIVER + ending) as driver:
        assert driver.finish()[0] == code
        assert driver.is_all_gone(), driver.left_behind()


def test_kill_of_the_node_is_an_error_in_the_driver_and_leaves_nothing() -> None:
    wait = """
try:
    rlplat.get(running)
except rlplat.errors.NodeLost as error:
    print("NodeLost:", error)
try:
    rlplat.put(1)
except rlplat.errors.NodeLost:
    print("still lost")
arrays[0].sum(), arrays[1].sum()
rlplat.shutdown()
"""
    with program("import rlplat.errors\n" + BUSY_DRIVER + wait) as driver:
        _, node = driver.numbers
        os.kill(node, signal.SIGKILL)
        code, out, errors = driver.finish()
        assert "NodeLost: the node process" in out, errors
        assert "still lost" in out
        assert code == 0, errors
        assert driver.is_all_gone(), driver.left_behind()


def test_kill_of_driver_and_node_at_once_leaves_nothing() -> None:
    with program(BUSY_DRIVER + "time.sleep(600)") as driver:
        _, node = driver.numbers
        os.kill(node, signal.SIGSTOP)  # so that it cannot clean up in between
        driver.kill(signal.SIGKILL)
        os.kill(node, signal.SIGKILL)
        driver.process.wait()
        assert driver.is_all_gone(), driver.left_behind()


def test_ctrl_c_reaches_the_driver_alone() -> None:
    wait = """
try:
    say_running()
    rlplat.get(running)
except KeyboardInterrupt:
    print("interrupted")
    print(rlplat.get(actors[1].make.remote()).sum())
    rlplat.shutdown()
"""
    with program(WORK + wait) as driver:
        os.killpg(driver.pid, signal.SIGINT)  # what a terminal does: the whole foreground group
        code, out, errors = driver.finish()
        assert (code, out.split()) == (0, ["interrupted", "1000000.0"]), errors
        assert "Traceback" not in errors
        assert driver.is_all_gone(), driver.left_behind()


def test_the_end_gives_the_users_signal_handlers_back() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rlplat.init(num_cpus=1, num_gpus=0)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        rlplat.shutdown()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        rlplat.shutdown()
        signal.signal(signal.SIGINT, before)


def test_an_uncaught_ctrl_c_leaves_nothing() -> None:
    with program(BUSY_DRIVER + "rlplat.get(running)") as driver:
        os.killpg(driver.pid, signal.SIGINT)
        code, _, errors = driver.finish()
        assert code in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in errors
        assert driver.is_all_gone(), driver.left_behind()


def test_the_next_start_removes_what_a_dead_session_left() -> None:
    # A session folder of a pid that cannot live, old enough that no node is still at it.
    path = f"/dev/shm/rlplat-{2**22 + 1}-1-forged"
    os.mkdir(path)
    os.utime(path, (0, 0))
    try:
        rlplat.init(num_cpus=1, num_gpus=0)
        assert not os.path.exists(path)
    finally:
        rlplat.shutdown()
        if os.path.exists(path):
            os.rmdir(path)


def test_ten_rounds_of_start_and_stop_leave_nothing() -> None:
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        rlplat.init(num_cpus=1, num_gpus=0)
        rlplat.shutdown()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert soon(lambda: not marked_processes(os.environ[MARK]), 60)
