"""The in-process backend where it differs from processes, and where it must not."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import (
    ActorDied,
    DeadlineExceeded,
    PlacementGroupRemoved,
    RuntimeEnvFailed,
    TaskCancelled,
)
from rlplat.runtime.inproc import calls
from rlplat.runtime.refs import backend


@pytest.fixture(autouse=True)
def inproc() -> Iterator[None]:
    rlplat.init(num_cpus=2, num_gpus=0, backend="inproc")
    yield
    rlplat.shutdown()


@rlplat.remote
class Door:
    """An async actor."""

    async def pass_through(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def ask(self, other: list) -> Any:
        """`other`: [handle], which is asked by `await`, then by `get`."""
        first = await other[0].pass_through.remote(1)
        return first + rlplat.get(other[0].pass_through.remote(10))

    def thread(self) -> int:
        return threading.get_ident()

    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("in a coroutine")


@rlplat.remote
def add(a: int, b: int) -> int:
    return a + b


def test_a_sync_call_runs_in_the_callers_thread() -> None:
    @rlplat.remote
    def where() -> int:
        return threading.get_ident()

    assert rlplat.get(where.remote()) == threading.get_ident()


def test_a_coroutine_runs_to_its_end_in_the_callers_thread() -> None:
    door = Door.remote()
    refs = [door.pass_through.remote(i) for i in range(3)]
    assert rlplat.wait(refs, num_returns=2, timeout=0) == (refs[:2], refs[2:])
    assert rlplat.get(refs, timeout=0) == [0, 1, 2]
    assert rlplat.get(door.thread.remote()) == threading.get_ident()


def test_coroutines_ask_others_and_themselves() -> None:
    door, other = Door.remote(), Door.remote()
    assert rlplat.get(door.ask.remote([other])) == 11
    assert rlplat.get(door.ask.remote([door])) == 11

    async def main() -> list[int]:
        return list(await asyncio.gather(*(door.pass_through.remote(i) for i in range(3))))

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_coroutine_that_runs_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "_LONG_S", 0.01)
    rlplat.get(Door.remote().wait.remote(0.05))
    assert "Door.wait has run for 0.01 s: with backend='inproc' a coroutine runs to its end" in capfd.readouterr().err


def test_a_deadline_ends_a_coroutine_and_judges_a_task_at_its_end() -> None:
    @rlplat.remote(timeout_s=0.001)
    def slow() -> int:
        until = threading.Event()
        until.wait(0.01)
        return 1

    with pytest.raises(DeadlineExceeded, match=r"timeout_s=0\.001"):
        rlplat.get(slow.remote())
    with pytest.raises(DeadlineExceeded, match=r"Door\.wait"):
        rlplat.get(Door.remote().wait.options(timeout_s=0.01).remote(60), timeout=10)
    assert rlplat.get(add.options(timeout_s=60).remote(1, 2)) == 3


def test_a_generator_makes_each_value_when_it_is_asked_for() -> None:
    made: list[int] = []
    closed: list[str] = []

    @rlplat.remote(num_returns="streaming")
    def endless() -> Iterator[int]:
        try:
            while True:
                made.append(len(made))
                yield made[-1]
        finally:
            closed.append("closed")

    refs = endless.remote()
    assert made == []
    assert [rlplat.get(next(refs)) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(made) == 5
    ended = refs.completed()
    assert rlplat.wait([refs, ended], num_returns=2, timeout=0) == ([refs, ended], [])
    del refs
    gc.collect()
    add.remote(1, 1)
    assert closed == ["closed"]
    with pytest.raises(TaskCancelled):
        rlplat.get(ended)


def test_an_actor_may_be_called_between_the_values_of_its_generator() -> None:
    @rlplat.remote
    class Actor:
        def __init__(self) -> None:
            self.value = 0

        @rlplat.method(num_returns="streaming")
        def count(self, n: int) -> Iterator[int]:
            for i in range(n):
                yield i + self.value

        def set(self, value: int) -> None:
            self.value = value

    actor = Actor.remote()
    refs = actor.count.remote(3)
    assert rlplat.get(next(refs)) == 0
    actor.set.remote(10)
    assert [rlplat.get(ref) for ref in refs] == [11, 12]
    assert rlplat.get(refs.completed()) is None
    cancelled = actor.count.remote(3)
    rlplat.get(next(cancelled))
    rlplat.cancel(cancelled)
    with pytest.raises(TaskCancelled):
        rlplat.get(next(cancelled))
    with pytest.raises(StopIteration):
        next(cancelled)


def test_a_generator_has_a_deadline_too() -> None:
    @rlplat.remote(num_returns="streaming", timeout_s=0.05)
    def count() -> Iterator[int]:
        yield 1
        threading.Event().wait(0.06)
        yield 2

    refs = count.remote()
    assert [rlplat.get(next(refs)), rlplat.get(next(refs))] == [1, 2]
    with pytest.raises(DeadlineExceeded):
        rlplat.get(next(refs))


def test_the_environment_is_there_in_the_call_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "module_of_the_env.py").write_text("X = 5")

    @rlplat.remote(runtime_env={"env_vars": {"OF_THE_ENV": "1"}, "working_dir": str(tmp_path)})
    def look() -> tuple:
        import module_of_the_env

        return os.environ["OF_THE_ENV"], os.getcwd(), module_of_the_env.X

    before = os.getcwd(), list(sys.path)
    assert rlplat.get(look.remote()) == ("1", str(tmp_path), 5)
    assert (os.getcwd(), list(sys.path)) == before
    assert "OF_THE_ENV" not in os.environ
    del sys.modules["module_of_the_env"]


def test_packages_of_its_own_are_refused_in_words() -> None:
    with pytest.raises(RuntimeEnvFailed, match=r"add wants pip packages.*one process"):
        add.options(runtime_env={"pip": ["x"]}).remote(1, 2)


def test_kill_with_a_restart_runs_the_constructor_again() -> None:
    @rlplat.remote(max_restarts=1)
    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start

        def add(self) -> int:
            self.value += 1
            return self.value

    counter = Counter.remote(5)
    assert rlplat.get([counter.add.remote(), counter.add.remote()]) == [6, 7]
    backend().kill(counter, False)
    assert rlplat.get(counter.add.remote()) == 6
    backend().kill(counter, False)
    with pytest.raises(ActorDied):
        rlplat.get(counter.add.remote())


@rlplat.remote(num_cpus=1)
class Sitter:
    def where(self) -> tuple[str | None, str | None, str | None]:
        context = rlplat.get_runtime_context()
        return context.get_actor_id(), context.get_task_id(), context.get_placement_group_id()


def test_a_placement_group_is_there_at_once_and_counts_nothing() -> None:
    Sitter.remote(), Sitter.remote(), Sitter.remote()  # more than there are CPUs
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 1}])
    assert group.wait(0) and rlplat.get(group.ready()) == group
    sitters = [Sitter.options(placement_group=group).remote() for _ in range(3)]
    assert rlplat.get(sitters[1].where.remote())[2] == group.id
    rlplat.remove_placement_group(group)
    with pytest.raises(ActorDied, match="its placement group was removed"):
        rlplat.get(sitters[2].where.remote())
    with pytest.raises(PlacementGroupRemoved):
        Sitter.options(placement_group=group).remote()
    assert rlplat.placement_group_table(group)["state"] == "REMOVED"
