"""The leak meter finds what it must find, and lets go of what is clean."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlplat.runtime.link.dropped import Dropped
from rlplat.runtime.wire.messages import Exit
from tests.leak_meter import DROPS_FILE, SHM_PREFIX, LeakMeter

_DOUBLE_FORK = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        os.execvp("sleep", ["sleep", "60"])
    os._exit(0)
os.wait()
"""


@contextmanager
def daemon() -> Iterator[None]:
    """A process in a session of its own, whose parents are gone."""
    command = [sys.executable, "-c", _DOUBLE_FORK]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    yield
    os.kill(int(out), 9)


@contextmanager
def forked_child() -> Iterator[None]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        yield
    finally:
        os.close(write)
        os.waitpid(child, 0)


@contextmanager
def shared_memory() -> Iterator[None]:
    path = Path("/dev/shm", f"{SHM_PREFIX}{os.getpid()}-0-leak")
    path.mkdir()
    yield
    path.rmdir()


@contextmanager
def listening_socket() -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)):
        yield


@contextmanager
def thread() -> Iterator[None]:
    stop = threading.Event()
    worker = threading.Thread(target=stop.wait, name="forgotten")
    worker.start()
    yield
    stop.set()
    worker.join()


@contextmanager
def zmq_context() -> Iterator[None]:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR):
        yield


@pytest.mark.process
@pytest.mark.parametrize(
    ("leak", "words"),
    [
        (daemon, "process"),
        (forked_child, "child process"),
        (shared_memory, "/dev/shm/rlplat-"),
        (listening_socket, "socket:"),
        (thread, "thread forgotten"),
        (zmq_context, "thread ZMQbg"),
    ],
)
def test_each_kind_of_leak_is_named(leak: Callable[[], object], words: str) -> None:
    meter = LeakMeter.start()
    with leak():  # type: ignore[attr-defined]
        for _ in range(1000):  # a native thread gets its name a moment after its start
            if found := any(words in line for line in meter.leaks()):
                break
        assert found, meter.leaks()
    assert meter.finish() == []


def test_a_dead_session_is_a_leak_of_the_process_that_has_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.leak_meter.log_root", tmp_path)
    session = Path("/dev/shm", f"{SHM_PREFIX}{2**22 + 1}-{os.getpid()}-leak")  # of a pid that cannot live
    meter = LeakMeter.start()
    session.mkdir()
    try:
        assert meter.leaks() == []
        (tmp_path / session.name).mkdir()
        assert meter.leaks() == [f"shared memory {session}"]
    finally:
        session.rmdir()


def test_what_ends_soon_is_waited_for() -> None:
    meter = LeakMeter.start()
    read, write = os.pipe()
    closer = threading.Timer(0.1, lambda: (os.close(read), os.close(write)))
    closer.start()
    assert meter.finish() == []
    closer.join()


def test_what_is_older_than_the_meter_is_no_leak_though_the_kernel_left_it_out() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with forked_child():
        time.sleep(0.03)  # the kernel's clock of processes ticks every 10 ms
        meter = LeakMeter.start()
        meter._before.threads.pop(thread.native_id or 0)
        meter._before.children.clear()
        assert meter.leaks() == []
    done.set()
    thread.join()


def test_a_clean_test_pays_milliseconds() -> None:
    started = time.process_time()  # CPU seconds of this process: the machine's load does not count
    for _ in range(10):
        assert LeakMeter.start().finish() == []
    assert (time.process_time() - started) / 10 < 0.02


def test_a_dropped_message_fails_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DROPS_FILE, str(tmp_path / "dropped"))
    meter = LeakMeter.start()
    Dropped("w1").deliver("driver", [Exit()], {}.get)
    assert meter.finish() == ["a message that was dropped: w1 dropped Exit from 'driver': only the node may say that"]
    assert LeakMeter.start().finish() == []
