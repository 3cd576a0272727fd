"""Calls, actors and generators of the in-process backend.

A call runs to its end in the thread that made it. Two things cannot: methods of async actors, and calls whose
arguments such a method has still to make. They run on the event loop of `LoopThread`, which starts with the first of
them. A generator runs ahead of its consumer as far as its window, at once; then one value for each that is taken.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlplat.errors import Deadlock, RuntimeEnvFailed, RuntimeFault
from rlplat.runtime.core.owner.streams import Stream
from rlplat.runtime.generators import DynamicRefs, ObjectRefGenerator
from rlplat.runtime.inproc.objects import LocalObjects, Outcome, detached, open_packed
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import is_async_class
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import Packed
from rlplat.runtime.wire.errors import describe_error
from rlplat.runtime.wire.values import (
    DYNAMIC,
    STREAMING,
    ActorInfo,
    CallOptions,
    Capture,
    ErrorInfo,
    Shape,
    class_names,
)

_THREAD_CLOSE_S = 5.0

current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call", default=None)


# ---------------------------------------------------------------- calls


@dataclass(eq=False)
class Call:
    """A task, a constructor or a method that is to run."""

    what: str
    target: Callable[..., Any]
    """Looked up late for methods: the instance is there when those before it have run."""
    args: Packed
    deps: list[ObjectRef]
    """The refs among its arguments."""
    num_returns: int = 1
    window: int = 0
    timeout_s: float | None = None
    num_retries: int = 0
    retry_exceptions: bool | Collection[str] = False
    """By `codec.class_names`."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    actor: LocalActor | None = None
    group: str = ""
    shape: Shape = field(default_factory=Shape)
    """Tasks: what they are to hold."""
    capture: Capture | None = None
    """Tasks: where their children run."""
    out: list[ObjectRef] = field(default_factory=list)
    stream: LocalStream | None = None
    began_at: float = field(default_factory=time.monotonic)

    def arguments(self, objects: LocalObjects) -> tuple[tuple, dict]:
        """Copies, as a worker would get them; refs among them replaced by their values."""
        args, kwargs = open_packed(self.args)
        args = tuple(objects.read(arg) if isinstance(arg, ObjectRef) else arg for arg in args)
        return args, {
            key: objects.read(arg) if isinstance(arg, ObjectRef) else arg for key, arg in kwargs.items()
        }

    def may_retry(self, error: Exception) -> bool:
        classes = self.retry_exceptions
        if not self.num_retries or not classes:
            return False
        if classes is not True and set(class_names(type(error))).isdisjoint(classes):
            return False
        self.num_retries -= 1  # below 0: for ever
        return True

    def left_s(self) -> float | None:
        return None if self.timeout_s is None else self.began_at + self.timeout_s - time.monotonic()

    def deadline_error(self) -> ErrorInfo | None:
        """Nothing can interrupt a call in its caller's own thread: that it took too long is seen at its end."""
        left = self.left_s()
        if left is None or left > 0:
            return None
        text = f"{self.what} did not finish within its timeout_s={self.timeout_s:g}"
        return ErrorInfo("DeadlineExceeded", text)

    def outcomes(self, value: Any) -> list[Outcome]:
        """What it returned, as it would arrive."""
        parts = codec.split_returns(value, self.num_returns, self.what)
        if type(parts[-1]) is codec.Raised and self.retry_exceptions:
            raise parts[-1].error
        return [
            describe_error(part.error, self.what)
            if type(part) is codec.Raised
            else detached(codec.pack(part, f"the result of {self.what}"))
            for part in parts
        ]


# ---------------------------------------------------------------- actors


class LocalActor:
    def __init__(self, id: str, info: ActorInfo, make: Call, max_restarts: int, max_concurrency: int) -> None:
        self.id, self.info, self.make = id, info, make
        self.shape = Shape()
        self.capture: Capture | None = None
        """Where what it submits runs."""
        self.give_back: Callable[[], None] = lambda: None
        """Frees its resources."""
        self.incarnation = 1
        self.class_name = info.class_name
        self.names: tuple[str, str] | None = None
        """(namespace, name)."""
        self.num_restarts_left = max_restarts
        self.is_async = is_async_class(make.target)
        self.max_concurrency = max_concurrency
        self.creation: ObjectRef | None = None
        """A ref that a detached actor holds to itself: it does not end with its handles."""
        self.concurrency_groups: dict[str, int] = {}
        self.instance: Any = None
        self.death: ErrorInfo | None = None
        self.watchers: list[Callable[[Any], Any]] = []
        self.tail: ObjectRef | None = None
        """The end of the last call that had to wait: calls behind it wait as well."""
        self._lock = threading.Lock()
        self._holder = 0
        self._running = ""
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    def _may_overlap(self) -> bool:
        return self.is_async or self.max_concurrency > 1 or bool(self.concurrency_groups)

    def enter(self, what: str) -> None:
        """Calls do not overlap, unless `max_concurrency` allows them to."""
        if self._may_overlap():
            return
        if not self._lock.acquire(blocking=False):
            if self._holder == threading.get_ident():
                raise Deadlock(
                    f"{what} was called while this actor runs {self._running}: with backend='inproc' a call runs "
                    "inside .remote(), so an actor cannot be called from its own call"
                )
            if self._holder < 0:
                raise RuntimeFault(
                    f"{what} was called while the generator {self._running} of this actor has more values to come: "
                    "with backend='inproc' take (or drop) them first"
                )
            self._lock.acquire()
        self._holder, self._running = threading.get_ident(), what

    def lend_to_generator(self) -> None:
        self._holder = -1

    def leave(self) -> None:
        if self._may_overlap():
            return
        self._holder, self._running = 0, ""
        self._lock.release()

    def semaphore(self, group: str) -> asyncio.Semaphore:
        if group not in self._semaphores:
            size = self.concurrency_groups[group] if group else self.max_concurrency
            self._semaphores[group] = asyncio.Semaphore(size)
        return self._semaphores[group]


@contextmanager
def environment(runtime_env: dict[str, Any]) -> Iterator[None]:
    """`env_vars`, `working_dir` and `py_modules` around a call; afterwards everything is as it was."""
    if not runtime_env:
        yield
        return
    variables, directory, path = dict(os.environ), os.getcwd(), list(sys.path)
    os.environ.update({key: str(value) for key, value in runtime_env.get("env_vars", {}).items()})
    sys.path[:0] = [os.path.dirname(os.path.abspath(module)) for module in runtime_env.get("py_modules", ())]
    try:
        if runtime_env.get("working_dir"):
            os.chdir(runtime_env["working_dir"])
            sys.path.insert(0, os.getcwd())
        yield
    finally:
        os.chdir(directory)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(variables)


def check_environment(runtime_env: dict[str, Any], what: str, is_async: bool) -> None:
    """One process has one set of packages, and its coroutines one environment."""
    for key in ("pip", "uv", "conda", "container", "image_uri"):
        if runtime_env.get(key):
            raise RuntimeEnvFailed(
                f"{what} wants {key} packages of its own: backend='inproc' has one process, which has what it has. "
                "Install them here, or use backend='zmq'"
            )
    if runtime_env and is_async:
        raise RuntimeEnvFailed(
            f"{what} is an async actor with a runtime_env: with backend='inproc' its coroutines would share it "
            "with all others. Use backend='zmq'"
        )


# ---------------------------------------------------------------- generators


class LocalStream(Stream):
    """Values of a generator, made ahead as far as the window."""

    def __init__(self, task: int, call: Call, is_dynamic: bool) -> None:
        super().__init__(task, call.what, 0 if is_dynamic else call.window, is_dynamic)
        self.call = call
        self.iterator: Any = None
        """A sync generator that was begun and has not ended."""
        self.is_begun = False
        self.is_dropped = False
        """Nobody reads it; it ends as soon as it is begun."""
        self.pump: asyncio.Task[Any] | None = None
        self.room = asyncio.Event()
        """An async generator's leave to make another value."""
        self.advancing = threading.RLock()
        """Held while a sync generator runs: in the thread that began it, or in the consumer's."""

    def has_room(self) -> bool:
        return not self.window or len(self.ready) < self.window


class LocalStreams:
    """Where this backend's `ObjectRefGenerator`s get their refs."""

    def __init__(self, objects: LocalObjects, loop: LoopThread) -> None:
        self._objects, self._loop = objects, loop
        self._open: dict[int, LocalStream] = {}
        self._dropped: deque[int] = deque()

    def open(self, call: Call) -> Any:
        """What the caller gets; the call may begin."""
        completed = self._objects.add(None, call.what)
        call.out = [completed]
        call.stream = LocalStream(completed.id, call, call.num_returns == DYNAMIC)
        self._open[completed.id] = call.stream
        return completed if call.stream.is_dynamic else ObjectRefGenerator(self, call.stream, completed)

    # -- producing

    def begin(self, stream: LocalStream, value: Any) -> None:
        """The function was called: `value` is its generator."""
        if not isinstance(value, Iterator):
            self.end(
                stream,
                describe_error(
                    ValueError(f"it must be a generator to stream, and returned {type(value).__name__}"),
                    stream.name,
                ),
            )
            return
        with stream.advancing:  # before a consumer in another thread sees that there is an iterator
            stream.iterator, stream.is_begun = value, True
            if stream.call.actor is not None:
                stream.call.actor.lend_to_generator()
            self.advance(stream)

    def advance(self, stream: LocalStream) -> None:
        """Run a sync generator as far ahead as it may be."""
        with stream.advancing:
            while (iterator := stream.iterator) is not None and not stream.is_ended and stream.has_room():
                late = stream.call.deadline_error()
                if late is not None or stream.is_dropped:
                    self.end(stream, late)
                    return
                try:
                    with environment(stream.call.runtime_env):
                        value = next(iterator)
                    self.put(stream, detached(codec.pack(value, f"a value of {stream.name}")))
                except StopIteration:
                    self.end(stream, None)
                except Exception as error:
                    if stream.call.may_retry(
                        error
                    ):  # from its beginning, and on behind the values that are there
                        args, kwargs = stream.call.arguments(self._objects)
                        again = stream.call.target(*args, **kwargs)
                        stream.iterator = itertools.islice(again, stream.num_have, None)
                        continue
                    self.put(stream, describe_error(error, stream.name))
                    self.end(stream, None)

    async def pump(self, stream: LocalStream, generator: Any) -> None:
        """Run an async generator to its end, waiting whenever it is far enough ahead."""
        stream.is_begun, stream.pump = True, asyncio.current_task()
        try:
            async for value in generator:
                self.put(stream, detached(codec.pack(value, f"a value of {stream.name}")))
                while not stream.has_room():
                    stream.room.clear()
                    await stream.room.wait()
        except asyncio.CancelledError:
            self.end(stream, ErrorInfo("TaskCancelled", f"{stream.name} was cancelled by rlplat.cancel"))
            raise
        except Exception as error:
            self.put(stream, describe_error(error, stream.name))
        self.end(stream, None)

    def put(self, stream: LocalStream, outcome: Outcome) -> None:
        ref = self._objects.add(outcome)
        with self._objects.changed:
            stream.ready.append(ref)
            stream.num_have += 1
            self._objects.changed.notify_all()
        self._wake(stream)

    def end(self, stream: LocalStream, error: ErrorInfo | None) -> None:
        with self._objects.changed:
            if stream.is_ended:
                return
            self._open.pop(stream.task, None)
            stream.ended(error is not None)
            iterator, stream.iterator = stream.iterator, None
        if stream.is_dynamic and error is None:
            self._objects.fill(stream.task, codec.pack(DynamicRefs(list(stream.ready))))
            stream.ready.clear()
        else:
            self._objects.fill(stream.task, error or codec.pack(None))
        if iterator is not None and hasattr(iterator, "close"):
            try:
                iterator.close()
            except ValueError:  # it is this very generator that ends itself
                pass
            if stream.call.actor is not None:
                stream.call.actor.leave()
        with self._objects.changed:
            self._objects.changed.notify_all()
        self._wake(stream)

    def _wake(self, stream: LocalStream) -> None:
        with self._objects.changed:
            wakes, stream.wakes = stream.wakes, []
        for wake in wakes:
            wake(None)

    # -- consuming

    def is_ready(self, stream: Any) -> bool:
        return bool(stream.can_take() or stream.iterator is not None)

    def next_ref(self, stream: Any, completed: ObjectRef, timeout_s: float | None) -> ObjectRef | None:
        with self._objects.changed:
            if not self.is_ready(stream):
                self._objects.check_may_block(completed)
                self._objects.changed.wait_for(lambda: self.is_ready(stream), timeout_s)
        return self._take(stream, completed)

    async def next_ref_async(self, stream: Any, completed: ObjectRef) -> ObjectRef | None:
        while True:
            with self._objects.changed:
                if self.is_ready(stream):
                    break
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                stream.wakes.append(lambda _, w=waiter, loop=loop: loop.call_soon_threadsafe(_settle, w))
            await waiter
        return self._take(stream, completed)

    def _take(self, stream: LocalStream, completed: ObjectRef) -> ObjectRef | None:
        if not stream.ready:
            self.advance(stream)
        with self._objects.changed:
            if not stream.ready:
                return completed if stream.take_failure() else None
            ref: ObjectRef = stream.take()[0]
        self.advance(stream)
        if stream.pump is not None:
            self._loop.call_soon(stream.room.set)
        return ref

    # -- giving up

    def drop(self, task: int) -> None:
        self._dropped.append(task)

    def collect(self) -> None:
        """End the generators that nobody reads any more."""
        while self._dropped:
            stream = self._open.get(self._dropped.popleft())
            if stream is not None:
                stream.is_dropped = True
                self.cancel(stream)

    def cancel(self, stream: LocalStream) -> None:
        if stream.pump is not None:
            self._loop.call_soon(stream.pump.cancel)
        elif stream.is_begun:
            self.end(stream, ErrorInfo("TaskCancelled", f"{stream.name} was cancelled by rlplat.cancel"))

    def find(self, task: int) -> LocalStream | None:
        return self._open.get(task)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def is_stream(num_returns: int) -> bool:
    return num_returns in (STREAMING, DYNAMIC)


# ---------------------------------------------------------------- the event loop


class LoopThread:
    """An event loop in a thread of its own, started when somebody needs it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self.thread = threading.Thread(
                    target=self._loop.run_forever, name="rlplat-inproc-loop", daemon=True
                )
                self.thread.start()
            return self._loop

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], began: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Have it run; those that one thread spawns begin in that order. `began` gets its task."""
        loop = self._start()
        loop.call_soon_threadsafe(lambda: began(loop.create_task(coroutine)))

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._start().call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._loop is None or self.thread is None:
            return
        loop, self._loop = self._loop, None
        future = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        try:
            future.result(_THREAD_CLOSE_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            self.thread.join(_THREAD_CLOSE_S)
            if not self.thread.is_alive():
                loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), _THREAD_CLOSE_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


def call_options(options: CallOptions) -> dict[str, Any]:
    return {
        "num_returns": options.num_returns,
        "window": options.generator_backpressure,
        "timeout_s": options.timeout_s,
        "group": options.concurrency_group,
        "num_retries": options.max_task_retries or 0,
        "retry_exceptions": options.retry_exceptions,
    }
