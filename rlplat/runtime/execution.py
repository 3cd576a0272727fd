"""How calls run in a worker: in the main thread, in threads, in an event loop; and what generators send.

    tasks, plain actors          the main thread runs them one after the other: `Worker.run`
    max_concurrency or groups    `ThreadRunner`: a pool of threads for each concurrency group
    classes with `async def`     `LoopRunner`: coroutines in one event loop; sync methods run in it, one at a time

Calls of one caller begin in the order in which they were made, within a concurrency group. A generator runs where its
call runs, and is held back there when it is too far ahead of its consumer (rules: `streams`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlplat.runtime import codec, messages
from rlplat.runtime.api import TERMINATE, methods_of
from rlplat.runtime.awaiting import LoopInbox
from rlplat.runtime.crash_points import crash_point
from rlplat.runtime.messages import Value

if TYPE_CHECKING:
    from rlplat.runtime.worker import Worker

MAX_COROUTINES = 1000
_FLUSH_S = 0.001
_UNDER_WAY = 3
"""For `IoLoop.send_soon`: let values gather, more are coming."""
Key = tuple[str, int]


class ActorExit(BaseException):
    """Raised in the user's code by `rlplat.exit_actor()`."""


class EndOfActor(msgspec.Struct):
    """Takes the place of a call: the actor ends when it is its turn."""

    reason: str
    task: int = 0


EXITED = "it called rlplat.exit_actor()"
TERMINATED = "it was asked to end (__ray_terminate__), after the calls that were made before that"


class Runner(Protocol):
    """Where the calls of an actor run, when not in the main thread."""

    def submit(self, owner: str, message: Any) -> None:
        """A call (main thread)."""
        ...

    def cancel(self, task: Key, recursive: bool) -> None:
        """A call that is in this runner, or is not known (any thread, lock held)."""
        ...


def make_runner(worker: Worker, actor_class: type, message: messages.CreateActor) -> Runner | None:
    """How the calls of this actor run; None: one after the other in the main thread."""
    methods = methods_of(actor_class)
    groups = dict(message.concurrency_groups)
    group_by_method = {
        name: options.concurrency_group for name, options in methods.items() if options.concurrency_group
    }

    def group_of(call: Any) -> str:
        if type(call) is messages.RunFull:
            return call.group or group_by_method.get(call.name, "")
        return group_by_method.get(call.method, "")

    if is_async(actor_class):
        return LoopRunner(worker, groups | {"": message.max_concurrency or MAX_COROUTINES}, group_of)
    if groups or message.max_concurrency > 1:  # 0 and 1: one call after the other
        return ThreadRunner(worker, groups | {"": max(1, message.max_concurrency)}, group_of)
    return None


def is_async(actor_class: type) -> bool:
    """Whether a class has an `async def` method."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(actor_class, callable)
    )


class ThreadRunner:
    def __init__(self, worker: Worker, sizes: dict[str, int], group_of: Callable[[Any], str]) -> None:
        self._worker, self._group_of = worker, group_of
        self._pools = {
            group: ThreadPoolExecutor(size, thread_name_prefix=group or "calls")
            for group, size in sizes.items()
        }
        self._futures: dict[Key, Future[None]] = {}

    def submit(self, owner: str, message: Any) -> None:
        if type(message) is EndOfActor or getattr(message, "name", "") == TERMINATE:
            is_exit = type(message) is EndOfActor
            for pool in self._pools.values():
                pool.shutdown(wait=False, cancel_futures=is_exit)
            for pool in self._pools.values():
                pool.shutdown(wait=True)
            self._worker.end_actor(message.reason if is_exit else TERMINATED)
        key = (owner, message.task)
        future = self._futures[key] = self._pools[self._group_of(message)].submit(
            self._worker._call, owner, message
        )
        future.add_done_callback(lambda _: self._futures.pop(key, None))

    def cancel(self, task: Key, recursive: bool) -> None:
        future = self._futures.get(task)
        if future is not None and future.cancel():
            self._worker.reply_cancelled(task)


class LoopRunner:
    """Coroutines in an event loop that has a thread of its own. What follows `submit` and `cancel` runs in that."""

    def __init__(self, worker: Worker, sizes: dict[str, int], group_of: Callable[[Any], str]) -> None:
        self._worker, self._group_of = worker, group_of
        self._free = dict(sizes)
        self._waiting: dict[str, deque[tuple[str, Any]]] = {group: deque() for group in sizes}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._begun: set[Key] = set()
        self._cancelled: dict[Key, bool] = {}
        """Calls that are to end, and whether what they await is to end too."""
        self._will_flush = False
        self._is_ending = False
        self._loop = asyncio.new_event_loop()
        self._inbox = LoopInbox(self._loop)
        self.has_warned = False
        self.thread = threading.Thread(target=self._serve, name="rlplat-asyncio", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except (
                BaseException
            ):  # a SystemExit in a task that the user's code started ends that task, not the loop
                traceback.print_exc()

    def submit(self, owner: str, message: Any) -> None:
        if type(message) is EndOfActor or getattr(message, "name", "") == TERMINATE:
            is_exit = type(message) is EndOfActor
            asyncio.run_coroutine_threadsafe(self._drain(is_exit), self._loop).result()
            self._worker.end_actor(message.reason if is_exit else TERMINATED)
        self._inbox.post(self._start, owner, message)

    def cancel(self, task: Key, recursive: bool) -> None:
        self._inbox.post(self._cancel, task, recursive)

    # ---------------------------------------------------------------- in the loop's thread

    def _start(self, owner: str, message: Any) -> None:
        group = self._group_of(message)
        if self._free[group]:
            self._free[group] -= 1
            self._begin(owner, message, group)
        else:
            self._waiting[group].append((owner, message))

    def _begin(self, owner: str, message: Any, group: str) -> None:
        key = (owner, message.task)
        task = self._tasks[key] = self._loop.create_task(self._run(owner, message))
        task.add_done_callback(lambda _: self._ended(key, group))

    def _ended(self, key: Key, group: str) -> None:
        del self._tasks[key]
        self._begun.discard(key)
        self._cancelled.pop(key, None)
        if self._waiting[group] and not self._is_ending:
            self._begin(*self._waiting[group].popleft(), group)
        else:
            self._free[group] += 1

    def _cancel(self, key: Key, recursive: bool) -> None:
        for waiting in self._waiting.values():
            for call in waiting:
                if (call[0], call[1].task) == key:
                    waiting.remove(call)
                    with self._worker._lock:
                        self._worker.drop_arguments(call[1])
                        self._worker.reply_cancelled(key)
                        self._worker._loop.send_now()
                    return
        task = self._tasks.get(key)
        if task is not None:
            self._cancelled[key] = recursive
            if key in self._begun:  # else it sees for itself when it begins
                task.cancel()

    def awaits_for_cancelled(self) -> bool:
        """Whether the coroutine that runs now belongs to a call that was cancelled with all that it submitted."""
        return self._cancelled.get(_running_call.get(), False)

    async def _run(self, owner: str, message: Any) -> None:
        worker, key = self._worker, (owner, message.task)
        self._begun.add(key)
        _running_call.set(key)
        method, num_returns = (
            (message.method, 1) if type(message) is messages.Call else (message.name, message.num_returns)
        )
        what, began = f"{worker._actor_name}.{method}", time.perf_counter()
        try:
            if key in self._cancelled:
                raise asyncio.CancelledError
            args, kwargs = worker._open_call(owner, message)
            result = getattr(worker._instance, method)(*args, **kwargs)
            del args, kwargs
            if inspect.iscoroutine(result):
                result = await result
            if num_returns < 0:
                await stream_async(worker, owner, message, what, result)
            else:
                worker._reply(owner, message.task, what, num_returns, result)
        except ActorExit:
            worker.request_end(EXITED)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and key in self._cancelled:
                with worker._lock:
                    worker.reply_cancelled(key, num_returns, what)
            else:
                worker._reply_error(owner, message.task, what, num_returns, error)
        worker._spans.append((what, began, time.perf_counter()))
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Replies of all that ran in this round of the loop leave together."""
        self._will_flush = False
        with self._worker._lock:
            self._worker._loop.send_now()

    async def _drain(self, is_exit: bool) -> None:
        """Wait for the calls that run; for those that wait as well, unless the actor exits."""
        self._is_ending = is_exit
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
            await asyncio.sleep(0)

    def warn_of_blocking(self) -> None:
        if not self.has_warned:
            self.has_warned = True
            print(
                "rlplat: a blocking rlplat.get or wait in an async actor holds up all of its coroutines; write "
                "`await ref` instead",
                file=sys.stderr,
            )


_running_call: contextvars.ContextVar[Any] = contextvars.ContextVar("running_call", default=None)


def running_coroutine() -> Key | None:
    """The call whose coroutine asks."""
    return _running_call.get()


# ---------------------------------------------------------------- generators


class Outflow:
    """The values of one generator on their way to its owner."""

    def __init__(self, worker: Worker, owner: str, message: messages.RunFull, what: str) -> None:
        self._worker, self._owner, self._task, self._what = worker, owner, message.task, what
        self._window, self._have = message.window, message.have
        self._num_made = 0
        self._sent_at = 0.0
        self.num_taken = message.have
        self.is_closed = False
        """Nobody reads it any more."""
        self.wake: Callable[[Any], None] = lambda _: None

    def may_go_on(self) -> bool:
        return not self._window or self._num_made - self.num_taken < self._window or self.is_closed

    def send(self, value: Any) -> None:
        """The generator yielded this; what the owner has from an earlier attempt is not sent again."""
        index = self._num_made
        if index >= self._have:
            packed = codec.pack(value, f"value {index} of {self._what}")
            made = self._worker._objects.make_value(packed, self._owner)
            crash_point("after_value_is_stored_before_it_leaves")
            self._post(made)
        self._num_made += 1

    def fail(self, error: BaseException) -> None:
        """The generator raised: its last value."""
        self._num_made = max(self._num_made, self._have)
        self._post(Value(error=self._worker._describe_error(self._what, error)))

    def _post(self, value: Value) -> None:
        worker = self._worker
        with worker._lock:
            worker._objects.hand_over(value.refs, self._owner)
            worker._transport.post(self._owner, messages.Item(self._task, self._num_made, value))
            now = time.monotonic()
            if now - self._sent_at > _FLUSH_S:
                self._sent_at = now
                worker._loop.send_now()
            else:
                worker._loop.send_soon(_UNDER_WAY)


def stream(worker: Worker, owner: str, message: messages.RunFull, what: str, values: Any) -> None:
    """Send what a generator yields, then that it has ended."""
    iterator, flow = _iterator(values, what), worker.open_flow(owner, message, what)
    try:
        while not flow.is_closed:
            try:
                flow.send(next(iterator))
            except StopIteration:
                break
            except Exception as error:
                flow.fail(error)
                break
            if not flow.may_go_on():
                with worker._lock:
                    worker._wait_until(flow.may_go_on, None, "")
    finally:
        worker.close_flow(owner, message.task)
        _close(iterator)
    crash_point("after_last_value_before_end_of_stream")
    worker._reply(owner, message.task, what, 1, None)


async def stream_async(worker: Worker, owner: str, message: messages.RunFull, what: str, values: Any) -> None:
    """The same for generators, async or not, in an event loop."""
    is_async = hasattr(values, "__anext__")
    iterator = values if is_async else _iterator(values, what)
    flow = worker.open_flow(owner, message, what)
    try:
        while not flow.is_closed:
            try:
                flow.send(await anext(iterator) if is_async else next(iterator))
            except (StopIteration, StopAsyncIteration):
                break
            except Exception as error:
                flow.fail(error)
                break
            while not flow.may_go_on():
                with worker._lock:
                    waiter, flow.wake = worker._awaiting.waiter()
                    worker._loop.send_now()
                    if flow.may_go_on():
                        flow.wake(None)
                await waiter
            if not is_async:
                await asyncio.sleep(0)  # others have their turn between two values
    finally:
        worker.close_flow(owner, message.task)
        if is_async:
            await iterator.aclose()
        else:
            _close(iterator)
    worker._reply(owner, message.task, what, 1, None)


def _iterator(values: Any, what: str) -> Any:
    if not hasattr(values, "__next__"):
        raise TypeError(
            f"{what} was called with num_returns='streaming' or 'dynamic' and must return a generator, not "
            f"{type(values).__name__}"
        )
    return values


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        try:
            close()
        except BaseException:  # its `finally` failed, and nobody waits for it any more
            traceback.print_exc()
