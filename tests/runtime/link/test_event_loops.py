"""Event loops whose threads read the socket while they sleep: beside each other, beside threads, at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import rlplat
from rlplat.errors import NotInitialized
from rlplat.runtime.link.waiters import LeadingSelector

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("cluster")]


@rlplat.remote
class Echo:
    async def echo(self, x: Any) -> Any:
        return x

    async def never(self) -> None:
        await asyncio.Event().wait()


async def echoed(actor: Any, count: int) -> list[int]:
    return [await actor.echo.remote(number) for number in range(count)]


def test_two_loops_in_two_threads_and_a_thread_that_waits_for_nothing() -> None:
    actor = Echo.remote()
    never, results = actor.never.remote(), {}

    def run(name: str) -> None:
        results[name] = asyncio.run(echoed(actor, 200))

    waiting = threading.Thread(target=lambda: rlplat.wait([never], timeout=20))
    loops = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in (waiting, *loops):
        thread.start()
    for thread in loops:
        thread.join(15)
    still_waits = waiting.is_alive()
    rlplat.cancel(never)
    waiting.join()
    assert results == {"a": list(range(200)), "b": list(range(200))} and still_waits


def test_a_thread_that_stops_waiting_leaves_the_socket_to_a_loop_that_sleeps() -> None:
    actor = Echo.remote()

    async def main() -> list[int]:
        """Long enough for the thread to lead, and to go while the loop sleeps."""
        waiting = threading.Thread(target=lambda: rlplat.wait([actor.never.remote()], timeout=0.3))
        waiting.start()
        values = []
        for number in range(20):
            values.append(await actor.echo.remote(number))
            await asyncio.sleep(0.03)
        waiting.join()
        return values

    assert asyncio.run(main()) == list(range(20))


def test_an_actor_whose_coroutine_blocks_the_loop_still_answers() -> None:
    @rlplat.remote
    class Owner:
        async def make(self) -> list:
            return [rlplat.put(7)]

        async def block(self, seconds: float) -> float:
            time.sleep(seconds)
            return time.monotonic()

    owner = Owner.remote()
    (ref,) = rlplat.get(owner.make.remote())
    blocking = owner.block.remote(3.0)
    assert rlplat.get(ref) == 7
    read_at = time.monotonic()
    assert rlplat.get(blocking) > read_at


def test_the_loop_s_own_timers_and_readers_go_on() -> None:
    actor = Echo.remote()

    async def main() -> tuple[int, bytes]:
        ticks, reader, writer = 0, *await pipe()
        awaiting = asyncio.create_task(wait_for(actor))
        while ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
        writer.write(b"x")
        byte = await reader.readexactly(1)
        awaiting.cancel()
        writer.close()
        return ticks, byte

    async def wait_for(actor: Any) -> None:
        await actor.never.remote()

    async def pipe() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connected: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set_result(reader)
            await reader.read(0)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        reader = await connected
        server.close()
        return reader, writer

    assert asyncio.run(main()) == (20, b"x")


def test_one_loop_that_outlives_a_runtime_serves_the_next() -> None:
    rlplat.shutdown()

    async def main() -> list[Any]:
        loop: Any = asyncio.get_running_loop()
        own, seen = loop._selector, []
        for number in range(2):
            rlplat.init(num_cpus=1, num_gpus=0)
            actor = Echo.remote()
            seen.append(await actor.echo.remote(number))
            waiting = asyncio.ensure_future(actor.never.remote())
            await asyncio.sleep(0.05)
            rlplat.shutdown()
            with pytest.raises(NotInitialized):
                await waiting
            assert type(loop._selector) is LeadingSelector and loop._selector._inner is own
        return seen

    assert asyncio.run(main()) == [0, 1]
