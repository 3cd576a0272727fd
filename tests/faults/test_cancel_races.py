"""A cancel that meets a task on its way back from its worker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import rlplat
from rlplat.errors import TaskCancelled
from rlplat.runtime.refs import backend
from rlplat.runtime.wire import messages
from tests.faults.programs import eventually


def test_a_task_that_comes_back_while_it_is_being_cancelled_is_not_queued_again(
    cluster: None, tmp_path: Path
) -> None:
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
    assert eventually(lambda: log.exists() and bool(log.read_text()), 60)
    client = backend()
    record = client.calls.records[refs[1].id]  # type: ignore[attr-defined]
    assert eventually(lambda: record.route.sent_to(record) is not None, 60)  # type: ignore[attr-defined]
    pid = int(log.read_text().split()[1])
    os.kill(pid, signal.SIGSTOP)  # it does not hear of the cancel
    rlplat.cancel(refs[1])
    with client.link.lock:  # type: ignore[attr-defined]
        client.tasks._on_gave_back(record.target, messages.GaveBack([refs[1].id]))  # type: ignore[attr-defined]
    with pytest.raises(TaskCancelled):
        rlplat.get(refs[1], timeout=60)
    assert record not in record.route.lane.ready
    os.kill(pid, signal.SIGCONT)  # (here the worker has not really given it back, and may begin it)
    gate.touch()
    assert rlplat.get([refs[0], *refs[2:]], timeout=60) == [1000, *range(1002, 1010)]
