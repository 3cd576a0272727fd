"""The in-process backend where it differs from processes, and where it must not."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import (
    ActorDied,
    DeadlineExceeded,
    GetTimeout,
    InfeasibleResources,
    RuntimeEnvFailed,
    RuntimeFault,
    TaskCancelled,
    UsageError,
)
from rlplat.runtime.refs import backend


@pytest.fixture(autouse=True)
def inproc() -> Iterator[None]:
    rlplat.init(num_cpus=2, num_gpus=0, backend="inproc")
    yield
    rlplat.shutdown()


@rlplat.remote
class Door:
    """An async actor whose calls wait for each other."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def pass_through(self, value: Any) -> Any:
        await self.opened.wait()
        return value

    async def open(self) -> None:
        self.opened.set()

    def thread(self) -> str:
        return threading.current_thread().name

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


def test_coroutines_run_at_once_and_values_come_late() -> None:
    door = Door.remote()
    waiting = [door.pass_through.remote(i) for i in range(50)]
    assert rlplat.wait(waiting, timeout=0) == ([], waiting)
    with pytest.raises(GetTimeout, match=r"1 of 1 values are missing, first Door\.pass_through"):
        rlplat.get(waiting[0], timeout=0.01)
    door.open.remote()
    assert rlplat.get(waiting) == list(range(50))
    assert rlplat.get(door.thread.remote()) == "rlplat-inproc-loop"


def test_a_coroutines_exception_arrives() -> None:
    with pytest.raises(ValueError, match="in a coroutine"):
        rlplat.get(Door.remote().fail.remote())


def test_the_driver_awaits_calls_that_wait_for_each_other() -> None:
    async def main() -> list[int]:
        door = Door.remote()

        async def one(i: int) -> Any:
            return await door.pass_through.remote(i)

        passing = asyncio.gather(*(one(i) for i in range(5)))
        await door.open.remote()
        return await passing

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_coroutines_await_tasks_and_other_actors() -> None:
    @rlplat.remote
    class Asker:
        async def ask(self, box: list) -> int:
            first = box[0].pass_through.remote(1)
            await box[0].open.remote()
            return await add.remote(await first, 10)

    assert rlplat.get(Asker.remote().ask.remote([Door.remote()])) == 11


def test_a_task_and_an_actor_wait_for_a_late_argument() -> None:
    @rlplat.remote
    class Log:
        def __init__(self) -> None:
            self.items: list[int] = []

        def add(self, item: int) -> list[int]:
            self.items.append(item)
            return self.items

    door, log = Door.remote(), Log.remote()
    late = door.pass_through.remote(1)
    total = add.remote(late, 1)
    log.add.remote(late)
    seen = log.add.remote(2)
    assert rlplat.wait([total, seen], timeout=0)[0] == []
    door.open.remote()
    assert rlplat.get(total) == 2
    assert rlplat.get(seen) == [1, 2]
    assert rlplat.get(log.add.remote(3)) == [1, 2, 3]


def test_an_actor_made_of_a_late_argument() -> None:
    @rlplat.remote
    class Holder:
        def __init__(self, value: int) -> None:
            self.value = value

        def read(self) -> int:
            return self.value

    door = Door.remote()
    holder = Holder.remote(door.pass_through.remote(5))
    value = holder.read.remote()
    door.open.remote()
    assert rlplat.get(value) == 5


def test_a_coroutine_that_blocks_is_told_to_await() -> None:
    @rlplat.remote
    class Blocker:
        async def block(self, box: list) -> Any:
            return rlplat.get(box[0].pass_through.remote(1))

    with pytest.raises(RuntimeFault, match="await ref"):
        rlplat.get(Blocker.remote().block.remote([Door.remote()]))


def test_concurrency_is_bounded_by_max_concurrency_and_by_group() -> None:
    @rlplat.remote(concurrency_groups={"one": 1}, max_concurrency=3)
    class Counting:
        def __init__(self) -> None:
            self.inside = self.most = 0

        async def visit(self) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.001)
            self.inside -= 1
            return self.most

        @rlplat.method(concurrency_group="one")
        async def alone(self) -> int:
            return await self.visit()

    assert max(rlplat.get([Counting.remote().visit.remote()])) == 1
    actor = Counting.remote()
    assert max(rlplat.get([actor.visit.remote() for _ in range(10)])) == 3
    actor = Counting.remote()
    assert max(rlplat.get([actor.alone.remote() for _ in range(5)])) == 1
    with pytest.raises(UsageError, match=r"no concurrency group 'two' in this actor \(its groups: 'one'\)"):
        actor.visit.options(concurrency_group="two").remote()


def test_cancel_ends_a_coroutine_and_leaves_what_has_finished() -> None:
    door = Door.remote()
    waiting, done = door.pass_through.remote(1), add.remote(1, 2)
    rlplat.get(door.thread.remote())
    backend().cancel(waiting, False, True)
    backend().cancel(done, False, True)
    with pytest.raises(TaskCancelled, match=r"Door\.pass_through"):
        rlplat.get(waiting, timeout=10)
    assert rlplat.get(done) == 3
    late = add.remote(door.pass_through.remote(1), 1)
    backend().cancel(late, False, True)
    with pytest.raises(TaskCancelled):
        rlplat.get(late, timeout=10)


def test_a_deadline_ends_a_coroutine_and_judges_a_task_at_its_end() -> None:
    @rlplat.remote(timeout_s=0.001)
    def slow() -> int:
        until = threading.Event()
        until.wait(0.01)
        return 1

    with pytest.raises(DeadlineExceeded, match=r"timeout_s=0\.001"):
        rlplat.get(slow.remote())
    with pytest.raises(DeadlineExceeded, match=r"Door\.pass_through"):
        rlplat.get(Door.remote().pass_through.options(timeout_s=0.01).remote(1), timeout=10)
    assert rlplat.get(add.options(timeout_s=60).remote(1, 2)) == 3


def test_generators_run_ahead_as_far_as_their_window() -> None:
    made: list[int] = []

    @rlplat.remote(num_returns="streaming", generator_backpressure=3)
    def endless() -> Iterator[int]:
        i = 0
        while True:
            made.append(i)
            yield i
            i += 1

    refs = endless.remote()
    assert made == [0, 1, 2]
    assert [rlplat.get(next(refs)) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(made) == 8
    assert rlplat.wait([refs.completed()], timeout=0)[0] == []
    ended = refs.completed()
    del refs
    gc.collect()
    rlplat.put(0)
    add.remote(1, 1)
    with pytest.raises(TaskCancelled):
        rlplat.get(ended, timeout=5)


def test_a_generators_exception_is_its_last_value() -> None:
    @rlplat.remote(num_returns="streaming")
    def two() -> Iterator[int]:
        yield 1
        raise ValueError("then this")

    first, second = two.remote()
    assert rlplat.get(first) == 1
    with pytest.raises(ValueError, match="then this"):
        rlplat.get(second)


def test_a_generator_of_an_actor_holds_the_actor() -> None:
    @rlplat.remote
    class Actor:
        @rlplat.method(num_returns="streaming", generator_backpressure=2)
        def count(self, n: int) -> Iterator[int]:
            yield from range(n)

        def f(self) -> int:
            return 7

    actor = Actor.remote()
    refs = actor.count.remote(10)
    with pytest.raises(
        RuntimeFault, match=r"count of this actor has more values to come.*take \(or drop\) them"
    ):
        actor.f.remote()
    assert [rlplat.get(ref) for ref in refs] == list(range(10))
    assert rlplat.get(actor.f.remote()) == 7
    refs = actor.count.remote(10)
    del refs
    gc.collect()
    assert rlplat.get(actor.f.remote()) == 7


def test_a_generator_that_was_dropped_before_it_could_begin() -> None:
    closed: list[str] = []

    @rlplat.remote
    class Actor:
        @rlplat.method(num_returns="streaming", generator_backpressure=1)
        def count(self, first: int) -> Iterator[int]:
            try:
                while True:
                    yield first
            finally:
                closed.append("closed")

        def f(self) -> int:
            return 7

    actor, door = Actor.remote(), Door.remote()
    refs = actor.count.remote(door.pass_through.remote(1))
    del refs
    gc.collect()
    seen = actor.f.remote()
    door.open.remote()
    assert rlplat.get(seen, timeout=10) == 7
    refs = actor.count.remote(door.pass_through.remote(1))
    assert rlplat.get(next(refs)) == 1
    backend().cancel(refs.completed(), False, True)
    assert closed == ["closed"]
    assert isinstance(rlplat.get(next(refs)), int)
    with pytest.raises(TaskCancelled):
        rlplat.get(next(refs))


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


def test_async_generators() -> None:
    @rlplat.remote
    class Actor:
        @rlplat.method(num_returns="streaming", generator_backpressure=2)
        async def count(self, n: int) -> AsyncIterator[int]:
            for i in range(n):
                await asyncio.sleep(0)
                yield i

    actor = Actor.remote()
    assert [rlplat.get(ref) for ref in actor.count.remote(10)] == list(range(10))

    async def main() -> list[int]:
        return [await ref async for ref in actor.count.remote(5)]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_dynamic_returns_are_one_ref_of_refs() -> None:
    @rlplat.remote(num_returns="dynamic")
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    refs = rlplat.get(count.remote(100))
    assert len(refs) == 100
    assert rlplat.get(list(refs)) == list(range(100))


def test_retries_are_for_the_exceptions_that_were_named() -> None:
    tries: list[int] = []

    @rlplat.remote(max_retries=2, retry_exceptions=[ValueError])
    def fail(until: int, kind: type) -> int:
        tries.append(1)
        if len(tries) <= until:
            raise kind("not yet")
        return len(tries)

    assert rlplat.get(fail.remote(2, ValueError)) == 3
    tries.clear()
    with pytest.raises(ValueError, match="not yet"):
        rlplat.get(fail.remote(9, ValueError))
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(KeyError):
        rlplat.get(fail.remote(1, KeyError))
    assert len(tries) == 1


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
    with pytest.raises(RuntimeEnvFailed, match="async actor with a runtime_env"):
        Door.options(runtime_env={"env_vars": {"A": "1"}}).remote()


def test_names_count_in_their_namespace() -> None:
    here = Door.options(name="door").remote()
    there = Door.options(name="door", namespace="other").remote()
    assert rlplat.get_actor("door") == here
    assert rlplat.get_actor("door", namespace="other") == there
    assert Door.options(name="door", get_if_exists=True).remote() == here
    assert sorted(backend().actor_names(True)) == [("", "door"), ("other", "door")]


def test_a_detached_actor_outlives_its_handles() -> None:
    Door.options(name="stays", lifetime="detached").remote()
    gc.collect()
    rlplat.put(0)
    door = rlplat.get_actor("stays")
    assert rlplat.get(door.thread.remote())
    rlplat.kill(door)
    with pytest.raises(ActorDied):
        rlplat.get(door.thread.remote())
    with pytest.raises((ActorDied, ValueError)):
        rlplat.get_actor("stays")


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


def test_exit_actor_ends_the_actor_of_the_call() -> None:
    @rlplat.remote
    class Quitter:
        def quit(self) -> None:
            backend().exit_actor()

        def f(self) -> int:
            return 1

    @rlplat.remote
    class AsyncQuitter(Quitter.__dict__["_code"].target):  # type: ignore[misc, name-defined]
        async def quit(self) -> None:
            backend().exit_actor()

    for made in (Quitter, AsyncQuitter):
        quitter = made.remote()
        for ref in (quitter.quit.remote(), quitter.f.remote()):
            with pytest.raises(ActorDied, match="exit_actor"):
                rlplat.get(ref)
    with pytest.raises(TypeError, match="none"):
        backend().exit_actor()


@rlplat.remote(num_cpus=1)
class Sitter:
    def where(self) -> tuple[str | None, str | None, str | None]:
        context = rlplat.get_runtime_context()
        return context.get_actor_id(), context.get_task_id(), context.get_placement_group_id()


def test_a_placement_group_waits_for_resources_and_gives_them_to_its_actors() -> None:
    holder = Sitter.remote()
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 1}])
    ready = group.ready()
    assert not group.wait(0.01)
    with pytest.raises(InfeasibleResources, match="waits for resources; the inproc backend cannot wait"):
        Sitter.options(placement_group=group).remote()
    rlplat.kill(holder)
    assert rlplat.get(ready, timeout=1) == group
    assert rlplat.available_resources()["CPU"] == 0
    sitters = [Sitter.options(placement_group=group).remote() for _ in range(2)]
    assert rlplat.get(sitters[1].where.remote())[2] == group.id
    with pytest.raises(InfeasibleResources, match="other actors hold it"):
        Sitter.options(placement_group=group, placement_group_bundle_index=1).remote()
    rlplat.kill(sitters[1])
    again = Sitter.options(placement_group=group, placement_group_bundle_index=1).remote()
    rlplat.remove_placement_group(group)
    with pytest.raises(ActorDied, match="its placement group was removed"):
        rlplat.get(again.where.remote())
    assert rlplat.available_resources()["CPU"] == 2
    assert rlplat.placement_group_table(group)["state"] == "REMOVED"


def test_a_group_that_can_never_be_is_an_error() -> None:
    for bundles, strategy in (([{"CPU": 1}, {"CPU": 2}], "PACK"), ([{"CPU": 1}] * 2, "STRICT_SPREAD")):
        with pytest.raises(InfeasibleResources):
            rlplat.get(rlplat.placement_group(bundles, strategy).ready())
    assert rlplat.available_resources()["CPU"] == 2


def test_the_context_knows_the_actor_and_the_task() -> None:
    sitter = Sitter.remote()
    first, second = (rlplat.get(sitter.where.remote()) for _ in range(2))
    assert first[0] == second[0] == sitter._actor_id
    assert first[1] != second[1]
    assert rlplat.get_runtime_context().get_task_id() is None


def test_shutdown_with_coroutines_under_way() -> None:
    door = Door.remote()
    waiting = door.pass_through.remote(1)
    rlplat.shutdown()
    rlplat.init(num_cpus=1, backend="inproc")
    with pytest.raises(UsageError, match="shut down"):
        rlplat.get(waiting)
    # The leak meter looks for the thread.
