"""Tasks that submit tasks and wait for them: a blocked task lends its CPU, so nothing deadlocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import rlplat

pytestmark = pytest.mark.process


@pytest.fixture
def one_cpu() -> Iterator[None]:
    rlplat.init(num_cpus=1, num_gpus=0)
    yield
    rlplat.shutdown()


def test_recursion_deeper_than_the_cpus(one_cpu: None) -> None:
    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get(depth.remote(5), timeout=90) == 5


def test_a_tree_of_tasks(one_cpu: None) -> None:
    @rlplat.remote
    def fib(n: int) -> int:
        return n if n < 2 else sum(rlplat.get([fib.remote(n - 1), fib.remote(n - 2)]))

    assert rlplat.get(fib.remote(6), timeout=90) == 8


def test_more_waiting_parents_than_cpus(one_cpu: None) -> None:
    @rlplat.remote
    def child(x: int) -> int:
        return x

    @rlplat.remote
    def parent(x: int) -> int:
        return sum(rlplat.get([child.remote(x), child.remote(1)]))

    assert rlplat.get([parent.remote(i) for i in range(12)], timeout=90) == [i + 1 for i in range(12)]


def test_wait_lends_the_cpu_as_well(one_cpu: None) -> None:
    @rlplat.remote
    def child() -> int:
        return 3

    @rlplat.remote(num_cpus=1)
    def parent() -> int:
        (ready,), _ = rlplat.wait([child.remote()])
        return rlplat.get(ready)

    assert rlplat.get([parent.remote() for _ in range(4)], timeout=90) == [3] * 4


def test_an_actor_with_a_cpu_lends_it_while_it_waits(one_cpu: None) -> None:
    @rlplat.remote
    def child(x: int) -> int:
        return 2 * x

    class Boss:
        def ask(self, x: int) -> int:
            return rlplat.get(child.remote(x))

    boss = rlplat.remote(num_cpus=1)(Boss).remote()
    assert rlplat.get(boss.ask.remote(21), timeout=90) == 42


def child(x: int) -> int:
    return 2 * x


class Threads:
    def ask(self, x: int) -> int:
        return rlplat.get(rlplat.remote(child).remote(x))


class Coroutines:
    async def ask(self, x: int) -> int:
        return sum(await asyncio.gather(*(rlplat.remote(child).remote(x) for _ in range(2))))


class Blocker:
    """A coroutine that blocks its event loop stops the others, too."""

    async def idle(self) -> None:
        await asyncio.sleep(600)

    def ask(self, x: int) -> int:
        return rlplat.get(rlplat.remote(child).remote(x))


def test_an_actor_lends_its_cpu_while_all_its_calls_wait(one_cpu: None) -> None:
    threads = rlplat.remote(Threads).options(num_cpus=1, max_concurrency=3).remote()
    assert rlplat.get([threads.ask.remote(i) for i in range(5)], timeout=90) == [0, 2, 4, 6, 8]
    rlplat.kill(threads)
    coroutines = rlplat.remote(Coroutines).options(num_cpus=1).remote()
    assert rlplat.get([coroutines.ask.remote(i) for i in range(5)], timeout=90) == [0, 4, 8, 12, 16]
    rlplat.kill(coroutines)
    blocker = rlplat.remote(Blocker).options(num_cpus=1).remote()
    blocker.idle.remote()
    assert rlplat.get(blocker.ask.remote(4), timeout=90) == 8
    rlplat.kill(blocker)


def test_a_task_lends_its_cpu_while_an_event_loop_of_its_own_waits(one_cpu: None) -> None:
    @rlplat.remote
    def numbers() -> Iterator[int]:
        yield from range(3)

    async def read(x: int) -> list[int]:
        first = await rlplat.remote(child).remote(x)
        stream = numbers.options(num_returns="streaming").remote()
        return [first, *[await ref async for ref in stream]]

    @rlplat.remote
    def parent(x: int) -> list[int]:
        return asyncio.run(read(x))

    assert rlplat.get([parent.remote(i) for i in range(4)], timeout=90) == [[2 * i, 0, 1, 2] for i in range(4)]


class Half:
    """One call waits for a task; another one does, or works."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def ask(self, x: int) -> int:
        return rlplat.get(rlplat.remote(child).remote(x))

    def work(self) -> None:
        self.may_end.wait()

    @rlplat.method(concurrency_group="side")
    def end(self) -> None:
        self.may_end.set()


def test_an_actor_keeps_its_cpu_while_one_of_its_calls_works() -> None:
    rlplat.init(num_cpus=1, num_gpus=0)
    half = rlplat.remote(Half).options(num_cpus=1, max_concurrency=2, concurrency_groups={"side": 1}).remote()
    work, ask = half.work.remote(), half.ask.remote(1)
    assert rlplat.wait([ask], timeout=1)[0] == []
    rlplat.get(half.end.remote())
    assert rlplat.get([work, ask], timeout=90) == [None, 2]
    rlplat.shutdown()


class Guard:
    """Asks for two tasks, one after the other; other calls come meanwhile, and take the CPU back."""

    async def ask(self) -> int:
        return await rlplat.remote(child).remote(1) + await rlplat.remote(child).remote(2)

    async def look(self) -> float:
        return float(rlplat.available_resources()["CPU"])


def test_the_cpu_is_taken_back_when_a_call_begins() -> None:
    rlplat.init(num_cpus=1, num_gpus=0)
    guard = rlplat.remote(Guard).options(num_cpus=1).remote()
    ask = guard.ask.remote()
    while not rlplat.wait([ask], timeout=0.05)[0]:
        rlplat.get(guard.look.remote())
    assert rlplat.get(ask, timeout=90) == 6
    while rlplat.available_resources()["CPU"] != 0:  # idle leases go home, and the actor has its own
        pass
    rlplat.shutdown()


def test_tasks_create_actors(one_cpu: None) -> None:
    class Adder:
        def add(self, x: int) -> int:
            return x + 1

    @rlplat.remote
    def use(x: int) -> int:
        return rlplat.get(rlplat.remote(Adder).remote().add.remote(x))

    assert rlplat.get([use.remote(i) for i in range(3)], timeout=90) == [1, 2, 3]


def test_the_cpus_are_all_given_back(one_cpu: None) -> None:
    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get([depth.remote(3) for _ in range(4)], timeout=90) == [3] * 4
    total = rlplat.cluster_resources()
    # Idle leases go home soon; the test's time limit ends a leak.
    while rlplat.available_resources() != total:
        pass


def test_nesting_in_one_process() -> None:
    rlplat.init(num_cpus=1, backend="inproc")

    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get(depth.remote(5)) == 5
    rlplat.shutdown()


def test_custom_resources_stay_with_what_waits(cluster: None) -> None:
    """A lent licence would be used twice."""
    rlplat.shutdown()
    rlplat.init(num_cpus=2, num_gpus=0, resources={"licence": 1})

    @rlplat.remote(num_cpus=0)
    def free() -> float:
        return rlplat.available_resources().get("licence", 0.0)

    @rlplat.remote(resources={"licence": 1})
    class Actor:
        def ask(self) -> float:
            return rlplat.get(free.remote())  # type: ignore[no-any-return]

    assert rlplat.get(Actor.remote().ask.remote()) == 0
