"""What runs in Ray's workers: the user's functions, and the actors that hold the user's objects.

Errors are described where they happen, so that a caller sees the same text and the same class as on any backend.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

from ray.exceptions import AsyncioActorExit

from rlplat.runtime.ray.values import Failed, failure
from rlplat.runtime.wire.codec import Raised, split_returns
from rlplat.runtime.wire.values import ActorInfo, ErrorInfo


class CallSpec(NamedTuple):
    what: str
    """What messages call it."""
    retry: bool | tuple[Any, ...] = False
    """`retry_exceptions`."""
    num_returns: int = 1
    method: str = ""
    """Of an actor."""

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


def task(target: Callable[..., Any]) -> Callable[..., Any]:
    def run(spec: CallSpec, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return spec.checked(target(*args, **kwargs))
        except Exception as error:
            raise spec.failure(error) from None

    return run


def generator_task(target: Callable[..., Any]) -> Callable[..., Any]:
    def run(spec: CallSpec, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
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

    def call(self, spec: CallSpec, /, *args: Any, **kwargs: Any) -> Any:
        method = self._method(spec)
        try:
            return spec.checked(method(*args, **kwargs))
        except Exception as error:
            raise spec.failure(error) from None

    def stream(self, spec: CallSpec, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        method = self._method(spec)
        try:
            for value in method(*args, **kwargs):  # noqa: UP028
                yield value
        except Exception as error:
            raise spec.failure(error) from None


class AsyncHost(Host):
    """Of a class with methods that are coroutines: all its methods run on one event loop."""

    async def call(self, spec: CallSpec, /, *args: Any, **kwargs: Any) -> Any:
        method = self._method(spec)
        try:
            value = method(*args, **kwargs)
            return spec.checked(await value if inspect.isawaitable(value) else value)
        except AsyncioActorExit:
            raise
        except Exception as error:
            raise spec.failure(error) from None

    async def stream(self, spec: CallSpec, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        method = self._method(spec)
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
