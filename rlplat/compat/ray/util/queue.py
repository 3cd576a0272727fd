"""`ray.util.queue.Queue`: an asyncio.Queue in an actor, for tasks and actors to share."""

from __future__ import annotations

import asyncio
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

    async def get(self, timeout: float | None) -> tuple[Any, ...]:
        try:
            return (await asyncio.wait_for(self._queue.get(), timeout),)
        except TimeoutError:
            return ()


class Queue:
    """Full and Empty are raised as by `queue.Queue`; it may be passed to tasks and actors."""

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor = rlplat.remote(**{"max_concurrency": 1000, **(actor_options or {})})(_Items).remote(
            maxsize
        )

    def qsize(self) -> int:
        return int(rlplat.get(self.actor.size.remote()))

    size = __len__ = qsize

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return 0 < self.maxsize <= self.qsize()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if not rlplat.get(self.actor.put.remote(item, timeout if block else 0.0)):
            raise Full

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        got = rlplat.get(self.actor.get.remote(timeout if block else 0.0))
        if not got:
            raise Empty
        return got[0]

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if not await self.actor.put.remote(item, timeout if block else 0.0):
            raise Full

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        if not (got := await self.actor.get.remote(timeout if block else 0.0)):
            raise Empty
        return got[0]

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def shutdown(self, force: bool = False) -> None:
        rlplat.kill(self.actor)
