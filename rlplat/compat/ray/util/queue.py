"""`ray.util.queue.Queue`: an asyncio.Queue in an actor, for tasks and actors to share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from queue import Empty, Full
from typing import Any

import rlplat


class _Items:
    def __init__(self, maxsize: int) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def size(self) -> int:
        return self._queue.qsize()

    async def put(self, item: Any, timeout: float | None) -> bool:
        try:
            await asyncio.wait_for(self._queue.put(item), timeout)
        except TimeoutError:
            return False
        return True

    async def get(self, timeout: float | None) -> list[Any]:
        try:
            return [await asyncio.wait_for(self._queue.get(), timeout)]
        except TimeoutError:
            return []

    async def put_now(self, items: list[Any]) -> bool:
        """All of them, or none."""
        if 0 < self._queue.maxsize < self._queue.qsize() + len(items):
            return False
        for item in items:
            self._queue.put_nowait(item)
        return True

    async def get_now(self, count: int) -> list[Any]:
        """So many, or none."""
        return [] if count > self._queue.qsize() else [self._queue.get_nowait() for _ in range(count)]


class Queue:
    """Full and Empty are raised as by `queue.Queue`; it may be passed to tasks and actors."""

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor = rlplat.remote(**{"max_concurrency": 1000, **(actor_options or {})})(_Items).remote(maxsize)

    def qsize(self) -> int:
        return int(rlplat.get(self.actor.size.remote()))

    size = __len__ = qsize

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    def _put(self, item: Any, block: bool, timeout: float | None) -> Any:
        return self.actor.put.remote(item, _checked(timeout)) if block else self.actor.put_now.remote([item])

    def _get(self, block: bool, timeout: float | None) -> Any:
        return self.actor.get.remote(_checked(timeout)) if block else self.actor.get_now.remote(1)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        _full_unless(rlplat.get(self._put(item, block, timeout)))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return _some(rlplat.get(self._get(block, timeout)))[0]

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        _full_unless(await self._put(item, block, timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        return _some(await self._get(block, timeout))[0]

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """All of them, or none and Full."""
        _full_unless(rlplat.get(self.actor.put_now.remote(list(items))))

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """So many, or none and Empty."""
        if not isinstance(num_items, int):
            raise TypeError(f"num_items must be a whole number, not {num_items!r}")
        if num_items < 0:
            raise ValueError(f"num_items must be at least 0, not {num_items}")
        return _some(rlplat.get(self.actor.get_now.remote(num_items))) if num_items else []

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """What was put and taken before comes to its end, unless that takes longer, or with `force`."""
        if not force:
            rlplat.wait([self.actor.__ray_terminate__.remote()], timeout=grace_period_s)
        rlplat.kill(self.actor)


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be at least 0, not {timeout!r}")
    return timeout


def _full_unless(is_put: bool) -> None:
    if not is_put:
        raise Full


def _some(items: list[Any]) -> list[Any]:
    if not items:
        raise Empty
    return items
