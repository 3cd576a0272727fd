"""What runs in one process: calls, actors, generators."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rlplat.errors import Deadlock, RuntimeEnvFailed, SerializationError
from rlplat.given.say import say
from rlplat.runtime.core.owner.retries import covers
from rlplat.runtime.core.owner.streams import Stream
from rlplat.runtime.inproc.objects import Outcome, detached
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.remote import ActorHandle, is_async_class
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import Packed
from rlplat.runtime.wire.errors import describe_error
from rlplat.runtime.wire.values import ActorInfo, Capture, ErrorInfo, Shape

_LONG_S = 10.0
"""A coroutine that runs longer is told of: what it waits for may be a call that cannot run beside it."""
current_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call", default=None)


@dataclass(eq=False)
class Call:
    """A task, a constructor or a method that is to run."""

    what: str
    target: Callable[..., Any]
    """Looked up late for methods: after a restart the instance is another one."""
    args: Packed
    deps: list[ObjectRef]
    """The refs among its arguments."""
    num_returns: int = 1
    timeout_s: float | None = None
    num_retries: int = 0
    retry_exceptions: bool | frozenset[str] = False
    """By `class_names`."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    actor: LocalActor | None = None
    shape: Shape = field(default_factory=Shape)
    """Tasks: what they are to hold."""
    capture: Capture | None = None
    """Tasks: where their children run."""
    out: list[ObjectRef] = field(default_factory=list)
    began_at: float = field(default_factory=time.monotonic)
    caller: Call | None = field(default_factory=current_call.get)

    def failed(self, error: Exception) -> ErrorInfo | None:
        """What it ends with; None: it runs again."""
        if isinstance(error, SerializationError):
            return ErrorInfo("SerializationError", str(error))
        info = describe_error(error, self.what)
        if not self.num_retries or not covers(self.retry_exceptions, info):
            return info
        self.num_retries -= 1  # below 0: for ever
        return None

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


class LocalActor:
    def __init__(self, id: str, info: ActorInfo, make: Call, max_restarts: int, overlaps: bool) -> None:
        self.id, self.info, self.make = id, info, make
        self.class_name = info.class_name
        self.shape = Shape()
        self.capture: Capture | None = None
        """Where what it submits runs."""
        self.incarnation = 1
        self.names: tuple[str, str] | None = None
        """(namespace, name)."""
        self.num_restarts_left = max_restarts
        self.is_async = is_async_class(make.target)
        self.creation: ObjectRef | None = None
        """A ref that a detached actor holds to itself: it does not end with its handles."""
        self.concurrency_groups: Collection[str] = ()
        self.instance: Any = None
        self.death: ErrorInfo | None = None
        self.watchers: list[Callable[[Any], Any]] = []
        self._overlaps = overlaps or self.is_async
        """Its calls may run at the same time, where several threads make them."""
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None

    @contextmanager
    def entered(self, call: Call) -> Iterator[None]:
        """Calls of other threads wait; one that this actor makes of itself could only wait for itself."""
        outer = call.caller
        while outer is not None and outer.actor is not self:
            outer = outer.caller
        if outer is not None and not self._overlaps:
            raise Deadlock(
                f"{call.what} was called while this actor runs {outer.what}: with backend='inproc' a call runs "
                "inside .remote(), so an actor cannot be called from its own call"
            )
        if outer is not None or (self._overlaps and not self.is_async):  # coroutines have one loop
            yield
        else:
            with self._lock:
                yield

    def perform(self, call: Call, method: Callable[[], Any]) -> Any:
        """What it returns; a method of an async actor runs in a coroutine, to its end."""
        if not self.is_async:
            return method()

        async def whole() -> Any:
            warn = asyncio.get_running_loop().call_later(_LONG_S, say, _waits(call.what, _LONG_S))
            try:
                value = method()
                return await asyncio.wait_for(value, call.left_s()) if hasattr(value, "__await__") else value
            finally:
                warn.cancel()

        mine = self._runner = self._runner or asyncio.Runner()
        here = contextvars.copy_context()
        # A loop that waits for this call cannot run it: that of a coroutine of this actor, or of its caller.
        is_busy = mine.get_loop().is_running()

        def run() -> Any:
            with asyncio.Runner() if is_busy else nullcontext(mine) as runner:
                return runner.run(whole(), context=here)

        if not _in_a_loop():
            return run()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run).result()

    def close(self) -> None:
        self.instance = None
        runner, self._runner = self._runner, None
        if runner is not None and not runner.get_loop().is_running():
            runner.close()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _waits(what: str, seconds: float) -> str:
    return (
        f"{what} has run for {seconds:g} s: with backend='inproc' a coroutine runs to its end before the next "
        "call begins, so what another call is to do never comes"
    )


class LocalStream(Stream):
    """Values of a generator, each made when it is asked for."""

    def __init__(self, call: Call, iterator: Any) -> None:
        super().__init__(call.out[0].id, call.what, 0, is_dynamic=False)
        self.call, self.iterator = call, iterator
        self.actor: ActorHandle | None = None
        """The actor does not end before its generator."""

    def make_next(self) -> Any:
        """Raises StopIteration, or StopAsyncIteration, at its end."""
        if not inspect.isasyncgen(self.iterator):
            return next(self.iterator)
        assert self.call.actor is not None
        return self.call.actor.perform(self.call, self.iterator.__anext__)

    def close(self) -> None:
        with_end, self.iterator, self.actor = self.iterator, None, None
        if inspect.isgenerator(with_end):
            with_end.close()


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


def check_environment(runtime_env: dict[str, Any], what: str) -> None:
    """One process has one set of packages."""
    for key in ("pip", "uv", "conda", "container", "image_uri"):
        if runtime_env.get(key):
            raise RuntimeEnvFailed(
                f"{what} wants {key} packages of its own: backend='inproc' has one process, which has what it has. "
                "Install them here, or use backend='zmq'"
            )
