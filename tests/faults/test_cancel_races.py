"""A cancel that meets a task on its way back from its worker."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import TaskCancelled
from rlplat.runtime.client import cancels
from rlplat.runtime.refs import backend
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value
from tests.patience import dropped_generators_are_closed, soon


def test_a_task_that_comes_back_while_it_is_being_cancelled_is_not_queued_again(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @rlplat.remote(num_cpus=2)
    def task(x: int) -> int:
        if x >= 1000:
            with open(log, "a") as file:
                file.write(f"{x} {os.getpid()}\n")
        while x == 1000 and not gate.exists():
            time.sleep(0.005)
        return x

    rlplat.get([task.remote(i) for i in range(1000)], timeout=60)
    refs = [task.remote(i) for i in range(1000, 1010)]  # the first runs, the others are queued behind it
    assert soon(lambda: log.exists() and bool(log.read_text()), 60)
    client = backend()
    record = client.objects.book.call(refs[1].id)  # type: ignore[attr-defined]
    assert soon(lambda: record.worker is not None, 60)  # type: ignore[attr-defined]
    pid = int(log.read_text().split()[1])
    os.kill(pid, signal.SIGSTOP)  # it does not hear of the cancel
    rlplat.cancel(refs[1])
    with client.link.lock:  # type: ignore[attr-defined]
        client.calls._on_gave_back(record.worker, messages.GaveBack([refs[1].id]))  # type: ignore[attr-defined]
    with pytest.raises(TaskCancelled):
        rlplat.get(refs[1], timeout=60)
    assert not record.is_open  # (the lane passes over it)
    os.kill(pid, signal.SIGCONT)  # (here the worker has not really given it back, and may begin it)
    gate.touch()
    assert rlplat.get([refs[0], *refs[2:]], timeout=60) == [1000, *range(1002, 1010)]


def test_a_dropped_generator_that_comes_back_unbegun_is_not_queued_again(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote
    def count() -> Iterator[int]:
        log.write_text(str(os.getpid()))
        yield from itertools.count()

    stream = count.remote()
    end = stream.completed()
    assert soon(lambda: log.exists() and bool(log.read_text()), 60)
    client: Any = backend()
    record = client.objects.book.call(end.id)
    pid = int(log.read_text())
    os.kill(pid, signal.SIGSTOP)  # it does not hear that nobody reads it
    del stream
    assert soon(dropped_generators_are_closed)
    with client.link.lock:
        client.calls._on_gave_back(record.worker, messages.GaveBack([end.id]))
    with pytest.raises(TaskCancelled, match=r"nobody reads .*count any more"):
        rlplat.get(end, timeout=60)
    assert not record.is_open  # (the lane passes over it)
    os.kill(pid, signal.SIGCONT)


def test_dropping_a_generator_that_is_being_cancelled_does_not_spare_its_worker(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancels, "CANCEL_GRACE_S", 0.5)

    @rlplat.remote
    def deaf() -> Iterator[int]:
        yield 0
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(600)

    stream = deaf.remote()
    assert rlplat.get(next(stream), timeout=60) == 0
    end = stream.completed()
    rlplat.cancel(end)
    del stream
    assert soon(dropped_generators_are_closed)
    with pytest.raises(TaskCancelled, match="was cancelled by"):
        rlplat.get(end, timeout=60)


def test_the_next_task_is_not_sent_to_a_worker_that_is_being_killed(cluster: None, tmp_path: Path) -> None:
    """Its result was on its way when its worker was condemned, which looks free from then on."""

    @rlplat.remote(num_cpus=2, max_retries=0)
    def task(gate: str) -> int:
        while gate and not os.path.exists(gate):
            time.sleep(0.005)
        return os.getpid()

    pid = rlplat.get(task.remote(""), timeout=60)
    ref = task.remote(str(tmp_path / "gate"))
    client = backend()
    record = client.objects.book.call(ref.id)  # type: ignore[attr-defined]
    assert soon(lambda: record.worker is not None, 60)
    with client.link.lock:  # type: ignore[attr-defined]
        rlplat.cancel(ref, force=True)
        client.calls.finish(record.worker, ref.id, [Value(codec.pack("just in time").data)])  # type: ignore[attr-defined]
        following = task.remote("")
    assert rlplat.get(ref, timeout=60) == "just in time"
    assert rlplat.get(following, timeout=60) != pid
