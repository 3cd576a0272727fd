"""The actor in which a replica lives: the user's object, its gate, its HTTP server where it takes requests from
outside.

controller ──start()──▶ replica ──▶ object, server        run() answers when the replica has been drained, and fails
    │       run()                                          when its process dies: so the controller knows
    └──────drain()─▶ no new connections; the rest is finished
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rlplat.errors import ConfigError, RlplatError
from rlplat.rl.user_code import folder_of
from rlplat.serve.batching import batched
from rlplat.serve.deployments import Deployment, PartName, replaced
from rlplat.serve.handle import Handle, all_routes, peers_of, set_models, set_routes
from rlplat.serve.http.sharing import CANARY
from rlplat.serve.metrics import Metrics, exposition
from rlplat.serve.multiplexing import ModelRequest, Models, in_context, in_thread, loaders_of
from rlplat.serve.refusals import Gate, Refused, no_exit

QUIET_S = 0.25
"""A draining replica ends when it was not called for so long: calls sent before the routes changed have arrived."""


class Hung(RlplatError):
    """A replica that cannot work again."""


class Path:
    """Where the modules of a deployment lie: when it is unpickled they can be imported, its own folder before those of
    other applications."""

    def __init__(self, target: Any) -> None:
        self._own, self._all = folder_of([f"{target.__module__}:{target.__qualname__}"]), sys.path

    def __reduce__(self) -> tuple[Any, ...]:
        return _searched, (self._own, self._all)


def _searched(own: str | None, folders: list[str]) -> None:
    sys.path += [each for each in folders if each not in sys.path]
    if own is not None:  # behind Python's own modules, which programs beside it may be named like
        python = sysconfig.get_path("stdlib")
        is_pythons = [each.startswith(python) and "-packages" not in each for each in sys.path]
        at = max((index for index, is_there in enumerate(is_pythons, 1) if is_there), default=0)
        if own not in sys.path[:at]:
            sys.path.insert(at, own)


@dataclass(frozen=True)
class ReplicaSpec:
    path: Path | None
    """The first: it is unpickled before the code."""
    name: str
    deployment_name: str
    deployment: Deployment
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    user_config: Any
    routes: dict[str, dict[str, Any]]
    """Replicas by deployment, as they are now."""
    door: str = ""
    """The Unix socket at which the listening socket is fetched; empty where it takes no requests from outside."""
    token: str = ""
    version: int = 0
    models: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """The models that the replicas have, by deployment, as far as they have several."""


class CallThread(ThreadPoolExecutor):
    """One, that knows since when the call runs that is in it."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="rlplat-serve-call")
        self._since = math.inf

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._noted, function, *args, **kwargs)

    def _noted(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._since = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            self._since = math.inf

    def seconds(self) -> float:
        """How long it runs; 0 where none does."""
        return max(0.0, time.monotonic() - self._since)


class Replica:
    """It has no code of the user's before `start`, which has a time limit."""

    def __init__(self) -> None:
        self._thread = CallThread()
        """Methods that are no coroutines run here, one at a time."""
        self._drained: asyncio.Future[None] | None = None
        self._is_started, self._is_ended = asyncio.Event(), False
        self._configuring = asyncio.Lock()
        self._called_at = 0.0
        self._server: Any = None
        self._object: Any = None
        self._batched: dict[str, Any] = {}
        """What takes the place of the method that is called with batches."""
        self._models: list[Models] = []
        self._models_version = 0
        self._models_changed = asyncio.Event()

    async def pid(self) -> int:
        return os.getpid()

    async def start(self, spec: ReplicaSpec) -> None:
        """Make the object and open its door."""
        self._spec, self._options = spec, spec.deployment.options_
        for name, replicas in spec.routes.items():
            set_routes(name, replicas, {})
        for name, by_replica in spec.models.items():
            for replica, models in by_replica.items():
                set_models(name, replica, models)
        self._gate = Gate(spec.deployment_name, self._options.max_concurrency, self._options.max_queued)
        self._metrics = Metrics(spec.name, spec.version)
        target = spec.deployment.target
        if inspect.isclass(target):
            args, kwargs = replaced((spec.args, spec.kwargs), PartName, lambda part: Handle(part.name))
            self._object = target(*args, **kwargs)
        else:
            self._object = target
        if (batch := self._options.batch) is not None:
            name = f"{spec.deployment_name}.{batch.method}"
            self._batched[batch.method] = batched(self._method(batch.method), batch, name, self._thread)
        for models_of in loaders_of(target):
            self._models.append(models_of(self._object))
            self._models[-1].on_change = self._note_models
        introduce = getattr(self._object, "introduce", None)
        if introduce is not None:
            stable = spec.deployment_name.removesuffix(CANARY)
            introduce(spec.name, lambda: peers_of(stable, stable + CANARY))
        if spec.user_config is not None:
            await self._configure(spec.user_config)
        if spec.door:
            from rlplat.serve.http.server import HttpServer

            served = self._object if hasattr(self._object, "asgi") else self._batched.get("__call__", self._object)
            self._server = HttpServer(
                served, self._gate, self._options, spec.token, self._thread, self._metrics, self._scrape
            )
            is_canary = spec.deployment_name.endswith(CANARY)
            await self._server.start(spec.door, is_canary=is_canary)
        self._is_started.set()

    async def run(self) -> None:
        """Until the replica has been drained."""
        self._drained = asyncio.get_running_loop().create_future()
        await self._drained

    async def call(self, _method: str, _model_id: str, /, *args: Any, **kwargs: Any) -> Any:
        method = self._method(_method, _model_id)
        self._called_at = time.monotonic()
        async with self._gate:
            try:
                async with asyncio.timeout(self._options.request_timeout_s) as limit:
                    with ModelRequest(_model_id), no_exit():
                        if inspect.iscoroutinefunction(method):
                            return await method(*args, **kwargs)
                        loop = asyncio.get_running_loop()
                        answer = await loop.run_in_executor(self._thread, in_context(method, *args, **kwargs))
                        if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
                            raise TypeError(f"{self._spec.deployment_name}.{_method} yields; call .stream()")
                        return await answer if inspect.isawaitable(answer) else answer
            except TimeoutError:
                if not limit.expired():
                    raise
                raise self._too_late() from None

    async def stream(self, _method: str, _model_id: str, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        method = self._method(_method, _model_id)
        self._called_at = time.monotonic()
        async with self._gate:
            with ModelRequest(_model_id), no_exit():
                values = method(*args, **kwargs)
                if inspect.isgenerator(values):
                    values = in_thread(values, self._thread)
                if not hasattr(values, "__aiter__"):
                    if inspect.iscoroutine(values):
                        values.close()
                    raise TypeError(f"{self._spec.deployment_name}.{_method} does not yield; call .remote()")
                async for value in values:
                    yield value

    async def ask(self, method: str, *args: Any) -> Any:
        """A question of the platform: it passes by the gate, and a replica that ends answers it too."""
        answer = getattr(self._object, method)(*args)
        return await answer if inspect.isawaitable(answer) else answer

    async def reconfigure(self, user_config: Any) -> None:
        """After the user_config that it starts with, one after the other: the newest stays."""
        await self._is_started.wait()
        async with self._configuring:
            await self._configure(user_config)

    async def _configure(self, user_config: Any) -> None:
        change = getattr(self._object, "reconfigure", None)
        if change is None:
            raise ConfigError(
                f"{self._spec.deployment_name} has a user_config, but its class has no reconfigure(user_config)"
            )
        answer = change(user_config)
        if inspect.isawaitable(answer):
            await answer

    async def set_routes(self, deployment: str, replicas: dict[str, Any], leaving: dict[str, Any]) -> None:
        set_routes(deployment, replicas, leaving)

    async def set_canary_share(self, share: float) -> None:
        if self._server is not None:
            self._server.set_canary_share(share)

    async def set_models(self, deployment: str, replica: str, models: list[str]) -> None:
        set_models(deployment, replica, models)

    async def models_after(self, version: int) -> tuple[int, list[str]]:
        """The models that it has, when they are others than at this version; the version that they are."""
        while self._models_version == version:
            self._models_changed.clear()
            await self._models_changed.wait()
        return self._models_version, [each for models in self._models for each in models.ids]

    def _note_models(self) -> None:
        self._models_version += 1
        self._models_changed.set()

    async def check_health(self) -> None:
        """Raises where it does not work; gives no answer where the event loop is blocked."""
        options, seconds = self._options, self._thread.seconds()
        if seconds > max(options.request_timeout_s, options.health_check_timeout_s):
            raise Hung(f"a call blocks its thread for {seconds:.1f} s")
        check = getattr(self._object, "check_health", None)
        if check is not None:
            await (check() if inspect.iscoroutinefunction(check) else asyncio.to_thread(check))

    async def stats(self) -> dict[str, float]:
        server = {} if self._server is None else self._server.stats()
        return {"running": self._gate.running, "waiting": self._gate.waiting, **server}

    async def metric_lines(self) -> list[str]:
        gauges = {"rlplat_serve_running": self._gate.running, "rlplat_serve_waiting": self._gate.waiting}
        if self._server is not None:
            gauges["rlplat_serve_connections"] = self._server.stats()["connections"]
        if hasattr(self._object, "gauges"):
            gauges.update(self._object.gauges())
        for name, value in gauges.items():
            self._metrics.set(name, value)
        return self._metrics.lines()

    async def _scrape(self) -> str:
        """The metrics of all replicas of all deployments; those that do not answer soon are left out."""
        others = [
            actor.metric_lines.remote()
            for replicas in all_routes().values()
            for name, actor in replicas.items()
            if name != self._spec.name
        ]
        lines = [await self.metric_lines()]
        answers = [asyncio.ensure_future(_value(ref)) for ref in others]
        if answers:
            done, late = await asyncio.wait(answers, timeout=1.0)
            for each in late:
                each.cancel()
            lines += [each.result() for each in done if each.exception() is None]
        return exposition(lines)

    async def drain(self) -> None:
        """Take nothing new, finish what runs (or give it up after drain_timeout_s), hand over what is to be kept."""
        end = time.monotonic() + self._options.drain_timeout_s
        if self._server is not None:
            self._server.stop_accepting()
        hand_over = getattr(self._object, "hand_over", None)
        if hand_over is not None:
            await _within(end, hand_over())
        begin = time.monotonic()
        while time.monotonic() < end and (
            self._gate.ongoing or time.monotonic() - max(begin, self._called_at) < QUIET_S
        ):
            await asyncio.sleep(0.02)
        if hand_over is not None:
            await _within(end, hand_over())  # what was opened by requests that ran
        self._is_ended = True
        if self._server is not None:
            await self._server.stop(max(0.0, end - time.monotonic()))
        for models in self._models:
            await models.close()
        self._thread.shutdown(wait=False)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _method(self, name: str, model_id: str = "") -> Any:
        if self._is_ended:
            raise Refused(503, "draining", f"{self._spec.name} is ending; call another replica", 0.0)
        if name in self._batched:
            if model_id:
                raise TypeError(
                    f"{self._spec.deployment_name}.{name} is batched: a batch is of several calls and names no model"
                )
            return self._batched[name]
        if name == "__call__":
            if not callable(self._object):
                raise AttributeError(f"{self._spec.deployment_name} has no __call__; call one of its methods")
            return self._object.__call__ if inspect.isclass(self._spec.deployment.target) else self._object
        method = getattr(self._object, name, None)
        if not callable(method):
            raise AttributeError(f"{self._spec.deployment_name} has no method {name!r}")
        return method

    def _too_late(self) -> Refused:
        seconds = self._options.request_timeout_s
        return Refused(504, "deadline", f"{self._spec.deployment_name} gave no answer within {seconds:g} s")


async def _within(end: float, work: Awaitable[None]) -> None:
    """Give it up soon after `end`, on the monotonic clock: a method that hangs must not keep a replica for ever."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work, max(1.0, end - time.monotonic()))


async def _value(ref: Any) -> Any:
    return await ref
