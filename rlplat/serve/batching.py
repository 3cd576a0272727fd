"""Batches that never wait: one is made of all that waits when the function gets free, up to `max_rows` rows.

    batcher = Batcher(run, max_rows=256)                     # run(pieces) -> one result, or exception, for each
    answer = await batcher.submit(item, num_rows)

    @serve.batch(max_rows=32)
    async def predict(self, inputs: list) -> list: ...       # called with one input, answers with one result

Rows are counted, not requests: what has more than `max_rows` is cut and its results are joined. Each caller gets the
rows that it asked for. When a batch raises it is run again by halves, so that only the item with which it raises fails.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from rlplat.serve.refusals import busy

INLINE_S = 1e-3
"""A function that takes longer runs in a thread, so that the event loop goes on reading requests."""


@dataclass
class Waiting:
    item: Any
    num_rows: int
    future: asyncio.Future[Any] = field(repr=False)
    num_taken: int = 0
    results: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of an item."""

    waiting: Waiting
    start: int
    stop: int

    @property
    def item(self) -> Any:
        return self.waiting.item

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.waiting.num_rows


def take_batch(queue: deque[Waiting], max_rows: int) -> list[Piece]:
    """The next batch, first come, first served: at most `max_rows` rows. What is taken whole leaves the queue."""
    pieces: list[Piece] = []
    room = max_rows
    while queue and room > 0:
        first = queue[0]
        if first.future.done():  # its caller has gone
            queue.popleft()
            continue
        stop = min(first.num_rows, first.num_taken + room)
        pieces.append(Piece(first, first.num_taken, stop))
        room -= stop - first.num_taken
        first.num_taken = stop
        if stop == first.num_rows:
            queue.popleft()
    return pieces


Run = Callable[[list[Piece]], Sequence[Any]]
RunAsync = Callable[[list[Piece]], Awaitable[Sequence[Any]]]


class Batcher:
    def __init__(
        self,
        run: Run | RunAsync,
        *,
        max_rows: int,
        max_waiting_rows: int = 2**62,
        join: Callable[[list[Any]], Any] = lambda results: results[0],
        name: str = "the queue",
        executor: Executor | None = None,
    ) -> None:
        """run: pieces -> a result or an exception for each, in their order; join: makes one result of an item's pieces;
        executor: where a function that is slow runs (of one thread, as it is never called twice at once)."""
        self._run, self._join, self._executor, self._name = run, join, executor, name
        self._max_rows, self._max_waiting_rows = max_rows, max_waiting_rows
        self._queue: deque[Waiting] = deque()
        self._is_running = False
        self._usual_s = 0.0
        self._is_async = inspect.iscoroutinefunction(run)
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_waiting_rows = 0
        self.num_batches = 0
        self.num_rows = 0

    def submit(self, item: Any, num_rows: int = 1) -> asyncio.Future[Any]:
        """Refused ("busy") where the queue is full; one item that alone is larger than the queue is taken when it is
        empty."""
        if self.num_waiting_rows and self.num_waiting_rows + num_rows > self._max_waiting_rows:
            raise busy(self._name, len(self._queue))
        loop = asyncio.get_running_loop()
        waiting = Waiting(item, num_rows, loop.create_future())
        self._queue.append(waiting)
        self.num_waiting_rows += num_rows
        waiting.future.add_done_callback(lambda _: self._left(num_rows))
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._next)  # what else arrived in this turn of the loop comes along
        return waiting.future

    def _left(self, num_rows: int) -> None:
        self.num_waiting_rows -= num_rows

    def _next(self) -> None:
        pieces = take_batch(self._queue, self._max_rows)
        if not pieces:
            self._is_running = False
            return
        self.num_batches += 1
        self.num_rows += sum(piece.stop - piece.start for piece in pieces)
        if self._is_async or (self._executor is not None and self._usual_s > INLINE_S):
            task = asyncio.get_running_loop().create_task(self._run_elsewhere(pieces))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._settle(pieces, self._timed(pieces))
        asyncio.get_running_loop().call_soon(self._next)

    async def _run_elsewhere(self, pieces: list[Piece]) -> None:
        try:
            if self._is_async:
                results = await self._halves_async(pieces)
            else:
                loop = asyncio.get_running_loop()
                results = await loop.run_in_executor(self._executor, self._timed, pieces)
        except Exception as error:  # the executor was shut down
            results = [error] * len(pieces)
        except BaseException as ending:
            self._settle(pieces, [RuntimeError(f"the batch was ended by {ending!r}")] * len(pieces))
            raise
        self._settle(pieces, results)
        self._next()

    def _timed(self, pieces: list[Piece]) -> Sequence[Any]:
        begin = time.perf_counter()
        results = self._halves(pieces)
        took = time.perf_counter() - begin
        # Follows the median: a batch during which the process had no CPU says nothing of the function.
        self._usual_s = self._usual_s * (1.1 if took > self._usual_s else 0.9) if self._usual_s else took
        return results

    def _halves(self, pieces: list[Piece]) -> Sequence[Any]:
        try:
            return _as_many(self._run(pieces), pieces)
        except Exception as error:
            if len(pieces) == 1:
                return [error]
            middle = len(pieces) // 2
            return [*self._halves(pieces[:middle]), *self._halves(pieces[middle:])]

    async def _halves_async(self, pieces: list[Piece]) -> Sequence[Any]:
        try:
            return _as_many(await self._run(pieces), pieces)  # type: ignore[misc]
        except Exception as error:
            if len(pieces) == 1:
                return [error]
            middle = len(pieces) // 2
            return [
                *await self._halves_async(pieces[:middle]),
                *await self._halves_async(pieces[middle:]),
            ]

    def _settle(self, pieces: list[Piece], results: Sequence[Any]) -> None:
        for piece, result in zip(pieces, results, strict=True):
            waiting = piece.waiting
            if waiting.future.done():
                continue
            if isinstance(result, BaseException):
                waiting.future.set_exception(result)
                continue
            if piece.is_whole:
                waiting.future.set_result(result)
                continue
            waiting.results.append(result)
            if piece.stop == waiting.num_rows:
                waiting.future.set_result(self._join(waiting.results))


def _as_many(results: Any, pieces: list[Piece]) -> Sequence[Any]:
    if not isinstance(results, list | tuple) or len(results) != len(pieces):
        got = f"{len(results)} of them" if isinstance(results, list | tuple) else type(results).__name__
        raise TypeError(
            f"a batched function returns a list of one result for each input ({len(pieces)}), not {got}"
        )
    return results


def batch(function: Any = None, *, max_rows: int = 64, max_waiting_rows: int = 10_000) -> Any:
    """Decorator of an `async def` method that takes a list of inputs and returns a list of results; callers give one
    input and get one result. An exception in the returned list is raised for its caller alone."""

    def decorate(function: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"serve.batch is for an `async def` method, which {function.__qualname__} is not")
        attribute = f"_batcher_of_{function.__name__}"

        @functools.wraps(function)
        async def method(self: Any, item: Any) -> Any:
            batcher = self.__dict__.get(attribute)
            if batcher is None:

                async def run(pieces: list[Piece]) -> Sequence[Any]:
                    results: Sequence[Any] = await function(self, [piece.item for piece in pieces])
                    return results

                batcher = self.__dict__[attribute] = Batcher(
                    run, max_rows=max_rows, max_waiting_rows=max_waiting_rows, name=function.__qualname__
                )
            return await batcher.submit(item)

        return method

    return decorate if function is None else decorate(function)
