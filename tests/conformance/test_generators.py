"""Generators: values that stream back as they are made, with back-pressure; dynamic and static numbers of returns."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import pickle
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlplat
from rlplat.errors import ActorDied, SerializationError, TaskCancelled, TaskError
from tests.patience import dropped_generators_are_closed, soon
from tests.runtime.core.validity import check_book


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def numbers(n: int) -> Iterator[int]:
    yield from range(n)


class Many:
    """Generators of every kind as methods."""

    def sync(self, n: int) -> Iterator[int]:
        yield from range(n)

    def total(self, box: list) -> int:
        return sum(rlplat.get(ref) for ref in box[0].sync.remote(10))


class AsyncMany(Many):
    async def async_(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    async def ping(self) -> str:
        return "pong"


def local(base: type) -> Any:
    return rlplat.remote(type(base.__name__, (base,), {"__module__": "__main__"}))


def test_a_generator_function_streams_by_itself(backend: str) -> None:
    generator = rlplat.remote(numbers).remote(300)
    assert isinstance(generator, rlplat.ObjectRefGenerator)
    assert [rlplat.get(ref) for ref in generator] == list(range(300))
    with pytest.raises(StopIteration):
        next(generator)
    assert rlplat.get(generator.completed()) is None
    assert [rlplat.get(ref) for ref in rlplat.remote(numbers).remote(0)] == []
    generator = rlplat.remote(numbers).remote(3)
    assert rlplat.get(generator.completed()) is None  # may be asked for before any value is
    assert [rlplat.get(ref) for ref in generator] == [0, 1, 2]


def test_values_come_while_the_generator_runs(cluster: None, tmp_path: Path) -> None:
    gates = tmp_path

    @rlplat.remote(num_returns="streaming")
    def gated() -> Iterator[int]:
        for i in range(3):
            yield i
            while not (gates / str(i)).exists():
                time.sleep(0.005)

    generator = gated.remote()
    for i in range(3):
        assert rlplat.get(next(generator), timeout=60) == i
        assert not generator.is_finished()
        (gates / str(i)).touch()
    with pytest.raises(StopIteration):
        next(generator)
    assert generator.is_finished()


def test_methods_of_plain_threaded_and_async_actors_stream(backend: str) -> None:
    for actor in (
        local(Many).remote(),
        local(Many).options(max_concurrency=2).remote(),
        local(AsyncMany).remote(),
    ):
        assert [rlplat.get(ref) for ref in actor.sync.remote(100)] == list(range(100))
        rlplat.kill(actor)
    actor = local(AsyncMany).remote()
    streams = [actor.async_.remote(50) for _ in range(20)]
    assert [[rlplat.get(ref) for ref in stream] for stream in streams] == [list(range(50))] * 20


def test_values_keep_their_order_whichever_thread_makes_them() -> None:
    """In the process itself a sync generator of an async actor runs in the loop's thread, and in its consumer's."""
    rlplat.init(backend="inproc")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        actor = local(AsyncMany).remote()
        for _ in range(20):
            assert [rlplat.get(ref) for ref in actor.sync.remote(100)] == list(range(100))
    finally:
        sys.setswitchinterval(interval)
        rlplat.shutdown()


def test_generators_are_iterated_in_event_loops(backend: str) -> None:
    actor = local(AsyncMany).remote()
    plain = rlplat.remote(numbers)

    async def total(generator: Any) -> int:
        return sum([await ref async for ref in generator])

    async def main() -> list[int]:
        return await asyncio.gather(
            *(total(plain.remote(30)) for _ in range(5)), *(total(actor.async_.remote(30)) for _ in range(5))
        )

    assert asyncio.run(main()) == [sum(range(30))] * 10


def test_a_worker_consumes_the_stream_of_another(backend: str) -> None:
    one, two = local(Many).remote(), local(Many).remote()
    assert rlplat.get(one.total.remote([two]), timeout=60) == 45

    @rlplat.remote
    def nested(n: int) -> int:
        inner = rlplat.remote(numbers)
        return sum(rlplat.get(ref) for ref in inner.remote(n))

    assert rlplat.get(nested.remote(100), timeout=60) == sum(range(100))


def test_refs_of_values_travel_and_outlive_the_generator(backend: str) -> None:
    @rlplat.remote
    def arrays() -> Iterator[np.ndarray]:
        for i in range(4):
            yield np.full(100_000, i)

    @rlplat.remote
    def total(array: np.ndarray, box: list) -> int:
        return int(array.sum() + rlplat.get(box[0]).sum())

    refs = list(arrays.remote())
    gc.collect()
    assert rlplat.get(total.remote(refs[1], [refs[3]]), timeout=60) == 400_000


def test_an_exception_is_the_last_value(backend: str) -> None:
    @rlplat.remote
    def fails_at(n: int) -> Iterator[int]:
        yield from range(n)
        raise KeyError("in the generator")

    generator = fails_at.remote(2)
    refs = list(generator)
    assert rlplat.get(refs[:2]) == [0, 1]
    with pytest.raises(KeyError, match=r"(?s)in fails_at.*in the generator"):
        rlplat.get(refs[2])
    assert len(refs) == 3
    assert rlplat.get(generator.completed()) is None


@pytest.mark.parametrize("in_actor", [False, True])
@pytest.mark.parametrize("num_returns", ["streaming", "dynamic"])
def test_one_that_raised_runs_again_behind_what_its_caller_has(
    backend: str, tmp_path: Path, in_actor: bool, num_returns: str
) -> None:
    class Flaky:
        @rlplat.method(num_returns=num_returns, max_task_retries=2, retry_exceptions=[KeyError])
        def values(self, good_at: int) -> Iterator[int]:
            with open(tmp_path / "runs", "a") as file:
                file.write("x")
            run = len((tmp_path / "runs").read_text())
            yield 0
            yield run
            if run < good_at:
                raise KeyError("not yet")
            yield 7

    def collected(good_at: int) -> list[Any]:
        (tmp_path / "runs").write_text("")
        if in_actor:
            made = rlplat.remote(Flaky).remote().values.remote(good_at)
        else:
            options = {"max_retries": 2, "retry_exceptions": [KeyError], "num_returns": num_returns}
            made = rlplat.remote(**options)(lambda n: Flaky.values(None, n)).remote(good_at)  # type: ignore[arg-type]
        refs = list(made if num_returns == "streaming" else rlplat.get(made))
        return [*rlplat.get(refs[:-1]), refs[-1]]

    *values, last = collected(3)
    assert (values, rlplat.get(last)) == ([0, 1], 7)
    assert (tmp_path / "runs").read_text() == "xxx"
    *values, last = collected(9)
    with pytest.raises(KeyError, match="not yet"):
        rlplat.get(last)
    assert values == [0, 1] and (tmp_path / "runs").read_text() == "xxx"


def test_a_generator_that_is_read_to_its_end_has_nothing_ready(backend: str) -> None:
    generator = rlplat.remote(numbers).remote(1)
    ref = next(generator)
    rlplat.get([ref, generator.completed()])
    assert (generator.is_finished(), generator.next_ready()) == (True, False)
    with pytest.raises(StopIteration):
        next(generator)


def test_a_value_that_cannot_be_pickled_ends_the_stream(cluster: None) -> None:
    @rlplat.remote
    def odd() -> Iterator[Any]:
        yield 1
        yield (i for i in range(3))
        yield 2

    refs = list(odd.remote())
    assert rlplat.get(refs[0]) == 1
    with pytest.raises(SerializationError, match="value 1 of"):
        rlplat.get(refs[1])
    assert len(refs) == 2


def test_a_failure_before_the_first_value_is_given_once(cluster: None) -> None:
    @rlplat.remote(num_returns="streaming")
    def no_generator() -> int:
        return 3

    generator = no_generator.remote()
    (ref,) = list(generator)
    assert ref == generator.completed()
    with pytest.raises(ValueError, match="must return a generator, not int"):
        rlplat.get(ref)

    @rlplat.remote
    def fail() -> int:
        raise KeyError("argument")

    (ref,) = list(rlplat.remote(numbers).remote(fail.remote()))
    with pytest.raises(KeyError, match="argument"):
        rlplat.get(ref)


@pytest.mark.beside("generators")
def test_a_generator_waits_for_its_consumer(backend: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def logged(n: int) -> Iterator[int]:
        for i in range(n):
            with open(log, "a") as file:
                file.write(f"{i}\n")
            yield i

    class Logged:
        def run(self, n: int) -> Iterator[int]:
            yield from logged(n)

    class AsyncLogged:
        async def run(self, n: int) -> AsyncIterator[int]:
            for i in logged(n):
                yield i

    task = rlplat.remote(logged).options(generator_backpressure=5)
    actor, async_actor = rlplat.remote(Logged).remote(), rlplat.remote(AsyncLogged).remote()
    for start in (
        task.remote,
        actor.run.options(generator_backpressure=5).remote,
        async_actor.run.options(generator_backpressure=5).remote,
    ):
        generator = start(100)
        assert soon(lambda: lines(log) == 5)
        time.sleep(0.05)
        assert lines(log) == 5  # it may not make the sixth
        taken = 0
        for ref in generator:
            assert rlplat.get(ref, timeout=60) == taken
            taken += 1
            assert lines(log) <= taken + 5
        assert taken == 100
        log.unlink()

    generator = task.options(generator_backpressure=0).remote(100)
    assert soon(lambda: lines(log) == 100)
    assert len(list(generator)) == 100


def test_a_generator_that_waits_lends_its_cpu_and_returns_what_is_queued_behind_it(backend: str) -> None:
    """One CPU: the consumer's own tasks could not run beside the generator that feeds them."""
    two_cpus = rlplat.remote(num_cpus=2)

    @two_cpus
    def source() -> Iterator[int]:
        yield from range(20)

    @two_cpus
    def double(x: int) -> int:
        return 2 * x

    doubled = [double.remote(ref) for ref in source.options(generator_backpressure=2).remote()]
    assert rlplat.get(doubled, timeout=60) == [2 * i for i in range(20)]


def test_other_calls_of_an_async_actor_go_on_beside_a_held_generator(backend: str) -> None:
    actor = local(AsyncMany).remote()
    held = actor.sync.options(generator_backpressure=1).remote(10)
    also_held = actor.async_.options(generator_backpressure=1).remote(10)
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"
    assert [rlplat.get(ref) for ref in held] == [rlplat.get(ref) for ref in also_held] == list(range(10))


def test_dropping_a_generator_closes_it(cluster: None, tmp_path: Path) -> None:
    log = tmp_path / "closed"

    def endless() -> Iterator[int]:
        try:
            i = 0
            while True:
                yield i
                i += 1
        finally:
            with open(log, "a") as file:
                file.write("closed\n")

    class Actor:
        def run(self) -> Iterator[int]:
            yield from endless()

        def ping(self) -> str:
            return "pong"

    class AsyncActor:
        async def run(self) -> AsyncIterator[int]:
            for i in endless():
                yield i

    actor, async_actor = rlplat.remote(Actor).remote(), rlplat.remote(AsyncActor).remote()
    for count, start in enumerate((rlplat.remote(endless).remote, actor.run.remote, async_actor.run.remote), 1):
        generator = start()
        first = next(generator)
        del generator
        assert soon(lambda count=count: lines(log) == count)
        assert rlplat.get(first) == 0
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


class Gated:
    """Its only thread waits at a gate: in the call before that of the generator, or in that one itself."""

    def hold(self, gate: Path) -> None:
        gate.read_text()

    def count(self) -> Iterator[int]:
        yield from itertools.count()

    def late_count(self, gate: Path) -> Iterator[int]:
        gate.read_text()
        return itertools.count()

    def ping(self) -> str:
        return "pong"


class AsyncGated:
    async def hold(self, gate: Path) -> None:
        await asyncio.to_thread(gate.read_text)

    async def count(self) -> AsyncIterator[int]:
        for i in itertools.count():
            yield i

    async def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize(
    ("base", "options", "has_begun"),
    [
        (Gated, {}, True),
        (Gated, {"concurrency_groups": {"beside": 1}}, True),
        (Gated, {"concurrency_groups": {"beside": 1}}, False),
        (AsyncGated, {"max_concurrency": 1}, False),
    ],
    ids=["plain", "threads-begun", "threads-waiting", "async-waiting"],
)
def test_a_generator_that_is_dropped_before_its_first_value_is_closed_there(
    cluster: None, tmp_path: Path, base: type, options: dict[str, Any], has_begun: bool
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    actor = local(base).options(**options).remote()
    if has_begun:
        generator = actor.late_count.options(num_returns="streaming").remote(gate)
    else:
        actor.hold.remote(gate)
        generator = actor.count.remote()
    with open(gate, "w"):  # (which waits until the other end is open)
        del generator
        assert soon(dropped_generators_are_closed)
        behind = actor.ping.remote()
        rlplat.cancel(behind)
        with pytest.raises(TaskCancelled):  # so what was sent before it has come as well
            rlplat.get(behind, timeout=60)
    assert rlplat.get(actor.ping.remote(), timeout=60) == "pong"


def test_a_generator_stays_where_it_is(backend: str) -> None:
    generator = rlplat.remote(numbers).remote(3)
    with pytest.raises(SerializationError, match="ObjectRefGenerator cannot be sent"):
        rlplat.put(generator)
    with pytest.raises(SerializationError):
        pickle.dumps(generator)
    with pytest.raises(TypeError):
        len(generator)
    assert len(list(generator)) == 3


def test_async_functions_are_refused_as_tasks() -> None:
    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(ValueError, match="cannot be a task"):
            rlplat.remote(function)


def test_an_actor_that_dies_ends_its_streams(cluster: None) -> None:
    actor = local(Many).remote()
    generator = actor.sync.options(generator_backpressure=2).remote(10)
    assert rlplat.get(next(generator), timeout=60) == 0
    rlplat.kill(actor)
    refs = list(generator)
    with pytest.raises(ActorDied):
        rlplat.get(refs[-1], timeout=60)
    assert [rlplat.get(ref) for ref in refs[:-1]] == [1][: len(refs) - 1]


# ---------------------------------------------------------------- dynamic and static


def test_dynamic_returns_one_ref_of_all_refs(backend: str) -> None:
    dynamic = rlplat.remote(num_returns="dynamic")(numbers)
    ref = dynamic.remote(100)
    assert isinstance(ref, rlplat.ObjectRef)
    refs = rlplat.get(ref, timeout=60)
    assert len(refs) == 100
    assert rlplat.get(list(refs)) == list(range(100))
    assert rlplat.get(refs[7]) == 7
    assert len(rlplat.get(dynamic.remote(0))) == 0

    @rlplat.remote
    def total(refs: Any) -> int:
        return sum(rlplat.get(list(refs)))

    assert rlplat.get(total.remote(ref), timeout=60) == sum(range(100))

    actor = local(AsyncMany).remote()
    for method in (actor.sync, actor.async_):
        assert rlplat.get(list(rlplat.get(method.options(num_returns="dynamic").remote(5)))) == list(range(5))


def test_a_dynamic_generator_that_fails_has_the_error_last(backend: str) -> None:
    @rlplat.remote(num_returns="dynamic")
    def fails_at(n: int) -> Iterator[int]:
        yield from range(n)
        raise KeyError("dynamic")

    refs = list(rlplat.get(fails_at.remote(3), timeout=60))
    assert rlplat.get(refs[:3]) == [0, 1, 2]
    with pytest.raises(KeyError, match="dynamic"):
        rlplat.get(refs[3])


def test_a_generator_with_a_number_of_returns_fills_that_many(backend: str) -> None:
    static = rlplat.remote(num_returns=3)(numbers)
    assert rlplat.get(static.remote(3), timeout=60) == [0, 1, 2]
    for ref in static.remote(4):
        with pytest.raises(ValueError, match="num_returns=3 but yielded more than 3 values"):
            rlplat.get(ref, timeout=60)
    *made, missing = static.remote(2)
    assert rlplat.get(made, timeout=60) == [0, 1]
    with pytest.raises(ValueError, match="num_returns=3 but yielded 2 values"):
        rlplat.get(missing, timeout=60)
    for ref in static.remote(0):
        with pytest.raises(ValueError, match="num_returns=3 but yielded 0 values"):
            rlplat.get(ref, timeout=60)


def test_a_generator_with_one_return_gives_its_only_value(backend: str) -> None:
    class Numbers:
        def numbers(self, n: int) -> Iterator[int]:
            yield from range(n)

    method = rlplat.remote(Numbers).remote().numbers
    for one in (rlplat.remote(num_returns=1)(numbers), method.options(num_returns=1)):
        assert rlplat.get(one.remote(1), timeout=60) == 0
        for n, made in ((0, "yielded 0 values"), (2, "yielded more than 1 values")):
            with pytest.raises(ValueError, match=f"num_returns=1 but {made}"):
                rlplat.get(one.remote(n), timeout=60)


@pytest.mark.parametrize("max_concurrency", [1, 2])
def test_a_cancelled_generator_of_a_sync_actor_ends_at_its_next_value(
    cluster: None, tmp_path: Path, max_concurrency: int
) -> None:
    class Endless:
        def values(self) -> Iterator[int]:
            try:
                for i in itertools.count():
                    yield i
                    time.sleep(0.01)
            finally:
                (tmp_path / "closed").touch()

        def ping(self) -> int:
            return 1

    actor = rlplat.remote(max_concurrency=max_concurrency)(Endless).remote()
    stream = actor.values.options(generator_backpressure=0).remote()
    assert rlplat.get(next(stream), timeout=60) == 0
    rlplat.cancel(stream)
    *_, last = stream
    with pytest.raises(TaskCancelled, match=r"Endless\.values was cancelled"):
        rlplat.get(last, timeout=60)
    assert rlplat.get(actor.ping.remote(), timeout=60) == 1
    assert (tmp_path / "closed").exists()


def test_objects_of_a_stream_are_freed(cluster: None) -> None:
    @rlplat.remote
    def arrays(n: int) -> Iterator[np.ndarray]:
        for i in range(n):
            yield np.full(200_000, i)

    from rlplat.runtime.refs import backend

    book = backend().objects.book  # type: ignore[attr-defined]
    for ref in arrays.remote(50):
        rlplat.get(ref, timeout=60)
    del ref
    rlplat.get(rlplat.remote(num_returns="dynamic")(numbers).remote(20), timeout=60)
    gc.collect()
    assert soon(lambda: len(book) == 0)
    check_book(book)


@pytest.mark.parametrize("of", ["task", "actor"])
def test_a_generator_of_a_fixed_number_that_raises_keeps_what_it_made(backend: str, of: str) -> None:
    """Ray's documentation, "Dynamic generators": the values before are there, the other refs have the exception."""

    def three(size: int) -> Iterator[Any]:
        yield np.zeros(size)
        yield 1
        raise ValueError("after two")

    class Actor:
        @rlplat.method(num_returns=4)
        def three(self, size: int) -> Iterator[Any]:
            yield from three(size)

    for size in (1, 20_000):
        if of == "task":
            refs = rlplat.remote(num_returns=4)(three).remote(size)
        else:
            actor = rlplat.remote(Actor).remote()
            refs = actor.three.remote(size)
        assert rlplat.get(refs[0]).shape == (size,)
        assert rlplat.get(refs[1]) == 1
        for ref in refs[2:]:
            with pytest.raises(ValueError, match="after two") as caught:
                rlplat.get(ref)
            assert isinstance(caught.value, TaskError)


def test_one_that_raises_is_run_again_whole(backend: str, tmp_path: Any) -> None:
    @rlplat.remote(num_returns=2, retry_exceptions=True)
    def flaky() -> Iterator[Any]:
        yield np.zeros(20_000)
        if not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            raise ValueError("once")
        yield 2

    first, second = flaky.remote()
    assert (rlplat.get(first).shape, rlplat.get(second)) == ((20_000,), 2)
