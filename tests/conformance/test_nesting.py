"""Tasks that submit tasks and wait for them: a blocked task lends its CPU, so nothing deadlocks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rlplat

pytestmark = pytest.mark.process


@pytest.fixture(params=[1, 2])
def few_cpus(request: pytest.FixtureRequest) -> Iterator[None]:
    rlplat.init(num_cpus=request.param, num_gpus=0)
    yield
    rlplat.shutdown()


def test_recursion_deeper_than_the_cpus(few_cpus: None) -> None:
    @rlplat.remote
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + rlplat.get(depth.remote(n - 1))

    assert rlplat.get(depth.remote(5), timeout=90) == 5


def test_a_tree_of_tasks(few_cpus: None) -> None:
    @rlplat.remote
    def fib(n: int) -> int:
        return n if n < 2 else sum(rlplat.get([fib.remote(n - 1), fib.remote(n - 2)]))

    assert rlplat.get(fib.remote(6), timeout=90) == 8


def test_more_waiting_parents_than_cpus(few_cpus: None) -> None:
    @rlplat.remote
    def child(x: int) -> int:
        return x

    @rlplat.remote
    def parent(x: int) -> int:
        return sum(rlplat.get([child.remote(x), child.remote(1)]))

    assert rlplat.get([parent.remote(i) for i in range(12)], timeout=90) == [i + 1 for i in range(12)]


def test_wait_lends_the_cpu_as_well(few_cpus: None) -> None:
    @rlplat.remote
    def child() -> int:
        return 3

    @rlplat.remote(num_cpus=1)
    def parent() -> int:
        (ready,), _ = rlplat.wait([child.remote()])
        return rlplat.get(ready)

    assert rlplat.get([parent.remote() for _ in range(4)], timeout=90) == [3] * 4


def test_an_actor_with_a_cpu_lends_it_while_it_waits(few_cpus: None) -> None:
    @rlplat.remote
    def child(x: int) -> int:
        return 2 * x

    class Boss:
        def ask(self, x: int) -> int:
            return rlplat.get(child.remote(x))

    boss = rlplat.remote(num_cpus=1)(Boss).remote()
    assert rlplat.get(boss.ask.remote(21), timeout=90) == 42


def test_tasks_create_actors(few_cpus: None) -> None:
    class Adder:
        def add(self, x: int) -> int:
            return x + 1

    @rlplat.remote
    def use(x: int) -> int:
        return rlplat.get(rlplat.remote(Adder).remote().add.remote(x))

    assert rlplat.get([use.remote(i) for i in range(3)], timeout=90) == [1, 2, 3]


def test_the_cpus_are_all_given_back(few_cpus: None) -> None:
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
