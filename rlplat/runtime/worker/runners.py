"""How calls run in a worker: in the main thread, in threads, in an event loop; and what generators send.

    tasks, plain actors          the main thread runs them one after the other: `Worker.run`
    max_concurrency or groups    `ThreadRunner`: a pool of threads for each concurrency group
    classes with `async def`     `event_loop`: coroutines in one event loop; sync methods run in it, one at a time

Calls of one caller begin in the order in which they were made, within a concurrency group. A generator runs where its
call runs, and is held back there when it is too far ahead of its consumer (rules: `streams`).
"""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlplat.runtime.process.crash_points import crash_point
from rlplat.runtime.remote import TERMINATE, is_async_class, methods_of
from rlplat.runtime.wire import codec, messages
from rlplat.runtime.wire.values import Value

if TYPE_CHECKING:
    from rlplat.runtime.worker.worker import Worker

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
EXITED_AT_ONCE = "it called rlplat.exit_actor() in its constructor"
TERMINATED = "it was asked to end (__ray_terminate__), after the calls that were made before that"


class Runner(Protocol):
    """Where the calls of an actor run, when not in the main thread."""

    @property
    def loop_thread(self) -> threading.Thread | None:
        """Of the event loop, if it has one."""
        ...

    def submit(self, owner: str, message: Any) -> None:
        """A call (main thread)."""
        ...

    def cancel(self, task: Key, recursive: bool) -> None:
        """A call that is in this runner, or is not known (any thread, lock held)."""
        ...

    def refuse_waiting(self, reason: str) -> None:
        """The actor ends: calls that were not begun fail (in the thread of the call that ends it, or the main one)."""
        ...

    def awaits_for_cancelled(self) -> bool:
        """Whether the coroutine that runs now belongs to a call that was cancelled with all that it submitted."""
        ...

    def warn_of_blocking(self) -> None:
        """A coroutine is about to block the event loop."""
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

    if is_async_class(actor_class):
        from rlplat.runtime.worker.event_loop import (
            LoopRunner,  # asyncio is slow to import, and few actors need it
        )

        return LoopRunner(worker, groups | {"": message.max_concurrency or MAX_COROUTINES}, group_of)
    if groups or message.max_concurrency > 1:  # 0 and 1: one call after the other
        return ThreadRunner(worker, groups | {"": max(1, message.max_concurrency)}, group_of)
    return None


class ThreadRunner:
    loop_thread = None

    def __init__(self, worker: Worker, sizes: dict[str, int], group_of: Callable[[Any], str]) -> None:
        self._worker, self._group_of = worker, group_of
        self._pools = {
            group: ThreadPoolExecutor(size, thread_name_prefix=group or "calls")
            for group, size in sizes.items()
        }
        self._futures: dict[Key, tuple[Future[None], Any]] = {}
        """With the messages of their calls."""

    def submit(self, owner: str, message: Any) -> None:
        if type(message) is EndOfActor or getattr(message, "name", "") == TERMINATE:
            is_exit = type(message) is EndOfActor
            if is_exit:
                self.refuse_waiting(message.reason)
            for pool in self._pools.values():
                pool.shutdown(wait=True)
            self._worker.end_actor(message.reason if is_exit else TERMINATED)
        key = (owner, message.task)
        future = self._pools[self._group_of(message)].submit(self._worker._call, owner, message)
        self._futures[key] = (future, message)
        future.add_done_callback(lambda _: self._futures.pop(key, None))

    def refuse_waiting(self, reason: str) -> None:
        for (owner, _), (future, call) in list(self._futures.items()):
            if future.cancel():
                with self._worker.link.lock:
                    self._worker.replies.refuse(owner, call, self._worker.actor_name, reason)

    def cancel(self, task: Key, recursive: bool) -> None:
        future, message = self._futures.get(task, (None, None))
        if future is not None and future.cancel():
            self._worker.replies.drop_arguments(task[0], message)
            self._worker.replies.cancelled(task, getattr(message, "num_returns", 1))

    def awaits_for_cancelled(self) -> bool:
        return False

    def warn_of_blocking(self) -> None:
        pass


running_call: contextvars.ContextVar[Any] = contextvars.ContextVar("running_call", default=None)


def running_coroutine() -> tuple[str, Any] | None:
    """(owner, message) of the call whose coroutine asks."""
    call: tuple[str, Any] | None = running_call.get()
    return call


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
            made = self._worker.objects.make_value(packed, self._owner)
            crash_point("after_value_is_stored_before_it_leaves")
            self._post(made)
        self._num_made += 1

    def fail(self, error: BaseException) -> None:
        """The generator raised: its last value."""
        self._num_made = max(self._num_made, self._have)
        self._post(Value(error=self._worker.replies.describe(self._what, error)))

    def _post(self, value: Value) -> None:
        worker = self._worker
        with worker.link.lock:
            worker.objects.hand_over(value.refs, self._owner)
            worker.link.transport.post(self._owner, messages.Item(self._task, self._num_made, value))
            now = worker.link.clock()
            if now - self._sent_at > _FLUSH_S:
                self._sent_at = now
                worker.link.loop.send_now()
            else:
                worker.link.loop.send_soon(_UNDER_WAY)


def stream(worker: Worker, owner: str, message: messages.RunFull, what: str, values: Any) -> None:
    """Send what a generator yields, then that it has ended."""
    iterator, flow = iterator_of(values, what), worker.open_flow(owner, message, what)
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
                with worker.link.lock:
                    worker.link.wait_until(flow.may_go_on, None, "")
    finally:
        worker.close_flow(owner, message.task)
        close_quietly(iterator)
    crash_point("after_last_value_before_end_of_stream")
    worker.replies.result(owner, message.task, what, 1, None)


def iterator_of(values: Any, what: str) -> Any:
    if not hasattr(values, "__next__"):
        raise TypeError(
            f"{what} was called with num_returns='streaming' or 'dynamic' and must return a generator, not "
            f"{type(values).__name__}"
        )
    return values


def close_quietly(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        try:
            close()
        except BaseException:  # its `finally` failed, and nobody waits for it any more
            traceback.print_exc()
