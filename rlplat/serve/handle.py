"""Handles: how deployments are called from Python, from the driver and from each other.

    handle = running.handle                                  # or an argument of a deployment's constructor
    answer = await handle.predict.remote(x)                  # in a coroutine
    answer = handle.predict.remote(x).result(timeout_s=5)    # elsewhere
    async for part in handle.words.stream(x): ...            # of a method that yields; elsewhere: for part in ...
    handle.options(model_id="a").remote(x)                   # of a deployment with several models (multiplexing.py)

A call goes straight to the replica with the fewest calls of this process that are running; one that names a model, to
a replica that has it. A call whose replica died, or is ending, is sent to another one, as soon as there is one: a
method may therefore run twice, unless it is called with `.options(retry=False)`. A stream is sent again only as long as
it has given no value: values would repeat.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Container, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import rlplat
from rlplat.errors import ActorDied, DeadlineExceeded, GetTimeout, WorkerCrashed
from rlplat.serve.multiplexing import checked_model_id, choose_replica
from rlplat.serve.refusals import Refused

MAX_SENDS = 5
NO_REPLICA_S = 30.0
"""How long a call waits for a deployment none of whose replicas is ready."""


@dataclass
class Routes:
    """Of one deployment, in one process."""

    replicas: dict[str, Any] = field(default_factory=dict)
    """Actor handles by the replica's name."""
    leaving: dict[str, Any] = field(default_factory=dict)
    """Those that drain: they take no calls, but have sessions until they have handed them over."""
    ongoing: dict[str, int] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    """Those that each replica has, as far as this process knows; empty where its class loads none."""
    calls: dict[tuple[str, str], Any] = field(default_factory=dict)
    """`replica.call` by the replica's name and what messages are to call it."""

    def call_of(self, replica: str, name: str) -> Any:
        call = self.calls.get((replica, name))
        if call is None:  # (options take twice as long as the rest of a call)
            call = self.calls[replica, name] = self.replicas[replica].call.options(name=name)
        return call

    def choose(self, model_id: str = "", gone: Container[str] = ()) -> str | None:
        """gone: replicas that have ended, which this process may not have been told yet."""
        names = [name for name in self.replicas if name not in gone]
        if len(names) < 2:
            return names[0] if names else None
        if model_id and self.models:
            ongoing = {name: self.ongoing.get(name, 0) for name in names}
            return choose_replica(model_id, ongoing, self.models)
        fewest = min(self.ongoing.get(name, 0) for name in names)
        return random.choice([name for name in names if self.ongoing.get(name, 0) == fewest])


_routes: dict[str, Routes] = {}
_counting = threading.RLock()  # a response may be collected, and counted down, at any line


def routes_of(deployment: str) -> Routes:
    """To look at; of a deployment that is not there, empty ones: a handle that is left over makes none."""
    return _routes.get(deployment) or Routes()


def set_routes(deployment: str, replicas: dict[str, Any], leaving: dict[str, Any]) -> None:
    """What the controller tells every process that has handles."""
    routes = _routes.setdefault(deployment, Routes())
    routes.replicas, routes.leaving, routes.calls = dict(replicas), dict(leaving), {}
    routes.ongoing = {name: routes.ongoing.get(name, 0) for name in replicas}
    routes.models = {name: models for name, models in routes.models.items() if name in replicas}


def set_models(deployment: str, replica: str, models: Iterable[str]) -> None:
    """The models that a replica has: told as the routes are."""
    routes = routes_of(deployment)
    if replica in routes.replicas:
        routes.models[replica] = set(models)


def all_routes() -> dict[str, dict[str, Any]]:
    return {name: routes.replicas for name, routes in _routes.items()}


def peers_of(*deployments: str) -> dict[str, Any]:
    """Their replicas, also those that drain."""
    peers: dict[str, Any] = {}
    for routes in map(routes_of, deployments):
        peers |= routes.leaving | routes.replicas
    return peers


def forget_routes(deployments: list[str]) -> None:
    for deployment in deployments:
        _routes.pop(deployment, None)


class Response:
    """The answer of a call, to be awaited, or waited for by `result()`."""

    def __init__(self, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._handle = handle
        # An answer that is an argument is passed on as its ref: it goes from replica to replica.
        self._args = tuple(_as_argument(each) for each in args)
        self._kwargs = {key: _as_argument(value) for key, value in kwargs.items()}
        self._replica: str | None = None
        self._gone: set[str] = set()
        """Replicas that it was sent to and that have ended: it is sent to none of them again."""
        self._ref: Any = None
        self._send()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        for attempt in itertools.count(1):
            give_up = time.monotonic() + NO_REPLICA_S
            while self._ref is None:
                _require_patience(self._handle, give_up)
                await asyncio.sleep(0.01)
                self._send()
            try:
                answer = await self._ref
            except BaseException as error:
                self._failed(error, attempt)
            else:
                self._release()
                return answer

    def result(self, timeout_s: float | None = None) -> Any:
        """The value; in a coroutine, `await` instead. GetTimeout after `timeout_s`."""
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        for attempt in itertools.count(1):
            give_up = time.monotonic() + NO_REPLICA_S
            while self._ref is None:
                if time.monotonic() > end:
                    raise GetTimeout(f"no replica of {self._handle.deployment} was ready within {timeout_s:g} s")
                _require_patience(self._handle, give_up)
                time.sleep(0.01)
                self._send()
            try:
                left = None if timeout_s is None else max(0.0, end - time.monotonic())
                answer = rlplat.get(self._ref, timeout=left)
            except BaseException as error:
                self._failed(error, attempt)
            else:
                self._release()
                return answer

    def cancel(self) -> None:
        """The caller does not want it any more."""
        if self._ref is not None:
            rlplat.cancel(self._ref)
            self._release_when_done()

    def ref(self) -> Any:
        """The object ref, to pass to tasks and actors."""
        if self._ref is None:
            raise Refused(503, "busy", f"no replica of {self._handle.deployment} is ready", 1.0)
        return self._ref

    def __del__(self) -> None:
        self._release()

    def _send(self) -> None:
        routes = routes_of(self._handle.deployment)
        self._replica = routes.choose(self._handle.model_id, self._gone)
        if self._replica is None:
            self._ref = None
            return
        _count(self._handle.deployment, self._replica, 1)
        call = routes.call_of(self._replica, self._handle.call_name)
        self._ref = call.remote(self._handle.method, self._handle.model_id, *self._args, **self._kwargs)

    def _release(self) -> None:
        replica, self._replica = getattr(self, "_replica", None), None
        if replica is not None:
            _count(self._handle.deployment, replica, -1)

    def _release_when_done(self) -> None:
        """Its caller waits no longer, and it runs still."""
        replica, self._replica = self._replica, None
        if replica is not None:
            deployment = self._handle.deployment
            self._ref.future().add_done_callback(lambda _: _count(deployment, replica, -1))

    def _failed(self, error: BaseException, attempt: int) -> None:
        """Send it to another replica, or raise."""
        if isinstance(error, asyncio.CancelledError | GetTimeout | KeyboardInterrupt):
            self._release_when_done()
            raise error
        self._gone.add(self._replica or "")
        self._release()
        if not isinstance(error, ActorDied | WorkerCrashed | Refused):
            raise error
        _require_another(self._handle, error, attempt)
        self._send()


def _count(deployment: str, replica: str, change: int) -> None:
    """Calls of this process that run there; of a replica that has ended none are counted."""
    with _counting:
        ongoing = routes_of(deployment).ongoing
        if replica in ongoing:
            ongoing[replica] = max(0, ongoing[replica] + change)


def _require_another(handle: Handle, error: Exception, attempt: int) -> None:
    """Raise it, unless it says that the replica is gone, and the call may be sent to another one."""
    if isinstance(error, Refused):
        cause = getattr(error, "cause", None) or error
        if cause.code != "draining" or attempt == MAX_SENDS:
            raise cause from None
    elif not handle.retry or attempt == MAX_SENDS or _is_of_method(error):
        raise error


def _is_of_method(error: Exception) -> bool:
    """Whether the method raised it, of another actor: then a note says where."""
    return bool(getattr(error, "__notes__", None))


def _require_patience(handle: Handle, give_up: float) -> None:
    if time.monotonic() > give_up:
        raise DeadlineExceeded(f"no replica of {handle.deployment} was ready within {NO_REPLICA_S:g} s")


def _as_argument(value: Any) -> Any:
    return value.ref() if isinstance(value, Response) else value


class Stream:
    """For `async for`, and for `for` where no event loop runs."""

    def __init__(self, values: AsyncGenerator[Any]) -> None:
        self._values = values

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._values

    def __anext__(self) -> Awaitable[Any]:
        return anext(self._values)

    def aclose(self) -> Awaitable[None]:
        return self._values.aclose()

    def __iter__(self) -> Iterator[Any]:
        loop = asyncio.new_event_loop()
        try:
            while True:
                yield loop.run_until_complete(anext(self._values))
        except StopAsyncIteration:
            return
        finally:
            loop.run_until_complete(self._values.aclose())
            loop.close()


class Handle:
    """Of a deployment; can be pickled, so that deployments, tasks and actors of the application may hold it."""

    def __init__(self, deployment: str, method: str = "__call__", retry: bool = True, model_id: str = "") -> None:
        self.deployment, self.method, self.retry, self.model_id = deployment, method, retry, model_id

    def __getattr__(self, name: str) -> Handle:
        if name.startswith("_"):
            raise AttributeError(name)
        return Handle(self.deployment, name, self.retry, self.model_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return Handle, (self.deployment, self.method, self.retry, self.model_id)

    def __repr__(self) -> str:
        return f"Handle({self.call_name})"

    @property
    def call_name(self) -> str:
        """What messages call a call of it: the user knows no `Replica.call`."""
        return f"{self.deployment}.{self.method}"

    def options(self, *, retry: bool | None = None, model_id: str | None = None) -> Handle:
        """The same with other options. retry=False: a call whose replica dies raises `ActorDied`; its method runs at
        most once. model_id: what `serve.model_id()` is in the call. Refused where that is not an id."""
        return Handle(
            self.deployment,
            self.method,
            self.retry if retry is None else retry,
            self.model_id if model_id is None else checked_model_id(model_id),
        )

    def remote(self, *args: Any, **kwargs: Any) -> Response:
        return Response(self, args, kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Stream:
        """The values of a method that yields (`def` or `async def`), as they are made. ActorDied where its replica dies
        after the first value."""
        return Stream(self._values(args, kwargs))

    async def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any]:
        gone: set[str] = set()
        for attempt in itertools.count(1):
            give_up = time.monotonic() + NO_REPLICA_S
            while (replica := routes_of(self.deployment).choose(self.model_id, gone)) is None:
                _require_patience(self, give_up)
                await asyncio.sleep(0.01)
            stream = routes_of(self.deployment).replicas[replica].stream.options(name=self.call_name)
            _count(self.deployment, replica, 1)
            try:
                refs = stream.remote(self.method, self.model_id, *args, **kwargs)
                for number in itertools.count():
                    try:
                        value = await (await anext(refs))
                    except StopAsyncIteration:
                        return
                    except asyncio.CancelledError:  # the traceback holds `refs`: dropping them comes too late
                        rlplat.cancel(refs)
                        raise
                    except (ActorDied, WorkerCrashed, Refused) as error:
                        if number and not (isinstance(error, Refused) or _is_of_method(error)):
                            raise ActorDied(
                                f"replica {replica} ended during {self!r}.stream(), after {number} of its values; it "
                                f"is not sent to another one, which would repeat them: {error}"
                            ) from error
                        _require_another(self, error, MAX_SENDS if number else attempt)
                        gone.add(replica)
                        break
                    yield value
            finally:
                _count(self.deployment, replica, -1)
