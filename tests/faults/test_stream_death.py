"""Workers that die in the middle of a stream: the retry skips what the owner has, and nothing is lost or doubled."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, TaskCancelled, WorkerCrashed
from rlplat.runtime.refs import backend
from tests.patience import dropped_generators_are_closed, soon


def write(path: Path, line: Any) -> None:
    with open(path, "a") as file:
        file.write(f"{line}\n")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def generator(log: Path, die_at: tuple[int, ...], large: bool = False) -> Any:
    """0, 1, 2, ...: attempt k dies when it is asked for value die_at[k]."""

    def numbers(n: int) -> Iterator[Any]:
        attempt = len(lines(log))
        write(log, os.getpid())
        for i in range(n):
            if attempt < len(die_at) and i == die_at[attempt]:
                time.sleep(0.01)  # what was yielded just now is on its way, or is not: both must be right
                os.kill(os.getpid(), signal.SIGKILL)
            yield np.full(20_000, i) if large else i

    return numbers


@pytest.mark.parametrize("window", [0, 1, 3, 64])
def test_a_generator_whose_worker_dies_goes_on_where_its_owner_is(cluster: None, tmp_path: Path, window: int) -> None:
    log = tmp_path / "log"
    task = rlplat.remote(generator(log, (5, 0, 17, 5))).options(max_retries=4, generator_backpressure=window)
    values = [rlplat.get(ref, timeout=60) for ref in task.remote(30)]
    assert values == list(range(30))
    assert len(lines(log)) == 5


def test_large_values_of_a_dead_attempt_stay(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    task = rlplat.remote(generator(log, (7,), large=True)).options(generator_backpressure=0)
    refs = list(task.remote(10))
    assert [int(rlplat.get(ref, timeout=60)[-1]) for ref in refs] == list(range(10))
    assert len(lines(log)) == 2


def test_a_generator_that_always_dies_gives_what_has_come_and_then_the_error(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    task = rlplat.remote(generator(log, (3, 3, 3))).options(max_retries=2)
    stream = task.remote(10)
    refs = list(stream)
    assert rlplat.get(refs[:-1]) == [0, 1, 2][: len(refs) - 1]
    for ref in (refs[-1], stream.completed()):
        with pytest.raises(WorkerCrashed, match=r"(?s)numbers.*no retries are left.*SIGKILL"):
            rlplat.get(ref, timeout=60)
    assert len(lines(log)) == 3


def test_a_dynamic_generator_is_whole_after_a_death(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    task = rlplat.remote(generator(log, (4, 6))).options(num_returns="dynamic")
    assert rlplat.get(list(rlplat.get(task.remote(9), timeout=60))) == list(range(9))
    assert len(lines(log)) == 3


def test_a_consumer_that_dies_closes_the_generator(cluster: None, tmp_path: Path) -> None:
    """Its owner is gone, so its worker is of no use to anybody."""
    log, made = tmp_path / "log", tmp_path / "made"

    def endless() -> Iterator[int]:
        write(log, os.getpid())
        i = 0
        while True:
            write(made, i)
            yield i
            i += 1

    class Consumer:
        def start(self) -> int:
            self.stream = rlplat.remote(endless).remote()
            next(self.stream)
            return os.getpid()

    consumer = rlplat.remote(Consumer).remote()
    pid = rlplat.get(consumer.start.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not os.path.exists(f"/proc/{lines(log)[0]}"), 60)


class Source:
    """Streams without end."""

    def count(self) -> Iterator[int]:
        yield from itertools.count()

    def hold(self, gate: Path) -> None:
        gate.read_text()

    def hear(self, dead: str) -> bool:
        return soon(lambda: dead in backend().objects.dead)  # type: ignore[attr-defined]

    def ping(self) -> str:
        return "pong"


class AsyncSource:
    async def count(self) -> AsyncIterator[int]:
        for i in itertools.count():
            yield i

    async def ping(self) -> str:
        return "pong"


BESIDE = {"concurrency_group": "beside"}


class Consumer:
    def take_one(self, source: Any) -> int:
        self.stream = source.count.remote()
        next(self.stream)
        return os.getpid()

    def call(self, source: Any) -> tuple[int, str]:
        self.stream = source.count.remote()
        rlplat.get(source.ping.options(**BESIDE).remote(), timeout=60)  # the call before it has arrived too
        return os.getpid(), backend().client_id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "options"),
    [(Source, {}), (Source, {"concurrency_groups": {"beside": 1}}), (AsyncSource, {"max_concurrency": 1})],
    ids=["plain", "threads", "async"],
)
def test_an_actor_goes_on_when_the_consumer_of_its_stream_dies(
    cluster: None, source: type, options: dict[str, Any]
) -> None:
    """Its only thread, or its only place for a coroutine, was the stream's."""
    actor, consumer = rlplat.remote(source).options(**options).remote(), rlplat.remote(Consumer).remote()
    os.kill(rlplat.get(consumer.take_one.remote(actor), timeout=60), signal.SIGKILL)
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


def test_a_stream_whose_consumer_died_before_it_began_takes_no_thread(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    actor = rlplat.remote(Source).options(concurrency_groups={"beside": 1}).remote()
    held = actor.hold.remote(gate)
    consumer = rlplat.remote(Consumer).remote()
    pid, dead = rlplat.get(consumer.call.remote(actor), timeout=60)
    os.kill(pid, signal.SIGKILL)
    assert rlplat.get(actor.hear.options(**BESIDE).remote(dead), timeout=60)
    gate.write_text("")
    rlplat.get(held, timeout=60)
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


def test_a_dropped_generator_whose_actor_restarts_does_not_run_again(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Slow:
        def count(self) -> Iterator[int]:
            write(log, os.getpid())
            yield 0
            if len(lines(log)) == 1:
                time.sleep(600)  # it dies while it makes this value
            yield from itertools.count()

        def ping(self) -> str:
            return "pong"

    actor = rlplat.remote(Slow).options(max_restarts=1, max_task_retries=1).remote()
    stream = actor.count.remote()
    assert rlplat.get(next(stream), timeout=60) == 0
    end = stream.completed()
    del stream
    assert soon(dropped_generators_are_closed)
    os.kill(int(lines(log)[0]), signal.SIGKILL)
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"
    with pytest.raises(ActorDied, match="SIGKILL"):
        rlplat.get(end, timeout=60)
    assert len(lines(log)) == 1


def test_a_dropped_generator_whose_worker_dies_does_not_run_again(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def count() -> Iterator[int]:
        write(log, os.getpid())
        yield 0
        if len(lines(log)) == 1:
            time.sleep(600)
        yield from itertools.count()

    stream = rlplat.remote(count).options(max_retries=3).remote()
    assert rlplat.get(next(stream), timeout=60) == 0
    end = stream.completed()
    del stream
    assert soon(dropped_generators_are_closed)
    os.kill(int(lines(log)[0]), signal.SIGKILL)
    with pytest.raises(TaskCancelled, match=r"nobody reads .*count any more"):
        rlplat.get(end, timeout=60)
    assert len(lines(log)) == 1


def test_an_actor_killed_in_a_stream_ends_it_behind_what_has_come(cluster: None) -> None:
    class Actor:
        def run(self, n: int) -> Iterator[int]:
            for i in range(n):
                if i == 4:
                    time.sleep(0.05)
                    os.kill(os.getpid(), signal.SIGKILL)
                yield i

    refs = list(rlplat.remote(Actor).remote().run.remote(10))
    assert rlplat.get(refs[:-1]) == list(range(4))[: len(refs) - 1]
    with pytest.raises(ActorDied, match="SIGKILL"):
        rlplat.get(refs[-1], timeout=60)


def test_a_stream_of_an_actor_that_restarts_goes_on_where_its_owner_is(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    numbers = generator(log, (5, 3))

    class Actor:
        def run(self, n: int) -> Iterator[int]:
            yield from numbers(n)

    actor = rlplat.remote(Actor).options(max_restarts=2, max_task_retries=2).remote()
    assert [rlplat.get(ref, timeout=60) for ref in actor.run.remote(20)] == list(range(20))
    assert len(lines(log)) == 3
