"""What runs in Ray's workers: the user's functions, and the actors that hold the user's objects.

Errors are described where they happen, so that a caller sees the same text and the same class as on any backend.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from ray import cloudpickle
from ray.exceptions import AsyncioActorExit

from rlplat.runtime.ray.values import Failed, failure, ours_of
from rlplat.runtime.wire.codec import Raised, split_returns
from rlplat.runtime.wire.values import ActorInfo, ErrorInfo

running: ContextVar[str | None] = ContextVar("running", default=None)
"""The name of the task or call that this thread or coroutine executes."""


class CallSpec(NamedTuple):
    what: str
    """What messages call it."""
    retry: bool | tuple[Any, ...] = False
    """`retry_exceptions`."""
    num_returns: int = 1
    method: str = ""
    """Of an actor."""

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments, as users see them."""
        running.set(self.what.removeprefix("task "))
        return tuple(map(ours_of, args)), {name: ours_of(value) for name, value in kwargs.items()}

    def failure(self, error: Exception) -> Failed:
        return failure(error, self.what, self.retry)

    def checked(self, value: Any) -> Any:
        """A result: of as many values as the caller has refs."""
        if self.num_returns <= 1:
            return value
        values = split_returns(value, self.num_returns, self.what)
        if isinstance(values[-1], Raised):
            raise values[-1].error
        return tuple(values)


@functools.lru_cache(1000)
def packed(spec: CallSpec) -> bytes:
    """As it travels with a call: Ray sends bytes as they are, and anything else through its pickler."""
    return bytes(cloudpickle.dumps(spec))


@functools.lru_cache(1000)
def unpacked(spec: bytes) -> CallSpec:
    found: CallSpec = pickle.loads(spec)
    return found


def task(target: Callable[..., Any]) -> Callable[..., Any]:
    def run(packed_spec: bytes, /, *args: Any, **kwargs: Any) -> Any:
        spec = unpacked(packed_spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            return spec.checked(target(*args, **kwargs))
        except Exception as error:
            raise spec.failure(error) from None

    return run


def generator_task(target: Callable[..., Any]) -> Callable[..., Any]:
    def run(packed_spec: bytes, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        spec = unpacked(packed_spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            # Not `yield from`: Ray sends what some iterators do not take.
            for value in target(*args, **kwargs):  # noqa: UP028
                yield value
        except Exception as error:
            raise spec.failure(error) from None

    return run


class Identity(NamedTuple):
    """What an actor knows of itself."""

    info: ActorInfo
    is_detached: bool


here: Identity | None = None
"""In the process of an actor."""


class Host:
    """An actor of Ray that holds an object of the user's class."""

    def __init__(self, target: Any, identity: Identity, /, *args: Any, **kwargs: Any) -> None:
        global here
        here = identity
        self._death: ErrorInfo | None = None
        try:
            args, kwargs = CallSpec(f"{identity.info.class_name}.__init__").begins(args, kwargs)
            self._instance = target(*args, **kwargs)
        except AsyncioActorExit:
            raise
        except Exception as error:  # told to each caller: Ray would pass on its text only
            name = identity.info.class_name
            info = failure(error, f"actor {name}", False).info
            text = f"actor {name} could not be created: {info.message}"
            self._death = ErrorInfo("ActorDied", text, info.exception)

    def _method(self, spec: CallSpec) -> Any:
        if self._death is not None:
            raise Failed(self._death)
        return getattr(self._instance, spec.method)

    def call(self, packed_spec: bytes, /, *args: Any, **kwargs: Any) -> Any:
        spec = unpacked(packed_spec)
        method = self._method(spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            return spec.checked(method(*args, **kwargs))
        except Exception as error:
            raise spec.failure(error) from None

    def stream(self, packed_spec: bytes, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        spec = unpacked(packed_spec)
        method = self._method(spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            for value in method(*args, **kwargs):  # noqa: UP028
                yield value
        except Exception as error:
            raise spec.failure(error) from None


class AsyncHost(Host):
    """Of a class with methods that are coroutines: all its methods run on one event loop."""

    async def call(self, packed_spec: bytes, /, *args: Any, **kwargs: Any) -> Any:
        spec = unpacked(packed_spec)
        method = self._method(spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            value = method(*args, **kwargs)
            return spec.checked(await value if inspect.isawaitable(value) else value)
        except AsyncioActorExit:
            raise
        except Exception as error:
            raise spec.failure(error) from None

    async def stream(self, packed_spec: bytes, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        spec = unpacked(packed_spec)
        method = self._method(spec)
        args, kwargs = spec.begins(args, kwargs)
        try:
            values = method(*args, **kwargs)
            if hasattr(values, "__aiter__"):
                async for value in values:
                    yield value
            else:
                for value in values:
                    yield value
        except AsyncioActorExit:
            raise
        except Exception as error:
            raise spec.failure(error) from None


def host_class(target: Any, name: str, is_async: bool) -> type:
    """The host of a user's class, under its name, which Ray's messages and pages show. Each method of the user's is one
    of it, so that a plain call has no spec to pack, send and unpack."""
    kind = AsyncHost if is_async else Host
    methods = {
        method: _method(packed(CallSpec(f"{name}.{method}", method=method)), is_async)
        for method in dir(target)
        if not method.startswith("_") and not hasattr(kind, method) and callable(getattr(target, method))
    }
    return type(name, (kind,), methods)


def _method(packed_spec: bytes, is_async: bool) -> Callable[..., Any]:
    def call(self: Host, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(packed_spec, *args, **kwargs)

    async def call_async(self: AsyncHost, /, *args: Any, **kwargs: Any) -> Any:
        return await self.call(packed_spec, *args, **kwargs)

    return call_async if is_async else call
