"""The contracts of `rlplat.as_completed`: each ref once, in the order in which they become ready."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import rlplat
from rlplat.errors import GetTimeout, NotInitialized
from rlplat.runtime import refs as connection
from tests.patience import soon


@rlplat.remote
def identity(x: Any) -> Any:
    return x


@rlplat.remote
class Gate:
    """A call of `passed` ends when its number is opened."""

    def __init__(self) -> None:
        self.is_open: dict[int, asyncio.Event] = {}

    def _event(self, number: int) -> asyncio.Event:
        return self.is_open.setdefault(number, asyncio.Event())

    async def passed(self, number: int) -> int:
        await self._event(number).wait()
        return number

    async def open(self, number: int) -> None:
        self._event(number).set()


def test_each_ref_comes_once(backend: str) -> None:
    refs = [identity.remote(i) for i in range(200)]
    seen = list(rlplat.as_completed(refs))
    assert len(seen) == 200 and set(seen) == set(refs)
    assert sorted(rlplat.get(seen)) == list(range(200))


@pytest.mark.beside("coroutines")
def test_they_come_in_the_order_in_which_they_become_ready(backend: str) -> None:
    gate = Gate.remote()
    refs = [gate.passed.remote(number) for number in range(6)]
    completed = rlplat.as_completed(refs)
    for number in (3, 5, 0, 4, 1, 2):
        gate.open.remote(number)
        assert next(completed) == refs[number]
    assert list(completed) == []
    with pytest.raises(StopIteration):
        next(completed)


def test_those_that_are_ready_come_in_the_order_of_the_list(backend: str) -> None:
    refs = [rlplat.put(i) for i in range(5)]
    assert list(rlplat.as_completed(refs[::-1])) == refs[::-1]
    assert list(rlplat.as_completed(iter(refs))) == refs


def test_tasks_actors_and_puts(backend: str) -> None:
    @rlplat.remote
    class Actor:
        def double(self, x: int) -> int:
            return 2 * x

    actor = Actor.remote()
    refs = [identity.remote(1), actor.double.remote(2), rlplat.put(3)]
    assert {rlplat.get(ref) for ref in rlplat.as_completed(refs)} == {1, 4, 3}


def test_one_that_failed_comes_and_get_raises(backend: str) -> None:
    @rlplat.remote
    def fail() -> None:
        raise KeyError("on purpose")

    failed, well = fail.remote(), identity.remote(1)
    for ref in rlplat.as_completed([failed, well]):
        if ref == failed:
            with pytest.raises(KeyError):
                rlplat.get(ref)
        else:
            assert rlplat.get(ref) == 1


def test_one_that_is_there_twice_comes_once(backend: str) -> None:
    ref, other = identity.remote(1), identity.remote(2)
    (again,) = rlplat.get(rlplat.put([ref]))
    assert len(list(rlplat.as_completed([ref, other, ref, again]))) == 2


def test_none_of_none(backend: str) -> None:
    assert list(rlplat.as_completed([])) == []


@pytest.mark.beside("coroutines")
def test_a_timeout_counts_from_the_call_on_and_more_may_come_after_it(backend: str) -> None:
    gate = Gate.remote()
    gate.open.remote(1)
    refs = [gate.passed.remote(number) for number in range(2)]
    rlplat.get(refs[1])
    completed = rlplat.as_completed(refs, timeout=0.05)
    assert next(completed) == refs[1]
    with pytest.raises(GetTimeout, match=r"as_completed\(\) timed out after 0.05 s: 1 of 2 values are missing"):
        next(completed)
    rlplat.get(gate.open.remote(0))
    rlplat.get(refs[0])
    assert list(completed) == [refs[0]]


def test_refs_of_another_process_inside_a_task(backend: str) -> None:
    @rlplat.remote
    def add(refs: list[Any]) -> int:
        return sum(rlplat.get(ref) for ref in rlplat.as_completed(refs))

    assert rlplat.get(add.remote([identity.remote(i) for i in range(10)])) == 45


@pytest.mark.beside("coroutines")
def test_in_an_event_loop_others_run_meanwhile(backend: str) -> None:
    gate = Gate.remote()
    refs = [gate.passed.remote(number) for number in range(3)]
    seen: list[int] = []

    async def collect() -> None:
        async for ref in rlplat.as_completed(refs):
            seen.append(await ref)

    async def main() -> None:
        collecting = asyncio.create_task(collect())
        for count, number in enumerate((2, 0, 1), 1):
            gate.open.remote(number)
            while len(seen) < count:
                await asyncio.sleep(0.01)
        await collecting

    asyncio.run(main())
    assert seen == [2, 0, 1]


def test_in_an_async_actor(backend: str) -> None:
    @rlplat.remote
    class Collector:
        async def add(self, refs: list[Any]) -> int:
            return sum([await ref async for ref in rlplat.as_completed(refs)])

    assert rlplat.get(Collector.remote().add.remote([identity.remote(i) for i in range(10)])) == 45


@pytest.mark.beside("coroutines")
def test_a_timeout_in_an_event_loop(backend: str) -> None:
    gate = Gate.remote()

    async def first(ref: Any) -> Any:
        return await anext(rlplat.as_completed([ref], timeout=0.05))

    with pytest.raises(GetTimeout, match="1 of 1"):
        asyncio.run(first(gate.passed.remote(0)))


@pytest.mark.parametrize("wrong", [1, "text", None, [1], [None]], ids=repr)
def test_anything_else_is_refused(backend: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"rlplat\.as_completed takes a list of ObjectRefs"):
        rlplat.as_completed(wrong)


def test_a_ref_without_a_list_and_a_timeout_that_is_none_are_refused(backend: str) -> None:
    ref = rlplat.put(1)
    with pytest.raises(TypeError, match=r"takes a list of ObjectRefs, not ObjectRef\("):
        rlplat.as_completed(ref)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be seconds"):
        rlplat.as_completed([ref], timeout=-1)


@pytest.mark.beside("coroutines")
def test_many_iterators_over_one_ref(backend: str) -> None:
    """As in a loop that takes the first of what is under way, and begins again with the rest and more."""
    gate = Gate.remote()
    slow = gate.passed.remote(0)
    for i in range(50):
        assert rlplat.get(next(rlplat.as_completed([slow, identity.remote(i)]))) == i
    gate.open.remote(0)
    assert list(rlplat.as_completed([slow])) == [slow]


def test_an_iterator_that_is_dropped_leaves_nothing_at_what_it_waited_for(cluster: None) -> None:
    """Else a loop that begins a new one at each turn would fill the memory with those of a slow call."""
    gate = Gate.remote()
    slow = gate.passed.remote(0)
    for i in range(20):
        next(rlplat.as_completed([slow, identity.remote(i)]))
    entry = connection.backend().objects.book.find(slow.id)
    assert soon(lambda: rlplat.get(identity.remote(0)) == 0 and not entry.callbacks)
    gate.open.remote(0)
    assert rlplat.get(slow) == 0


@pytest.mark.process
def test_who_waits_when_the_runtime_ends_is_told() -> None:
    rlplat.init(num_cpus=1, num_gpus=0)
    try:
        completed = rlplat.as_completed([Gate.remote().passed.remote(0)])
        seen: list[BaseException] = []

        def wait() -> None:
            try:
                next(completed)
            except BaseException as error:
                seen.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
    finally:
        rlplat.shutdown()
    thread.join(20)
    assert [type(error) for error in seen] == [NotInitialized]
