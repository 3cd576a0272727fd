"""`rlplat.cancel`: tasks and calls that wait, are queued at a worker, run, have finished, or are not known."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import TaskCancelled
from rlplat.runtime.refs import backend as current_backend
from tests.patience import soon


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def write(path: Path, line: Any) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


@rlplat.remote
def one() -> int:
    return 1


def objects() -> Any:
    """The driver's `Objects`."""
    return current_backend().objects  # type: ignore[attr-defined]


def cancelled(*refs: Any) -> None:
    for ref in refs:
        with pytest.raises(TaskCancelled):
            rlplat.get(ref, timeout=60)


@pytest.fixture
def no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends, ends by the interrupt: the kill that would come later does not come within a test."""
    monkeypatch.setattr("rlplat.runtime.client.cancels.CANCEL_GRACE_S", 1000)


def test_a_running_task_gets_a_keyboard_interrupt(cluster: None, no_kill: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote
    def sleeper() -> None:
        try:
            write(log, "began")  # the interrupt may come from here on
            time.sleep(1000)
        except KeyboardInterrupt:
            write(log, f"interrupted in {os.getpid()}")
            raise
        finally:
            write(log, "cleaned up")

    ref = sleeper.remote()
    assert soon(lambda: lines(log) == ["began"])
    rlplat.cancel(ref)
    with pytest.raises(TaskCancelled, match="sleeper was cancelled"):
        rlplat.get(ref, timeout=60)
    assert [line.split(" in ")[0] for line in lines(log)] == ["began", "interrupted", "cleaned up"]
    assert rlplat.get(one.remote(), timeout=60) == 1


@pytest.mark.parametrize("place", ["computing", "in get", "in wait", "in put", "in a lock", "in a generator"])
def test_the_interrupt_finds_a_task_wherever_it_is(cluster: None, no_kill: None, tmp_path: Path, place: str) -> None:
    log = tmp_path / "log"

    @rlplat.remote(num_cpus=0)
    def hang() -> None:
        time.sleep(1000)

    def busy() -> None:
        write(log, "began")
        if place == "computing":
            while True:
                pass
        elif place == "in get":
            rlplat.get(hang.remote())
        elif place == "in wait":
            rlplat.wait([hang.remote()])
        elif place == "in put":
            while True:
                rlplat.put(b"x" * 1000)
        else:
            import threading

            lock = threading.Lock()
            lock.acquire()
            lock.acquire()

    def generator() -> Iterator[int]:
        write(log, "began")
        while True:
            yield 1

    @rlplat.remote
    def task() -> None:
        busy()

    ref: Any
    if place == "in a generator":
        stream = rlplat.remote(generator).options(generator_backpressure=3).remote()
        ref = stream.completed()
    else:
        ref = task.remote()
    assert soon(lambda: lines(log) == ["began"])
    rlplat.cancel(ref, recursive=False)  # else it might see its child end, and go on to its own end
    cancelled(ref)
    assert rlplat.get([one.remote() for _ in range(20)], timeout=60) == [1] * 20


def test_tasks_that_wait_are_dropped_and_never_run(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @rlplat.remote(num_cpus=2)
    def holds_the_cpus() -> int:
        while not gate.exists():
            time.sleep(0.005)
        return 1

    @rlplat.remote
    def task(x: int) -> None:
        write(log, x)

    holder = holds_the_cpus.remote()
    no_worker = [task.remote(i) for i in range(50)]
    no_argument = task.remote(holder)
    depends = task.remote(no_worker[1])
    for ref in (*no_worker[:40], no_argument):
        rlplat.cancel(ref)
        rlplat.cancel(ref)  # once more changes nothing
    cancelled(*no_worker[:40], no_argument, depends)
    gate.touch()
    assert rlplat.get(no_worker[40:], timeout=60) == [None] * 10
    assert sorted(map(int, lines(log))) == list(range(40, 50))


def test_tasks_that_are_queued_at_a_worker_are_dropped_there(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @rlplat.remote(num_cpus=2)
    def task(x: int) -> int:
        if x == 1000:
            write(log, "began")
            while not gate.exists():
                pass
        elif x > 1000:
            write(log, x)
        return x

    rlplat.get([task.remote(i) for i in range(1000)], timeout=60)  # the pace is known: many travel ahead
    refs = [task.remote(i) for i in range(1000, 1100)]
    assert soon(lambda: bool(lines(log)))
    for ref in refs[1:90]:
        rlplat.cancel(ref)
    cancelled(*refs[1:90])
    gate.touch()
    assert rlplat.get([refs[0], *refs[90:]], timeout=60) == [1000, *range(1090, 1100)]
    assert lines(log) == ["began", *map(str, range(1090, 1100))]


def test_what_has_finished_or_is_not_known_is_left_alone(backend: str) -> None:
    ref, put = one.remote(), rlplat.put(5)
    failed = rlplat.remote(lambda: 1 / 0).remote()
    rlplat.wait([ref, failed], num_returns=2)
    for each in (ref, put, failed):
        rlplat.cancel(each)
        rlplat.cancel(each, force=True)
    assert rlplat.get([ref, put]) == [1, 5]
    with pytest.raises(ZeroDivisionError):
        rlplat.get(failed)
    with pytest.raises(TypeError, match="takes an ObjectRef, not int"):
        rlplat.cancel(5)  # type: ignore[arg-type]


def test_a_task_that_does_not_end_is_killed_and_not_retried(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr("rlplat.runtime.client.cancels.CANCEL_GRACE_S", 0.3)

    @rlplat.remote
    def stubborn() -> None:
        while True:
            try:
                if not log.exists():
                    write(log, os.getpid())  # the interrupt may come from here on
                time.sleep(1000)
            except KeyboardInterrupt:
                pass

    ref = stubborn.remote()
    assert soon(lambda: len(lines(log)) == 1)
    rlplat.cancel(ref)
    cancelled(ref)
    assert soon(lambda: not os.path.exists(f"/proc/{lines(log)[0]}"))
    assert rlplat.get(one.remote(), timeout=60) == 1
    assert len(lines(log)) == 1


def test_force_kills_at_once_and_spares_the_others(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(num_cpus=2, max_retries=0)
    def task(x: int) -> int:
        if x == 1000 and not log.exists():
            write(log, os.getpid())
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))  # nothing but a kill ends it
            while True:
                pass
        return x

    rlplat.get([task.remote(i) for i in range(1000)], timeout=60)
    refs = [task.remote(i) for i in range(1000, 1100)]  # queued behind it, and they have no retries to lose
    assert soon(lambda: len(lines(log)) == 1)
    rlplat.cancel(refs[0], force=True)
    cancelled(refs[0])
    assert rlplat.get(refs[1:], timeout=60) == list(range(1001, 1100))


def test_a_cancel_that_comes_as_the_task_ends_never_strikes_the_next_one(cluster: None) -> None:
    @rlplat.remote(num_cpus=2)  # one worker
    def short(x: int) -> int:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        return x

    outcomes = set()
    pause_s = 0.001  # comes to be what the first takes here and now, so that they meet
    for i in range(150):
        first, second = short.remote(i), short.remote(-i)
        if i % 3:
            time.sleep(pause_s)
        rlplat.cancel(first)
        try:
            assert rlplat.get(first, timeout=60) == i
            outcomes.add("ran")
            pause_s /= 1.2 if i % 3 else 1
        except TaskCancelled:
            outcomes.add("cancelled")
            pause_s *= 1.2 if i % 3 else 1
        assert rlplat.get(second, timeout=60) == -i
    assert outcomes == {"ran", "cancelled"}


def test_recursive_cancels_what_the_task_has_submitted(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(num_cpus=0)
    def child(name: str) -> None:
        try:
            write(log, f"{name} began")  # the interrupt may come from here on
            time.sleep(1000)
        finally:
            write(log, f"{name} ended")

    @rlplat.remote(num_cpus=0)
    def parent(name: str) -> None:
        refs = [child.remote(f"{name} child {i}") for i in range(2)]
        rlplat.get(refs)

    ref = parent.remote("a")
    assert soon(lambda: len(lines(log)) == 2)
    rlplat.cancel(ref)
    cancelled(ref)
    assert soon(lambda: len(lines(log)) == 4)

    ref = parent.remote("b")
    assert soon(lambda: len(lines(log)) == 6)
    rlplat.cancel(ref, recursive=False)
    cancelled(ref)
    time.sleep(0.2)
    assert sorted(lines(log)[4:]) == ["b child 0 began", "b child 1 began"]


def test_children_of_earlier_tasks_of_the_worker_live_on(cluster: None, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @rlplat.remote(num_cpus=0)
    def child() -> int:
        while not gate.exists():
            time.sleep(0.005)
        return 7

    @rlplat.remote(num_cpus=2)
    def submits() -> list:
        return [child.remote()]

    @rlplat.remote(num_cpus=2)
    def sleeps() -> None:
        write(log, "began")
        time.sleep(1000)

    (earlier,) = rlplat.get(submits.remote(), timeout=60)
    ref = sleeps.remote()
    assert soon(lambda: bool(lines(log)))
    rlplat.cancel(ref)
    cancelled(ref)
    gate.touch()
    assert rlplat.get(earlier, timeout=60) == 7


def test_a_borrower_cancels_through_the_owner(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(num_cpus=0)
    def sleeper() -> None:
        write(log, "began")
        time.sleep(1000)

    @rlplat.remote(num_cpus=0)
    def cancels(box: list) -> None:
        rlplat.cancel(box[0])

    ref = sleeper.remote()
    assert soon(lambda: bool(lines(log)))
    rlplat.get(cancels.remote([ref]), timeout=60)
    cancelled(ref)


# ---------------------------------------------------------------- actors


def test_calls_of_a_plain_actor_are_dropped_while_they_wait_and_go_on_while_they_run(
    cluster: None, tmp_path: Path
) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    class Actor:
        def run(self, x: int) -> int:
            write(log, x)
            while not gate.exists():
                time.sleep(0.005)
            return x

    actor = rlplat.remote(Actor).remote()
    refs = [actor.run.remote(i) for i in range(10)]
    assert soon(lambda: lines(log) == ["0"])
    for ref in refs[:5]:
        rlplat.cancel(ref)
    cancelled(*refs[1:5])
    with pytest.raises(ValueError, match=r"rlplat.kill"):
        rlplat.cancel(refs[5], force=True)
    gate.touch()
    assert rlplat.get([refs[0], *refs[5:]], timeout=60) == [0, 5, 6, 7, 8, 9]
    assert lines(log) == ["0", "5", "6", "7", "8", "9"]


def test_a_call_that_waits_for_an_argument_or_its_actor_is_dropped(cluster: None) -> None:
    @rlplat.remote
    def hang() -> int:
        time.sleep(1000)
        return 0

    class Actor:
        def add(self, x: int) -> int:
            return x + 1

    actor, late = rlplat.remote(Actor).remote(), hang.remote()
    waits, behind = actor.add.remote(late), actor.add.remote(1)
    rlplat.cancel(waits)
    cancelled(waits)
    assert rlplat.get(behind, timeout=60) == 2
    rlplat.cancel(late)

    nowhere = rlplat.remote(Actor).options(num_cpus=2).remote()
    other = rlplat.remote(Actor).options(num_cpus=2).remote()
    call = other.add.remote(1)
    assert rlplat.get(nowhere.add.remote(1), timeout=60) == 2
    rlplat.cancel(call)
    cancelled(call)


class Threads:
    def hold(self, began: str, gate: str) -> None:
        write(Path(began), "began")
        while not Path(gate).exists():
            time.sleep(0.005)

    def pair(self, x: Any) -> tuple[int, int]:
        return 1, 2

    def make(self, n: int) -> list:
        return [rlplat.put(i) for i in range(n)]


class Coroutines:
    async def hold(self, began: str, gate: str) -> None:
        write(Path(began), "began")
        while not Path(gate).exists():
            await asyncio.sleep(0.005)

    async def pair(self, x: Any) -> tuple[int, int]:
        return 1, 2

    async def make(self, n: int) -> list:
        return [rlplat.put(i) for i in range(n)]


@pytest.mark.parametrize(
    ("kind", "options", "num_running"),
    [
        (Threads, {"max_concurrency": 2}, 2),
        (Threads, {"concurrency_groups": {"io": 1}}, 1),
        (Coroutines, {"max_concurrency": 1}, 1),
    ],
)
def test_a_queued_call_of_several_values_is_dropped_with_its_arguments(
    cluster: None, tmp_path: Path, kind: type, options: dict[str, Any], num_running: int
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    actor: Any = rlplat.remote(kind).options(**options).remote()
    # An object of the actor's process: its value comes when that has read all that was sent to it before.
    fences = rlplat.get(actor.make.remote(1), timeout=60)
    running = [actor.hold.remote(str(began), str(gate)) for _ in range(num_running)]
    assert soon(lambda: len(lines(began)) == num_running)
    box = [rlplat.put("an argument")]
    id = box[0].id
    first, second = actor.pair.options(num_returns=2).remote(box)
    assert rlplat.get(fences, timeout=60) == [0]
    rlplat.cancel(first)
    cancelled(first, second)
    box.clear()
    assert soon(lambda: objects().book.find(id) is None)  # while the actor lives, and the call's refs do
    gate.touch()
    assert rlplat.get(running, timeout=60) == [None] * num_running


def test_a_coroutine_that_is_cancelled_before_its_first_step_gives_its_arguments_back(
    cluster: None, tmp_path: Path
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"

    class Blocked(Coroutines):
        async def block(self, began: str, gate: str) -> None:
            write(Path(began), "began")
            while not Path(gate).exists():
                time.sleep(0.005)  # the event loop sees the call and its cancel together, when this is over

    actor: Any = rlplat.remote(Blocked).remote()
    fences = rlplat.get(actor.make.remote(2), timeout=60)
    blocking = actor.block.remote(str(began), str(gate))
    assert soon(lambda: lines(began) == ["began"])
    box = [rlplat.put("an argument")]
    id = box[0].id
    first, second = actor.pair.options(num_returns=2).remote(box)
    assert rlplat.get(fences[0], timeout=60) == 0
    rlplat.cancel(first)
    assert rlplat.get(fences[1], timeout=60) == 1
    box.clear()
    gate.touch()
    assert rlplat.get(blocking, timeout=60) is None
    cancelled(first, second)
    assert soon(lambda: objects().book.find(id) is None)


def test_coroutines_are_cancelled_running_and_waiting(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Actor:
        async def run(self, x: int) -> None:
            write(log, f"{x} began")
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                write(log, f"{x} cancelled")
                raise

        async def swallow(self) -> str:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "not so fast"
            return "slept"

        async def ping(self) -> str:
            return "pong"

    actor = rlplat.remote(Actor).options(max_concurrency=3).remote()
    swallow = actor.swallow.remote()
    refs = [actor.run.remote(i) for i in range(4)]
    assert soon(lambda: len(lines(log)) == 2)
    for ref in reversed(refs):
        rlplat.cancel(ref)
    cancelled(*refs)
    assert sorted(lines(log)) == ["0 began", "0 cancelled", "1 began", "1 cancelled"]
    rlplat.cancel(swallow)
    assert rlplat.get(swallow, timeout=60) == "not so fast"
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


def test_a_cancelled_coroutine_cancels_what_it_awaits(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @rlplat.remote(num_cpus=0)
    def child(x: int) -> None:
        try:
            write(log, f"{x} began")  # the interrupt may come from here on
            time.sleep(1000)
        finally:
            write(log, f"{x} ended")

    class Actor:
        async def run(self) -> None:
            await asyncio.gather(*(child.remote(i) for i in range(2)))

    actor = rlplat.remote(Actor).remote()
    ref = actor.run.remote()
    assert soon(lambda: len(lines(log)) == 2)
    rlplat.cancel(ref)
    cancelled(ref)
    assert soon(lambda: len(lines(log)) == 4)

    ref = actor.run.remote()
    assert soon(lambda: len(lines(log)) == 6)
    rlplat.cancel(ref, recursive=False)
    cancelled(ref)
    time.sleep(0.1)
    assert len(lines(log)) == 6


def test_cancelling_a_stream_ends_it_behind_what_has_come(cluster: None) -> None:
    @rlplat.remote
    def slow() -> Iterator[int]:
        yield 0
        time.sleep(1000)
        yield 1

    generator = slow.remote()
    first = next(generator)
    rlplat.cancel(generator)
    (last,) = list(generator)
    assert rlplat.get(first) == 0
    cancelled(last)
