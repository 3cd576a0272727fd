"""Actor calls of one caller run in the order of submission; each call sees what the ones before it did."""

from __future__ import annotations

from typing import Any

import rlplat


class Log:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, item: Any) -> int:
        self.items.append(item)
        return len(self.items)

    def add_from(self, box: list) -> None:
        self.items.append(rlplat.get(box[0]))

    def read(self) -> list[Any]:
        return self.items


def log() -> Any:
    class Local(Log):
        pass

    return rlplat.remote(Local).remote()


def test_a_call_that_waits_for_an_argument_holds_back_later_calls_of_its_caller(backend: str) -> None:
    """actors/task-orders: "a given task will not be executed until previously submitted tasks ... have finished"."""

    @rlplat.remote
    def late(x: int) -> int:
        import time

        time.sleep(0.05)
        return x

    actor = log()
    actor.add.remote(late.remote(0))
    for i in range(1, 4):
        actor.add.remote(i)
    assert rlplat.get(actor.read.remote()) == [0, 1, 2, 3]


def test_an_error_in_the_middle_does_not_disturb_the_order(backend: str) -> None:
    class Picky(Log):
        def add(self, item: Any) -> int:
            if item == 2:
                raise ValueError(item)
            return super().add(item)

    actor = rlplat.remote(Picky).remote()
    refs = [actor.add.remote(i) for i in range(5)]
    assert rlplat.get(actor.read.remote()) == [0, 1, 3, 4]
    assert rlplat.get(refs[4]) == 4


def test_two_handles_of_one_process_are_one_caller(backend: str) -> None:
    actor = log()
    (other,) = rlplat.get(rlplat.put([actor]))
    for i in range(20):
        (actor if i % 2 else other).add.remote(i)
    assert rlplat.get(actor.read.remote()) == list(range(20))


def test_calls_with_large_and_small_arguments_keep_their_order(backend: str) -> None:
    import numpy as np

    class Sizes:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def add(self, array: Any) -> None:
            self.sizes.append(len(array))

        def read(self) -> list[int]:
            return self.sizes

    actor = rlplat.remote(Sizes).remote()
    sizes = [1, 100_000, 2, 50_000, 3, 4]
    for size in sizes:
        actor.add.remote(np.zeros(size))
    assert rlplat.get(actor.read.remote()) == sizes


def test_calls_of_different_methods_keep_their_order(backend: str) -> None:
    actor = log()
    actor.add.remote("a")
    actor.add_from.remote([rlplat.put("b")])
    seen = actor.read.remote()
    actor.add.remote("c")
    assert rlplat.get(seen) == ["a", "b"]
    assert rlplat.get(actor.read.remote()) == ["a", "b", "c"]


def test_a_task_that_calls_an_actor_and_waits_is_seen_by_its_caller(backend: str) -> None:
    actor = log()

    @rlplat.remote
    def call(box: list) -> int:
        return rlplat.get(box[0].add.remote("from a task"))

    actor.add.remote("before")
    rlplat.get(call.remote([actor]))
    actor.add.remote("after")
    assert sorted(rlplat.get(actor.read.remote())) == ["after", "before", "from a task"]
    assert rlplat.get(actor.read.remote())[-1] == "after"
