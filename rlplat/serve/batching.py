"""Batches: one is made of all that waits when the function gets free, up to `max_size` rows. It never waits for more,
unless it is told to (`max_wait_ms`).

    batcher = Batcher(run, max_rows=256)                     # run(pieces) -> one result, or exception, for each
    answer = await batcher.submit(item, num_rows)

Rows are counted, not requests: what has more than `max_size` is cut and its results are joined. Each caller gets the
rows that it asked for. `Batch` and `batch` are the option and the decorator: docs/serving-reference.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from rlplat.errors import ConfigError
from rlplat.section import Count, Section
from rlplat.serve.multiplexing import no_model_request
from rlplat.serve.refusals import busy

INLINE_S = 1e-3
"""A function that takes longer runs in a thread, so that the event loop goes on reading requests."""


class Batch(Section):
    """The option `batch` of a deployment: one of its methods takes a list of inputs and returns a list of as many
    results, while its callers give one input each and get its result. An exception in the returned list is raised for
    its caller alone."""

    max_size: Count = 64
    """Rows of a batch, at most."""
    max_wait_ms: Annotated[float, Field(ge=0)] = 0.0
    """How long the oldest input may wait for others; 0: a batch is what waits when the method gets free."""
    method: str = "__call__"
    many: bool = False
    """Each call gives a list or an array of rows, and gets the list of their results. The method sees the rows of all
    calls as one list; a call with more than max_size rows is cut."""
    retry_singly: bool = False
    """A method that raises is called again, once with each call's input alone, so that only those fail with which it
    raises. Its effects happen twice then."""


@dataclass
class Waiting:
    item: Any
    num_rows: int
    future: asyncio.Future[Any] = field(repr=False)
    since: float = 0.0
    """On the clock of the event loop."""
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


def seconds_to_wait(queue: deque[Waiting], max_rows: int, max_wait_s: float, now: float) -> float:
    """Until the next batch is to be taken; 0 where it is full, or the oldest of it has waited `max_wait_s`."""
    num_rows, oldest = 0, math.inf
    for waiting in queue:
        if waiting.future.done():
            continue
        num_rows += waiting.num_rows - waiting.num_taken
        oldest = min(oldest, waiting.since)
        if num_rows >= max_rows:
            return 0.0
    return max(0.0, oldest + max_wait_s - now) if num_rows else 0.0


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
        max_wait_s: float = 0.0,
        retries_singly: bool = False,
    ) -> None:
        """run: pieces -> a result or an exception for each, in their order; join: makes one result of an item's pieces;
        executor: where a function that is slow runs (of one thread, as it is never called twice at once);
        max_wait_s: how long an item may wait for others to fill its batch; retries_singly: a batch that raises is run
        again, once for each item."""
        self._run, self._join, self._executor, self._name = run, join, executor, name
        self._max_rows, self._max_waiting_rows = max_rows, max_waiting_rows
        self._max_wait_s, self._retries_singly = max_wait_s, retries_singly
        self._queue: deque[Waiting] = deque()
        self._alone: deque[Piece] = deque()
        """Of a batch that raised: each is a batch of its own."""
        self.is_running = False
        """A batch runs, or the next one is waited for."""
        self._timer: asyncio.TimerHandle | None = None
        self._num_since_idle = 0
        """Items that came since nothing ran."""
        self._was_alone = False
        """There was one such item, the last time."""
        self._usual_s = 0.0
        self._is_async = inspect.iscoroutinefunction(run)
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_waiting_rows = 0
        self.num_batches = 0
        self.num_rows = 0

    def submit(self, item: Any, num_rows: int = 1, future: Any = None) -> asyncio.Future[Any]:
        """Refused ("busy") where the queue is full; one item that alone is larger than the queue is taken when it is
        empty. future: what gets the result in place of a new one."""
        if self.num_waiting_rows and self.num_waiting_rows + num_rows > self._max_waiting_rows:
            raise busy(self._name, len(self._queue))
        loop = asyncio.get_running_loop()
        waiting = Waiting(item, num_rows, future or loop.create_future(), loop.time())
        self._queue.append(waiting)
        self.num_waiting_rows += num_rows
        waiting.future.add_done_callback(lambda _: self._left(num_rows))
        self._num_since_idle += 1
        if not self.is_running:
            self.is_running = True
            if self._runs_at_once():
                self._run_batch(loop)
            else:
                loop.call_soon(self._next)  # what else arrived in this turn of the loop comes along
        elif self._timer is not None and self.num_waiting_rows >= self._max_rows:  # it may be full
            self._timer.cancel()
            self._timer = None
            loop.call_soon(self._next)
        return waiting.future

    def _left(self, num_rows: int) -> None:
        self.num_waiting_rows -= num_rows

    def _runs_at_once(self) -> bool:
        """Where a caller is usually alone and the function is quick: two turns of the event loop would cost more."""
        return self._was_alone and not self._max_wait_s and not self.is_slow()

    def is_slow(self) -> bool:
        return self._is_async or (self._executor is not None and self._usual_s > INLINE_S)

    def _next(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._max_wait_s and not self._alone:
            wait_s = seconds_to_wait(self._queue, self._max_rows, self._max_wait_s, loop.time())
            if wait_s > 0:
                self._timer = loop.call_later(wait_s, self._next)
                return
        self._run_batch(loop)

    def _run_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        is_again = bool(self._alone)
        pieces = [self._alone.popleft()] if is_again else take_batch(self._queue, self._max_rows)
        if not pieces:
            self._was_alone, self._num_since_idle = self._num_since_idle == 1, 0
            self.is_running = False
            return
        self.num_batches += 1
        self.num_rows += 0 if is_again else sum(piece.stop - piece.start for piece in pieces)
        if self.is_slow():
            task = loop.create_task(self._run_elsewhere(pieces))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._settle(pieces, self._timed(pieces))
        loop.call_soon(self._next)

    async def _run_elsewhere(self, pieces: list[Piece]) -> None:
        no_model_request()
        results: Sequence[Any] | Exception
        try:
            if self._is_async:
                results = _as_many(await self._run(pieces), pieces)  # type: ignore[misc]
            else:
                loop = asyncio.get_running_loop()
                results = await loop.run_in_executor(self._executor, self._timed, pieces)
        except Exception as error:
            results = error
        except BaseException as ending:
            self._settle(pieces, [RuntimeError(f"the batch was ended by {ending!r}")] * len(pieces))
            raise
        self._settle(pieces, results)
        self._next()

    def _timed(self, pieces: list[Piece]) -> Sequence[Any] | Exception:
        begin = time.perf_counter()
        try:
            return _as_many(self._run(pieces), pieces)
        except Exception as error:
            return error
        finally:
            took = time.perf_counter() - begin
            # Follows the median: a batch during which the process had no CPU says nothing of the function.
            self._usual_s = self._usual_s * (1.1 if took > self._usual_s else 0.9) if self._usual_s else took

    def _settle(self, pieces: list[Piece], results: Sequence[Any] | Exception) -> None:
        if isinstance(results, Exception):
            if len(pieces) > 1 and self._retries_singly:
                self._alone.extend(pieces)
                return
            results = [results] * len(pieces)
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


def _as_many(results: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    if not isinstance(results, list | tuple) or len(results) != len(inputs):
        got = f"{len(results)} of them" if isinstance(results, list | tuple) else type(results).__name__
        raise TypeError(f"a batched function returns a list of one result for each input ({len(inputs)}), not {got}")
    return results


def batched(
    function: Callable[..., Any],
    batch: Batch,
    name: str,
    executor: Executor | None,
    max_waiting_rows: int = 2**62,
) -> Callable[..., Any]:
    """What takes the place of a function (or bound method) of a list: called with one input, or with some where
    `batch.many`, it answers with the result. A `def` runs in `executor`."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name} is batched and yields; a batched method returns a list of results")
    is_coroutine = inspect.iscoroutinefunction(function)

    async def run(pieces: list[Piece]) -> Sequence[Any]:
        inputs = [row for piece in pieces for row in piece.item[piece.start : piece.stop]]
        if is_coroutine:
            returned = await function(inputs)
        else:
            returned = await asyncio.get_running_loop().run_in_executor(executor, function, inputs)
        results = iter(_as_many(returned, inputs))
        answers: list[Any] = []
        for piece in pieces:
            rows = [next(results) for _ in range(piece.stop - piece.start)]
            answers.append(next((row for row in rows if isinstance(row, BaseException)), rows))
        return answers

    batcher = Batcher(
        run,
        max_rows=batch.max_size,
        max_waiting_rows=max_waiting_rows,
        join=lambda parts: [row for part in parts for row in part],
        name=name,
        max_wait_s=batch.max_wait_ms / 1000,
        retries_singly=batch.retry_singly,
    )

    async def answer(item: Any) -> Any:
        if not batch.many:
            return (await batcher.submit([item]))[0]
        is_array = hasattr(item, "shape") and hasattr(item, "dtype")
        if not is_array and not isinstance(item, list | tuple):
            raise TypeError(f"{name} takes many inputs (batch.many): a list or an array, not {type(item).__name__}")
        return await batcher.submit(item, len(item)) if len(item) else []

    answer.__qualname__ = name  # in the TypeError of a call with other arguments
    return answer


def batch(
    function: Any = None,
    *,
    max_size: int = 64,
    max_wait_ms: float = 0.0,
    max_waiting_rows: int = 10_000,
    retry_singly: bool = False,
) -> Any:
    """Decorator of an `async def` method that takes a list of inputs and returns a list of results; callers give one
    input and get one result. An exception in the returned list is raised for its caller alone."""
    options = Batch(max_size=max_size, max_wait_ms=max_wait_ms, retry_singly=retry_singly)

    def decorate(function: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"serve.batch is for an `async def` method, which {function.__qualname__} is not; "
                f"the deployment's option batch=serve.Batch(method={function.__name__!r}) takes a `def` too"
            )
        attribute = f"_batcher_of_{function.__name__}"

        @functools.wraps(function)
        async def method(self: Any, item: Any) -> Any:
            if attribute not in self.__dict__:
                call, name = functools.partial(function, self), function.__qualname__
                self.__dict__[attribute] = batched(call, options, name, None, max_waiting_rows)
            return await self.__dict__[attribute](item)

        return method

    return decorate if function is None else decorate(function)
