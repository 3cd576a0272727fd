"""`ActorPool` and `Queue` as Ray documents them."""

from __future__ import annotations

import asyncio
import queue
import time
from typing import Any

import pytest

import rlplat
import rlplat.compat.ray as ray
from rlplat.compat.ray.util import ActorPool
from rlplat.compat.ray.util.queue import Empty, Full, Queue

pytestmark = pytest.mark.process


@rlplat.remote
class Worker:
    def double(self, x: float) -> float:
        return 2 * x

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def double(actor: Any, value: float) -> Any:
    return actor.double.remote(value)


def sleep(actor: Any, value: float) -> Any:
    return actor.sleep.remote(value)


def test_map_gives_its_own_results_only(cluster: None) -> None:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    for value in (7, 8, 9):
        pool.submit(double, value)
    assert list(pool.map(double, range(3))) == [0, 2, 4]
    pool.submit(double, 7)
    assert sorted(pool.map_unordered(double, range(3))) == [0, 2, 4]
    assert not pool.has_next()
    assert pool.has_free()


def test_a_late_result_is_kept_or_ignored(cluster: None) -> None:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    pool.submit(sleep, 0.5)
    pool.submit(sleep, 0.01)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0, ignore_if_timedout=True)
    assert pool.get_next() == 0.01
    assert not pool.has_next()


def test_an_actor_is_in_a_pool_once(cluster: None) -> None:
    worker = Worker.remote()
    pool = ActorPool([worker])
    with pytest.raises(ValueError, match="already"):
        pool.push(worker)
    pool.submit(sleep, 0.1)
    with pytest.raises(ValueError, match="already"):
        pool.push(worker)
    assert pool.get_next() == 0.1


def test_without_blocking_there_is_room_or_full_an_item_or_empty(cluster: None) -> None:
    items = Queue(maxsize=3)
    items.put_nowait(1)
    items.put_nowait_batch([2, 3])
    for put in (lambda: items.put(4, block=False), lambda: items.put(4, timeout=0.05)):
        with pytest.raises(Full):
            put()
    assert items.get_nowait() == 1
    with pytest.raises(queue.Full):
        items.put_nowait_batch([4, 5])
    with pytest.raises(queue.Empty):
        items.get_nowait_batch(3)
    assert items.get_nowait_batch(2) == [2, 3]
    for get in (items.get_nowait, lambda: items.get(timeout=0.05)):
        with pytest.raises(Empty):
            get()

    async def both() -> Any:
        await items.put_async(5, block=False)
        return await items.get_async(block=False)

    assert asyncio.run(both()) == 5


def test_what_a_queue_is_given_wrong_is_said(cluster: None) -> None:
    items = Queue()
    for call in (
        lambda: items.put(1, timeout=-1),
        lambda: items.get(timeout=-1),
        lambda: items.get_nowait_batch(-1),
    ):
        with pytest.raises(ValueError, match="at least 0"):
            call()
    for call in (lambda: items.get_nowait_batch("a"), lambda: items.put_nowait_batch(3)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            call()
    items.shutdown(grace_period_s=60)
    with pytest.raises(ray.exceptions.RayActorError):
        items.get()


def test_the_window_of_a_generator_has_its_ray_name(cluster: None) -> None:
    @ray.remote(_generator_backpressure_num_objects=2)
    def numbers() -> Any:
        yield from range(5)

    assert [ray.get(ref) for ref in numbers.remote()] == [0, 1, 2, 3, 4]
