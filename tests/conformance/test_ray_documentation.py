"""What the pages of Ray's documentation promise, page by page (docs.ray.io/en/latest/ray-core/...)."""

# ruff: noqa: UP028  Ray 2.60 stumbles over `yield from` in remote generators

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, ConfigError, TaskCancelled, TaskError, WorkerCrashed
from tests.patience import soon

# ---------------------------------------------------------------- ray-generator


def test_a_generator_function_streams_without_being_asked(backend: str) -> None:
    """ray-generator, "Getting started": "define a Python generator function and decorate it"."""

    @rlplat.remote
    def count(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    refs = count.remote(4)
    assert isinstance(refs, rlplat.ObjectRefGenerator)
    assert [rlplat.get(ref) for ref in refs] == [0, 1, 2, 3]


def test_next_gives_a_ref_and_the_end_is_stop_iteration(backend: str) -> None:
    """ray-generator, "Getting started"."""

    @rlplat.remote
    def two() -> Iterator[int]:
        yield 1
        yield 2

    refs = two.remote()
    assert [rlplat.get(next(refs)), rlplat.get(next(refs))] == [1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(refs)


def test_an_exception_in_a_generator_is_the_error_of_the_next_ref(backend: str) -> None:
    """ray-generator, "Error handling": refs ahead of it stay good; the error ends the generator."""

    @rlplat.remote
    def half() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    refs = half.remote()
    first, second = next(refs), next(refs)
    assert rlplat.get(first) == 1
    with pytest.raises(ValueError, match="the second"):
        rlplat.get(second)
    with pytest.raises(StopIteration):
        next(refs)


def test_actor_methods_may_be_generators(backend: str) -> None:
    """ray-generator, "Generator from Actor Tasks"."""

    @rlplat.remote
    class Actor:
        def count(self, n: int) -> Iterator[int]:
            for i in range(n):
                yield i

    actor = Actor.remote()
    assert [rlplat.get(ref) for ref in actor.count.remote(3)] == [0, 1, 2]
    assert [rlplat.get(ref) for ref in actor.count.remote(2)] == [0, 1]


def test_async_actor_methods_may_be_generators(backend: str) -> None:
    """ray-generator, "Generator from Actor Tasks": async actors."""

    @rlplat.remote
    class Actor:
        async def count(self, n: int) -> AsyncIterator[int]:
            for i in range(n):
                await asyncio.sleep(0)
                yield i

    actor = Actor.remote()
    assert [rlplat.get(ref) for ref in actor.count.remote(3)] == [0, 1, 2]


def test_generators_in_asyncio(backend: str) -> None:
    """ray-generator, "Using the Ray generator with asyncio"."""

    @rlplat.remote
    def count(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    async def main() -> list[int]:
        return [await ref async for ref in count.remote(3)]

    assert asyncio.run(main()) == [0, 1, 2]


def test_completed_is_ready_at_the_end(backend: str) -> None:
    """ray-generator, "Generator API": `completed()`."""

    @rlplat.remote
    def count(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    refs = count.remote(3)
    rlplat.get(refs.completed(), timeout=60)
    assert [rlplat.get(ref) for ref in refs] == [0, 1, 2]


def test_yielded_refs_can_be_passed_on(backend: str) -> None:
    """ray-generator: the refs are refs like any other."""

    @rlplat.remote
    def count(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    @rlplat.remote
    def double(x: int) -> int:
        return 2 * x

    assert rlplat.get([double.remote(ref) for ref in count.remote(4)]) == [0, 2, 4, 6]


def test_a_number_of_returns_takes_that_many_values_of_a_generator(backend: str) -> None:
    """tasks/generators, "num_returns set by the task caller"."""

    @rlplat.remote(num_returns=3)
    def three() -> Iterator[int]:
        for i in range(3):
            yield i

    assert rlplat.get(three.remote()) == [0, 1, 2]


def test_dynamic_returns_are_a_ref_of_refs(backend: str) -> None:
    """tasks/generators, "num_returns set by the task executor"."""

    @rlplat.remote(num_returns="dynamic")
    def split(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    outer = split.remote(5)
    assert isinstance(outer, rlplat.ObjectRef)
    assert [rlplat.get(ref) for ref in rlplat.get(outer)] == [0, 1, 2, 3, 4]


def test_dynamic_returns_can_be_passed_to_a_task(backend: str) -> None:
    """tasks/generators, "num_returns set by the task executor": pass the outer ref."""

    @rlplat.remote(num_returns="dynamic")
    def split(n: int) -> Iterator[int]:
        for i in range(n):
            yield i

    @rlplat.remote
    def total(refs: Any) -> int:
        return sum(rlplat.get(ref) for ref in refs)

    assert rlplat.get(total.remote(split.remote(5))) == 10


# ---------------------------------------------------------------- actors/async_api


@rlplat.remote
class Meeting:
    """actors/async_api, "AsyncIO for Actors": the page's own example."""

    def __init__(self, expected: int) -> None:
        self.event = asyncio.Event()
        self.here, self.expected = 0, expected

    async def join(self) -> int:
        self.here += 1
        if self.here == self.expected:
            self.event.set()
        await self.event.wait()
        return self.here


@pytest.mark.beside("coroutines")
def test_calls_of_an_async_actor_overlap(backend: str) -> None:
    """actors/async_api, "AsyncIO for Actors"."""
    meeting = Meeting.remote(20)
    assert rlplat.get([meeting.join.remote() for _ in range(20)], timeout=60) == [20] * 20


@pytest.mark.beside("coroutines")
def test_a_handful_of_calls_may_run_at_once(backend: str) -> None:
    """actors/async_api, "Setting concurrency in Async Actors": max_concurrency."""

    @rlplat.remote
    class Actor:
        def __init__(self) -> None:
            self.inside = self.most = 0

        async def visit(self) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.005)
            self.inside -= 1
            return self.most

    actor = Actor.options(max_concurrency=2).remote()
    assert max(rlplat.get([actor.visit.remote() for _ in range(12)])) == 2


def test_refs_are_awaited_inside_an_async_actor(backend: str) -> None:
    """actors/async_api, "ObjectRefs as asyncio.Futures"."""

    @rlplat.remote
    def double(x: int) -> int:
        return 2 * x

    @rlplat.remote
    class Actor:
        async def ask(self, n: int) -> list[int]:
            return list(await asyncio.gather(*(self.one(i) for i in range(n))))

        async def one(self, i: int) -> int:
            return await double.remote(i)

    assert rlplat.get(Actor.remote().ask.remote(5), timeout=60) == [0, 2, 4, 6, 8]


def test_sync_methods_of_an_async_actor_can_be_called(backend: str) -> None:
    """actors/async_api: sync methods run on the same loop, and block it."""

    @rlplat.remote
    class Actor:
        async def coroutine(self) -> int:
            return threading.get_ident()

        def plain(self) -> int:
            return threading.get_ident()

    actor = Actor.remote()
    assert len(set(rlplat.get([actor.coroutine.remote(), actor.plain.remote()]))) == 1


@pytest.mark.beside("coroutines")
def test_concurrency_groups_bound_their_own_calls(backend: str) -> None:
    """actors/concurrency_group_api, "Defining Concurrency Groups" and "the default group"."""

    @rlplat.remote(concurrency_groups={"io": 2, "compute": 1})
    class Actor:
        def __init__(self) -> None:
            self.inside: dict[str, int] = {}
            self.most: dict[str, int] = {}

        async def visit(self, group: str) -> int:
            self.inside[group] = self.inside.get(group, 0) + 1
            self.most[group] = max(self.most.get(group, 0), self.inside[group])
            await asyncio.sleep(0.005)
            self.inside[group] -= 1
            return self.most[group]

        @rlplat.method(concurrency_group="io")
        async def io(self) -> int:
            return await self.visit("io")

        @rlplat.method(concurrency_group="compute")
        async def compute(self) -> int:
            return await self.visit("compute")

    actor = Actor.remote()
    assert max(rlplat.get([actor.io.remote() for _ in range(8)])) == 2
    assert max(rlplat.get([actor.compute.remote() for _ in range(4)])) == 1
    assert max(rlplat.get([actor.io.options(concurrency_group="compute").remote() for _ in range(4)])) <= 2


@pytest.mark.beside("coroutines")
def test_one_groups_calls_do_not_hold_back_anothers(backend: str) -> None:
    """actors/concurrency_group_api."""

    @rlplat.remote(concurrency_groups={"waiting": 1, "waking": 1})
    class Actor:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        @rlplat.method(concurrency_group="waiting")
        async def wait(self) -> str:
            await self.event.wait()
            return "woken"

        @rlplat.method(concurrency_group="waking")
        async def wake(self) -> None:
            self.event.set()

    actor = Actor.remote()
    ref = actor.wait.remote()
    actor.wake.remote()
    assert rlplat.get(ref, timeout=60) == "woken"


def test_threads_of_an_actor(cluster: None) -> None:
    """actors/async_api, "Threaded Actors"."""

    @rlplat.remote(max_concurrency=3)
    class Actor:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(3)

        def meet(self) -> int:
            self.barrier.wait(60)
            return threading.get_ident()

    actor = Actor.remote()
    assert len(set(rlplat.get([actor.meet.remote() for _ in range(3)]))) == 3


# ---------------------------------------------------------------- actors/named-actors, actors/terminating-actors


def test_a_named_actor_is_found_by_name(backend: str) -> None:
    """actors/named-actors."""

    @rlplat.remote
    class Actor:
        def f(self) -> int:
            return 1

    actor = Actor.options(name="doc_found").remote()
    assert rlplat.get(rlplat.get_actor("doc_found").f.remote()) == 1
    assert rlplat.get_actor("doc_found") == actor


def test_an_unknown_name_and_a_taken_one(backend: str) -> None:
    """actors/named-actors; `get_actor`: "raises ValueError if the named actor does not exist"."""

    @rlplat.remote
    class Actor:
        def f(self) -> int:
            return 1

    with pytest.raises((ValueError, ActorDied)):
        rlplat.get_actor("doc_nobody")
    first = Actor.options(name="doc_taken").remote()
    rlplat.get(first.f.remote())
    with pytest.raises((ValueError, ConfigError)):
        Actor.options(name="doc_taken").remote()


def test_get_if_exists(backend: str) -> None:
    """actors/named-actors, "Get-Or-Create a Named Actor"."""

    @rlplat.remote
    class Greeter:
        def __init__(self, value: str) -> None:
            self.value = value

        def say(self) -> str:
            return self.value

    first = Greeter.options(name="doc_g1", get_if_exists=True).remote("first")
    assert rlplat.get(first.say.remote()) == "first"
    second = Greeter.options(name="doc_g1", get_if_exists=True).remote("second")
    assert rlplat.get(second.say.remote()) == "first"


def test_names_belong_to_a_namespace(backend: str) -> None:
    """namespaces, "Specifying namespace for named actors"."""

    @rlplat.remote
    class Actor:
        def where(self) -> str:
            return "there"

    actor = Actor.options(name="doc_spaced", namespace="doc_colors").remote()
    rlplat.get(actor.where.remote())
    with pytest.raises((ValueError, ActorDied)):
        rlplat.get_actor("doc_spaced")
    assert rlplat.get(rlplat.get_actor("doc_spaced", namespace="doc_colors").where.remote()) == "there"


def test_a_detached_actor_outlives_its_handles(backend: str) -> None:
    """actors/named-actors, "Actor Lifetimes"."""

    @rlplat.remote
    class Actor:
        def f(self) -> int:
            return 1

    actor = Actor.options(name="doc_detached", lifetime="detached").remote()
    rlplat.get(actor.f.remote())
    del actor
    gc.collect()
    actor = rlplat.get_actor("doc_detached")
    assert rlplat.get(actor.f.remote()) == 1
    rlplat.kill(actor)


def test_exit_actor_ends_the_actor_and_its_own_call(backend: str) -> None:
    """actors/terminating-actors, "Manual termination within the actor"."""

    @rlplat.remote
    class Actor:
        def exit(self) -> None:
            rlplat.exit_actor()

        def f(self) -> int:
            return 1

    actor = Actor.remote()
    assert rlplat.get(actor.f.remote()) == 1
    with pytest.raises(ActorDied):
        rlplat.get(actor.exit.remote())
    with pytest.raises(ActorDied):
        rlplat.get(actor.f.remote())


def test_exit_actor_outside_an_actor_is_an_error(backend: str) -> None:
    """`exit_actor`: "TypeError: if not called within an actor"."""
    with pytest.raises(TypeError):
        rlplat.exit_actor()


def test_kill_is_at_once_and_final(backend: str) -> None:
    """actors/terminating-actors, "Manual termination via an actor handle"."""

    @rlplat.remote
    class Actor:
        def f(self) -> int:
            return 1

    actor = Actor.remote()
    rlplat.get(actor.f.remote())
    rlplat.kill(actor)
    with pytest.raises(ActorDied):
        rlplat.get(actor.f.remote())


# ---------------------------------------------------------------- fault_tolerance/tasks and /actors


def test_retry_exceptions_true_retries_any(backend: str, tmp_path: Any) -> None:
    """fault_tolerance/tasks, "Retrying failed tasks": max_retries counts attempts after the first."""
    path = str(tmp_path / "tries")

    @rlplat.remote(max_retries=2, retry_exceptions=True)
    def fail() -> None:
        with open(path, "a") as file:
            file.write("x")
        raise ValueError("every time")

    with pytest.raises(ValueError, match="every time"):
        rlplat.get(fail.remote())
    assert (tmp_path / "tries").read_text() == "xxx"


def test_retry_exceptions_list_retries_those_only(backend: str, tmp_path: Any) -> None:
    """fault_tolerance/tasks, "Retrying failed tasks": a list of exception classes (subclasses included)."""
    path = str(tmp_path / "tries")

    @rlplat.remote(max_retries=5, retry_exceptions=[LookupError])
    def fail(kind: type) -> int:
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 3:
            raise kind("again")
        return os.path.getsize(path)

    assert rlplat.get(fail.remote(KeyError)) == 3
    os.unlink(path)
    with pytest.raises(ValueError):
        rlplat.get(fail.remote(ValueError))
    assert os.path.getsize(path) == 1


def test_a_dying_worker_is_retried_up_to_max_retries(cluster: None, tmp_path: Any) -> None:
    """fault_tolerance/tasks, "Retrying failed tasks"."""
    path = str(tmp_path / "tries")

    @rlplat.remote(max_retries=1)
    def die(until: int) -> int:
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) <= until:
            os._exit(1)
        return os.path.getsize(path)

    assert rlplat.get(die.remote(1), timeout=60) == 2
    os.unlink(path)
    with pytest.raises(WorkerCrashed):
        rlplat.get(die.options(max_retries=0).remote(9), timeout=60)
    assert os.path.getsize(path) == 1


def test_max_restarts_runs_the_constructor_again(cluster: None) -> None:
    """fault_tolerance/actors, "Actor process failure": state is that of a new instance."""

    @rlplat.remote(max_restarts=1)
    class Actor:
        def __init__(self) -> None:
            self.calls = 0

        def count(self) -> int:
            self.calls += 1
            return self.calls

        def die(self) -> None:
            os._exit(1)

    actor = Actor.remote()
    assert rlplat.get([actor.count.remote(), actor.count.remote()]) == [1, 2]
    with pytest.raises(ActorDied):
        rlplat.get(actor.die.remote(), timeout=60)
    assert _again(actor.count) == 1
    with pytest.raises(ActorDied):
        rlplat.get(actor.die.remote(), timeout=60)
    with pytest.raises(ActorDied):
        rlplat.get(actor.count.remote(), timeout=60)


def _again(method: Any) -> Any:
    """A call that may come while its actor restarts."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return rlplat.get(method.remote(), timeout=60)
        except ActorDied:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def test_max_task_retries_runs_a_lost_call_again(cluster: None, tmp_path: Any) -> None:
    """fault_tolerance/actors, "at-least-once"."""
    path = str(tmp_path / "died")

    @rlplat.remote(max_restarts=1, max_task_retries=1)
    class Actor:
        def die_once(self) -> str:
            if not os.path.exists(path):
                open(path, "w").close()
                os._exit(1)
            return "the second time"

    assert rlplat.get(Actor.remote().die_once.remote(), timeout=60) == "the second time"


def test_kill_without_no_restart_restarts(cluster: None) -> None:
    """`kill(no_restart=False)`: as a crash would."""

    @rlplat.remote(max_restarts=1)
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    actor = Actor.remote()
    first = rlplat.get(actor.pid.remote())
    rlplat.kill(actor, no_restart=False)
    assert soon(lambda: _again(actor.pid) != first)


def test_the_error_of_a_dependency_reaches_the_actor_call(backend: str) -> None:
    """fault_tolerance/tasks, "Catching application-level failures"."""

    @rlplat.remote
    def fail() -> None:
        raise LookupError("dependency")

    @rlplat.remote
    class Actor:
        def use(self, x: Any) -> Any:
            return x

    with pytest.raises(LookupError, match="dependency"):
        rlplat.get(Actor.remote().use.remote(fail.remote()))


# ---------------------------------------------------------------- cancel


def test_cancel_of_a_finished_task_does_nothing(backend: str) -> None:
    """`cancel`: "If the Task is already finished, nothing happens"."""

    @rlplat.remote
    def f() -> int:
        return 1

    ref = f.remote()
    assert rlplat.get(ref) == 1
    rlplat.cancel(ref)
    assert rlplat.get(ref) == 1


def test_cancel_of_a_running_task_interrupts_it(cluster: None, tmp_path: Any) -> None:
    """`cancel`: "a KeyboardInterrupt is raised in Python"."""
    begun = tmp_path / "begun"

    @rlplat.remote(max_retries=3)
    def endless() -> None:
        begun.write_text("")
        while True:
            time.sleep(0.01)

    ref = endless.remote()
    assert soon(begun.exists)
    rlplat.cancel(ref)
    with pytest.raises(TaskCancelled):
        rlplat.get(ref, timeout=60)


def test_cancel_of_a_task_that_waits_keeps_it_from_running(cluster: None, tmp_path: Any) -> None:
    """`cancel`: "If the specified Task is pending execution, it is cancelled and not executed"."""
    go, ran = tmp_path / "go", tmp_path / "ran"

    @rlplat.remote
    def first() -> int:
        while not go.exists():
            time.sleep(0.01)
        return 1

    @rlplat.remote
    def second(x: int) -> None:
        ran.write_text("")

    held = first.remote()
    ref = second.remote(held)
    rlplat.cancel(ref)
    with pytest.raises(TaskCancelled):
        rlplat.get(ref, timeout=60)
    go.write_text("")
    assert rlplat.get(held) == 1
    assert not ran.exists()


def test_cancel_with_force_ends_the_process(cluster: None, tmp_path: Any) -> None:
    """`cancel(force=True)`: "the executing Task immediately exits"; TaskCancelled or WorkerCrashed."""
    begun = tmp_path / "begun"

    @rlplat.remote(max_retries=3)
    def stubborn() -> None:
        begun.write_text("")
        while True:
            try:
                time.sleep(0.01)
            except KeyboardInterrupt:
                pass

    ref = stubborn.remote()
    assert soon(begun.exists)
    rlplat.cancel(ref, force=True)
    with pytest.raises((TaskCancelled, WorkerCrashed)):
        rlplat.get(ref, timeout=60)


@pytest.mark.beside("coroutines")
def test_cancel_of_an_async_call_cancels_its_coroutine(backend: str) -> None:
    """`cancel`, "Actor Task": "If it is an async Actor, Ray cancels a asyncio.Task"."""

    @rlplat.remote
    class Actor:
        def __init__(self) -> None:
            self.seen = ""
            self.begun = asyncio.Event()

        async def endless(self) -> None:
            self.begun.set()
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.seen = "cancelled"
                raise

        async def has_begun(self) -> None:
            await self.begun.wait()

        async def read(self) -> str:
            return self.seen

    actor = Actor.remote()
    ref = actor.endless.remote()
    rlplat.get(actor.has_begun.remote(), timeout=60)
    rlplat.cancel(ref)
    with pytest.raises((TaskCancelled, TaskError)):
        rlplat.get(ref, timeout=60)
    assert soon(lambda: rlplat.get(actor.read.remote()) == "cancelled")


def test_force_is_refused_for_actor_calls(cluster: None, tmp_path: Any) -> None:
    """`cancel`: "force=True is not supported for actor tasks": ValueError."""
    go = tmp_path / "go"

    @rlplat.remote
    class Actor:
        def f(self) -> None:
            while not go.exists():
                time.sleep(0.01)

    actor = Actor.remote()
    ref = actor.f.remote()
    with pytest.raises(ValueError):
        rlplat.cancel(ref, force=True)
    go.write_text("")
    rlplat.get(ref)


def test_cancel_takes_refs_only(backend: str) -> None:
    """`cancel`: TypeError."""
    with pytest.raises(TypeError):
        rlplat.cancel("a ref")


# ---------------------------------------------------------------- handling-dependencies, placement groups, resources


def test_env_vars_of_a_task_and_an_actor(cluster: None) -> None:
    """handling-dependencies, "env_vars"."""

    def look() -> str:
        return os.environ.get("DOC_VARIABLE", "none")

    @rlplat.remote
    class Actor:
        def look(self) -> str:
            return os.environ.get("DOC_VARIABLE", "none")

    task = rlplat.remote(look)
    env = {"env_vars": {"DOC_VARIABLE": "set"}}
    assert rlplat.get(task.options(runtime_env=env).remote(), timeout=60) == "set"
    assert rlplat.get(Actor.options(runtime_env=env).remote().look.remote(), timeout=60) == "set"
    assert rlplat.get(task.remote()) == "none"


@pytest.mark.beside("resources")
def test_a_placement_group_reserves_and_gives_back(backend: str) -> None:
    """scheduling/placement-group, "Create a Placement Group (Reserve Resources)"."""
    group = rlplat.placement_group([{"CPU": 1}], strategy="PACK")
    rlplat.get(group.ready(), timeout=60)

    @rlplat.remote(num_cpus=1)
    class Actor:
        def f(self) -> int:
            return 1

    actor = Actor.options(placement_group=group).remote()
    assert rlplat.get(actor.f.remote(), timeout=60) == 1
    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 1)
    rlplat.kill(actor)
    rlplat.remove_placement_group(group)
    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 2)


def test_a_placement_group_knows_its_bundles(backend: str) -> None:
    """scheduling/placement-group: `bundle_specs`, `bundle_count`."""
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 0.5}])
    assert group.bundle_count == 2
    assert group.bundle_specs[1]["CPU"] == 0.5
    assert group.wait(30)
    rlplat.remove_placement_group(group)
    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 2)


@pytest.mark.beside("resources")
def test_resources_of_an_actor_are_held_until_its_end(backend: str) -> None:
    """scheduling/resources, "Specifying Task or Actor Resource Requirements"."""

    @rlplat.remote(num_cpus=1)
    class Actor:
        def f(self) -> int:
            return 1

    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 2)
    actor = Actor.remote()
    rlplat.get(actor.f.remote())
    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 1)
    rlplat.kill(actor)
    assert soon(lambda: rlplat.available_resources().get("CPU", 0) == 2)


def test_the_cluster_lists_its_nodes(backend: str) -> None:
    """`nodes()`: "a list of dictionaries"."""
    (node,) = rlplat.nodes()
    assert isinstance(node, dict)
    assert node["Alive"]
    assert node["Resources"]["CPU"] == 2


def test_fetch_local_is_taken_by_wait(backend: str) -> None:
    """`wait(fetch_local=)`."""
    ref = rlplat.put(1)
    assert rlplat.wait([ref], fetch_local=False) == ([ref], [])


def test_the_runtime_context_names_the_actor(backend: str) -> None:
    """`get_runtime_context()`: ids of the worker, the actor, the task."""

    @rlplat.remote
    class Actor:
        def look(self) -> tuple[Any, Any]:
            context = rlplat.get_runtime_context()
            return context.get_actor_id(), context.get_task_id()

    @rlplat.remote
    def look() -> tuple[Any, Any]:
        context = rlplat.get_runtime_context()
        return context.get_actor_id(), context.get_task_id()

    actor_id, task_id = rlplat.get(Actor.remote().look.remote())
    assert isinstance(actor_id, str)
    assert task_id
    actor_id, task_id = rlplat.get(look.remote())
    assert actor_id is None
    assert task_id
    assert rlplat.get_runtime_context().get_actor_id() is None
