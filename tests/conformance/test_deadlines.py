"""`timeout_s`: a call that is not done in time fails then, and is ended behind its caller's back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, DeadlineExceeded, TaskCancelled
from rlplat.runtime.refs import backend
from tests.patience import soon


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def write(path: Path, line: Any) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


@rlplat.remote
def one() -> int:
    return 1


class Clock:
    """The one by which this process counts the deadlines of its calls. It stands still until it is moved, so that a
    call has begun before its deadline, however slow the machine is."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        backend().link.loop.wake()  # type: ignore[attr-defined]


@pytest.fixture
def clock(cluster: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    client: Any = backend()
    monkeypatch.setattr(client.cancels, "_clock", clock)
    monkeypatch.setattr(client.calls, "_clock", clock)
    return clock


def test_a_sleeping_task_ends_at_its_deadline(clock: Clock, tmp_path: Path) -> None:
    """By an interrupt: the kill does not come while the clock stands still."""
    log = tmp_path / "log"

    @rlplat.remote(timeout_s=100)
    def sleeper() -> None:
        try:
            write(log, "began")  # the interrupt may come from here on
            time.sleep(1000)
        finally:
            write(log, "ended")

    ref = sleeper.remote()
    assert soon(lambda: lines(log) == ["began"])
    clock.go_on(99)
    assert rlplat.wait([ref], timeout=0.05) == ([], [ref])
    clock.go_on(1)
    with pytest.raises(DeadlineExceeded, match=r"sleeper did not finish within its timeout_s=100"):
        rlplat.get(ref, timeout=60)
    assert soon(lambda: lines(log) == ["began", "ended"])
    with pytest.raises(TimeoutError):
        rlplat.get(ref)
    assert rlplat.get(one.remote(), timeout=60) == 1


def test_a_task_that_will_not_end_is_killed(clock: Clock, tmp_path: Path) -> None:
    """P4: time.sleep(1000) in a call with a deadline must end at the deadline + 2 s."""
    log = tmp_path / "log"

    @rlplat.remote(timeout_s=100)
    def stubborn() -> None:
        while True:
            try:
                if not log.exists():
                    write(log, os.getpid())
                time.sleep(1000)
            except KeyboardInterrupt:
                pass

    ref = stubborn.remote()
    assert soon(lambda: bool(lines(log)))
    clock.go_on(100)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(ref, timeout=60)
    assert os.path.exists(f"/proc/{lines(log)[0]}")
    clock.go_on(2)
    assert soon(lambda: not os.path.exists(f"/proc/{lines(log)[0]}"))
    assert rlplat.get(one.remote(), timeout=60) == 1
    assert len(lines(log)) == 1


def test_a_call_in_time_is_not_touched(cluster: None) -> None:
    class Actor:
        @rlplat.method(timeout_s=60)
        def f(self, x: int) -> int:
            return x

    actor = rlplat.remote(Actor).remote()
    assert rlplat.get([one.options(timeout_s=60).remote() for _ in range(100)], timeout=60) == [1] * 100
    assert rlplat.get([actor.f.remote(i) for i in range(100)], timeout=60) == list(range(100))


def test_waiting_counts(cluster: None, tmp_path: Path) -> None:
    """For a worker, for an argument, behind another call of the actor: from submission on."""
    log, gate = tmp_path / "log", tmp_path / "gate"

    @rlplat.remote(num_cpus=2)
    def holds_the_cpus() -> int:
        while not gate.exists():
            time.sleep(0.005)
        return 1

    @rlplat.remote
    def task(x: int) -> None:
        write(log, x)

    class Actor:
        def hold(self) -> int:
            while not gate.exists():
                time.sleep(0.005)
            return 2

        def add(self, x: int) -> None:
            write(log, x)

    holder, actor = holds_the_cpus.remote(), rlplat.remote(Actor).remote()
    held = actor.hold.remote()
    late = [
        task.options(timeout_s=0.2).remote(0),
        task.options(timeout_s=0.2).remote(holder),
        actor.add.options(timeout_s=0.2).remote(1),
        actor.add.options(timeout_s=0.2).remote(holder),
    ]
    for ref in late:
        with pytest.raises(DeadlineExceeded):
            rlplat.get(ref, timeout=60)
    fence = actor.add.remote(8)  # what its worker has heard of this one it has heard of the others
    rlplat.cancel(fence)
    with pytest.raises(TaskCancelled):
        rlplat.get(fence, timeout=60)
    gate.touch()
    assert rlplat.get([holder, held, actor.add.remote(7)], timeout=60) == [1, 2, None]
    assert lines(log) == ["7"]


def test_a_result_that_comes_too_late_changes_nothing(clock: Clock, tmp_path: Path) -> None:
    begun, log = tmp_path / "begun", tmp_path / "log"

    def late(large: bool) -> Any:
        try:
            write(begun, large)
            time.sleep(1000)
        except KeyboardInterrupt:
            write(log, "late")
        return bytes(1_000_000) if large else 5

    task = rlplat.remote(late).options(timeout_s=100)
    refs = [task.remote(False), task.remote(True)]
    assert soon(lambda: len(lines(begun)) == 2)
    clock.go_on(100)
    for ref in refs:
        with pytest.raises(DeadlineExceeded):
            rlplat.get(ref, timeout=60)
    assert soon(lambda: len(lines(log)) == 2)
    assert rlplat.get([one.remote() for _ in range(10)], timeout=60) == [1] * 10  # the workers are free again
    for ref in refs:
        with pytest.raises(DeadlineExceeded):
            rlplat.get(ref, timeout=60)


def test_an_actor_whose_sync_call_does_not_end_is_killed(clock: Clock, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Actor:
        def hang(self) -> None:
            write(log, "began")
            time.sleep(1000)

        def ping(self) -> str:
            return "pong"

    actor = rlplat.remote(Actor).remote()
    rlplat.get(actor.ping.remote(), timeout=60)
    hanging = actor.hang.options(timeout_s=0.3).remote()
    behind = actor.ping.remote()
    # Not before it has begun: then it would only be cancelled.
    assert soon(lambda: lines(log) == ["began"])
    clock.go_on(0.3)
    with pytest.raises(DeadlineExceeded, match=r"Actor\.hang"):
        rlplat.get(hanging, timeout=60)
    clock.go_on(2)
    with pytest.raises(ActorDied, match=r"timeout_s=0\.3"):
        rlplat.get(behind, timeout=60)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(hanging)


def test_such_an_actor_starts_again_if_it_may_and_the_call_does_not(clock: Clock, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Actor:
        def hang(self) -> None:
            write(log, "began")
            time.sleep(1000)

        def pid(self) -> int:
            return os.getpid()

    actor = rlplat.remote(Actor).options(max_restarts=1, max_task_retries=3).remote()
    pid = rlplat.get(actor.pid.remote(), timeout=60)
    hanging, behind = actor.hang.options(timeout_s=0.5).remote(), actor.pid.remote()
    assert soon(lambda: lines(log) == ["began"])
    clock.go_on(0.5)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(hanging, timeout=60)
    clock.go_on(2)
    assert rlplat.get(behind, timeout=60) != pid
    assert len(lines(log)) == 1


def test_a_coroutine_is_cancelled_and_its_actor_lives(clock: Clock, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Actor:
        async def hang(self) -> None:
            write(log, "began")
            try:
                await asyncio.sleep(1000)
            finally:
                write(log, "ended")

        async def ping(self) -> str:
            return "pong"

    actor = rlplat.remote(Actor).remote()
    rlplat.get(actor.ping.remote(), timeout=60)
    hanging = actor.hang.options(timeout_s=0.2).remote()
    assert soon(lambda: lines(log) == ["began"])
    clock.go_on(0.2)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(hanging, timeout=60)
    assert soon(lambda: lines(log) == ["began", "ended"])
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"  # it has said that the other one ended
    clock.go_on(2)  # past the second that it had to end in
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


def test_a_stream_has_a_deadline_as_a_whole(clock: Clock) -> None:
    @rlplat.remote(timeout_s=100)
    def slow() -> Iterator[int]:
        yield 0
        time.sleep(1000)

    stream = slow.remote()
    first = next(stream)
    clock.go_on(100)
    (last,) = stream
    assert rlplat.get(first) == 0
    with pytest.raises(DeadlineExceeded):
        rlplat.get(last)


def test_deadlines_count_while_nobody_looks(cluster: None) -> None:
    """The process that made the call is busy with something else."""

    @rlplat.remote(timeout_s=0.3)
    def sleeper() -> None:
        time.sleep(1000)

    ref = sleeper.remote()
    entry = backend().objects.book.find(ref.id)  # type: ignore[attr-defined]
    assert soon(lambda: entry.value is not None)
    with pytest.raises(DeadlineExceeded):
        rlplat.get(ref)
