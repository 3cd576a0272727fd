"""Actors with `async def` methods: coroutines of one event loop, and refs awaited in event loops everywhere."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied, TaskCancelled
from tests.patience import soon


class Meeting:
    """Everybody waits until `expected` are here, so it ends only if they run at the same time."""

    def __init__(self, expected: int = 0) -> None:
        self.expected, self.here, self.most = expected, 0, 0
        self.everybody = asyncio.Event()

    async def attend(self, x: int) -> int:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.expected:
            self.everybody.set()
        await self.everybody.wait()
        return x

    async def count(self, rounds: int) -> int:
        """How many coroutines are in here at once, at most; the first wait for `expected`."""
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.expected:
            self.everybody.set()
        if self.expected:
            await self.everybody.wait()
        for _ in range(rounds):
            await asyncio.sleep(0)
        self.here -= 1
        return self.most

    async def who(self) -> tuple[str, int]:
        return threading.current_thread().name, id(asyncio.get_running_loop())

    def sync_who(self) -> tuple[str, int]:
        return threading.current_thread().name, id(asyncio.get_running_loop())


def meeting(**options: Any) -> Any:
    class Local(Meeting):
        pass

    Local.__qualname__ = "Meeting"
    return rlplat.remote(Local).options(**options)


@pytest.mark.beside("coroutines")
def test_hundreds_of_coroutines_are_in_flight_at_once(backend: str) -> None:
    actor = meeting().remote(expected=500)
    assert rlplat.get([actor.attend.remote(i) for i in range(500)], timeout=60) == list(range(500))


@pytest.mark.beside("coroutines")
def test_max_concurrency_bounds_the_coroutines(backend: str) -> None:
    actor = meeting(max_concurrency=3).remote(expected=3)
    assert max(rlplat.get([actor.count.remote(5) for _ in range(30)], timeout=60)) == 3


def test_sync_and_async_methods_share_the_thread_of_the_loop(backend: str) -> None:
    actor = meeting().remote()
    one, two, three = rlplat.get([actor.who.remote(), actor.sync_who.remote(), actor.who.remote()], timeout=60)
    assert one == two == three


def test_calls_begin_in_the_order_of_one_caller_even_when_one_waits_for_its_argument(backend: str) -> None:
    class Log:
        def __init__(self) -> None:
            self.items: list[int] = []

        async def add(self, item: int) -> None:
            self.items.append(item)

        async def all(self) -> list[int]:
            return self.items

    @rlplat.remote
    def slow(x: int) -> int:
        time.sleep(0.1)
        return x

    log = rlplat.remote(Log).remote()
    log.add.remote(0)
    log.add.remote(slow.remote(1))
    for item in range(2, 20):
        log.add.remote(item)
    assert rlplat.get(log.all.remote(), timeout=60) == list(range(20))


def test_awaiting_refs_does_not_block_the_loop(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @rlplat.remote
    def wait_for_gate() -> int:
        while not gate.exists():
            time.sleep(0.005)
        return 41

    class Waiter:
        async def one(self, box: list) -> int:
            return await box[0] + 1

        async def many(self, box: list) -> int:
            return sum(await asyncio.gather(*box))

        async def first(self, box: list) -> int:
            done, _ = await asyncio.wait(
                [asyncio.ensure_future(ref) for ref in box], return_when=asyncio.FIRST_COMPLETED
            )
            return done.pop().result()

        async def ping(self) -> str:
            return "pong"

    @rlplat.remote(num_cpus=0)
    def double(x: int) -> int:
        return 2 * x

    waiter, late = rlplat.remote(Waiter).remote(), wait_for_gate.remote()
    one, many = waiter.one.remote([late]), waiter.many.remote([late, *(double.remote(i) for i in range(300))])
    assert rlplat.get(waiter.first.remote([late, double.remote(4)]), timeout=60) == 8
    assert rlplat.get(waiter.ping.remote(), timeout=60) == "pong"
    gate.touch()
    assert rlplat.get([one, many], timeout=60) == [42, 41 + 2 * sum(range(300))]


def test_async_actors_call_each_other(backend: str) -> None:
    class Adder:
        def __init__(self, other: Any = None) -> None:
            self.other = other

        async def add(self, x: int) -> int:
            return x + 1 if self.other is None else await self.other.add.remote(x) + 1

    last = rlplat.remote(Adder).remote()
    first = rlplat.remote(Adder).remote(rlplat.remote(Adder).remote(last))
    assert rlplat.get([first.add.remote(i) for i in range(300)], timeout=60) == [i + 3 for i in range(300)]


def test_an_async_actor_may_await_its_own_method(backend: str) -> None:
    class Deep:
        async def me(self, box: list) -> None:
            self.handle = box[0]

        async def depth(self, n: int) -> int:
            return 0 if n == 0 else 1 + await self.handle.depth.remote(n - 1)

    deep = rlplat.remote(Deep).remote()
    rlplat.get(deep.me.remote([deep]), timeout=60)
    assert rlplat.get(deep.depth.remote(20), timeout=60) == 20


def test_exceptions_of_coroutines_reach_the_caller_with_their_class(cluster: None) -> None:
    class Faulty:
        async def fail(self) -> None:
            await asyncio.sleep(0)
            raise KeyError("async")

        async def give_up(self) -> None:
            raise asyncio.CancelledError

        def sync_fail(self) -> None:
            raise ValueError("sync")

        async def fine(self) -> int:
            return 1

    actor = rlplat.remote(Faulty).remote()
    with pytest.raises(KeyError, match=r"(?s)Faulty.fail.*raised KeyError.*in fail"):
        rlplat.get(actor.fail.remote(), timeout=60)
    with pytest.raises(ValueError, match="sync"):
        rlplat.get(actor.sync_fail.remote(), timeout=60)
    with pytest.raises(TaskCancelled, match=r"give_up.*raised CancelledError"):
        rlplat.get(actor.give_up.remote(), timeout=60)

    async def awaiting() -> None:
        await actor.give_up.remote()

    with pytest.raises(TaskCancelled):  # asyncio's own would cancel who awaits it
        asyncio.run(awaiting())
    assert rlplat.get(actor.fine.remote(), timeout=60) == 1


@pytest.mark.parametrize("how", [rlplat.exit_actor, sys.exit])
def test_an_end_cuts_off_what_runs_for_ever_and_refuses_what_comes(cluster: None, how: Any) -> None:
    class Serving:
        async def loop(self) -> None:
            while True:
                await asyncio.sleep(0.05)

        async def soon(self) -> str:
            await asyncio.sleep(0.3)
            return "done"

        async def leave(self) -> None:
            how()

    actor = rlplat.remote(Serving).remote()
    loop, soon = actor.loop.remote(), actor.soon.remote()
    with pytest.raises(ActorDied, match="it called"):
        rlplat.get(actor.leave.remote(), timeout=60)
    assert rlplat.get(soon, timeout=60) == "done"
    with pytest.raises(ActorDied, match="did not come to its end"):
        rlplat.get(loop, timeout=60)
    with pytest.raises(ActorDied):
        rlplat.get(actor.soon.remote(), timeout=60)


def test_coroutines_return_large_values_several_values_and_refs(cluster: None) -> None:
    import numpy as np

    class Various:
        async def large(self) -> Any:
            return np.ones(1_000_000)

        @rlplat.method(num_returns=2)
        async def pair(self) -> tuple[int, int]:
            return 1, 2

        def a_ref(self) -> list:
            return [rlplat.put(5)]

    actor = rlplat.remote(Various).remote()
    assert rlplat.get(actor.large.remote(), timeout=60).sum() == 1_000_000
    assert rlplat.get(actor.pair.remote(), timeout=60) == [1, 2]
    assert rlplat.get(rlplat.get(actor.a_ref.remote(), timeout=60)[0], timeout=60) == 5


def test_async_constructor_arguments_and_death_work_as_for_others(cluster: None) -> None:
    actor = meeting().remote(expected=2)
    hanging = actor.attend.remote(1)
    rlplat.get(actor.who.remote(), timeout=60)
    rlplat.kill(actor)
    with pytest.raises(ActorDied):
        rlplat.get(hanging, timeout=60)


# ---------------------------------------------------------------- refs in event loops of the driver


def test_the_driver_awaits_refs_in_any_loop(cluster: None) -> None:
    @rlplat.remote
    def double(x: int) -> int:
        return 2 * x

    @rlplat.remote
    def fail() -> None:
        raise KeyError("remote")

    async def main() -> None:
        assert await double.remote(4) == 8
        assert await asyncio.gather(*(double.remote(i) for i in range(300))) == [2 * i for i in range(300)]
        ready = rlplat.put("there already")
        assert await ready == "there already"
        with pytest.raises(KeyError, match="remote"):
            await fail.remote()
        done, pending = await asyncio.wait([asyncio.wrap_future(double.remote(i).future()) for i in range(20)])
        assert sorted(future.result() for future in done) == [2 * i for i in range(20)]
        assert not pending
        assert await asyncio.wait_for(double.remote(1), 30) == 2

    asyncio.run(main())
    asyncio.run(main())  # another loop
    errors: list[BaseException] = []

    def in_a_thread() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=in_a_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_an_await_can_be_given_up(cluster: None, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @rlplat.remote
    def slow() -> int:
        while not gate.exists():
            time.sleep(0.005)
        return 7

    async def main() -> None:
        ref = slow.remote()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ref, 0.05)
        gate.touch()
        assert await ref == 7

    asyncio.run(main())


def test_futures_are_settled_outside_the_runtime(cluster: None) -> None:
    @rlplat.remote
    def one() -> int:
        return 1

    before = threading.active_count()
    seen: list[int] = []
    futures = [one.remote().future() for _ in range(200)]
    for future in futures:
        future.add_done_callback(lambda done: seen.append(rlplat.get(one.remote()) + done.result()))
    assert [future.result(60) for future in futures] == [1] * 200
    assert threading.active_count() <= before + 1  # one thread for all, not one for each
    assert soon(lambda: seen == [2] * 200)


@pytest.mark.process
def test_what_is_awaited_at_shutdown_is_told() -> None:
    rlplat.init(num_cpus=1, num_gpus=0)
    try:

        @rlplat.remote
        def hang() -> None:
            time.sleep(1000)

        async def main() -> None:
            waiting = asyncio.ensure_future(hang.remote())
            await asyncio.sleep(0)
            await asyncio.to_thread(rlplat.shutdown)
            with pytest.raises(rlplat.errors.NotInitialized, match="shut down"):
                await waiting

        asyncio.run(main())
    finally:
        rlplat.shutdown()


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}], ids=["plain", "concurrent"])
def test_a_traceback_begins_with_the_user_s_code(backend: str, options: dict[str, int]) -> None:
    class Failing:
        async def fail(self) -> None:
            raise ValueError("here")

    class Threaded:
        def fail(self) -> None:
            raise ValueError("here")

    for kind in (Failing, Threaded):
        with pytest.raises(ValueError) as caught:
            rlplat.get(rlplat.remote(num_cpus=0)(kind).options(**options).remote().fail.remote())
        files = [line for line in str(caught.value).splitlines() if line.startswith("  File ")]
        assert __file__ in files[0]
