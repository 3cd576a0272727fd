"""Several models in one replica, by an id: loaded when they are asked for, the least recently used one unloaded
(docs/serving-reference.md).

1. A replica never has more than `max_models`, those that are being loaded included: one is closed before the next is
   loaded.
2. A request keeps the models that it has taken until it ends; one that finds all of them in use waits.
3. Requests for a model that is being loaded wait for that load. A load that fails is tried again by the next request.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

from rlplat.errors import ConfigError
from rlplat.given.say import say, say_traceback
from rlplat.serve.refusals import Refused

HEADER = b"x-model-id"
MAX_ID_LENGTH = 256
BOUND, FEW_CALLS = 1.25, 4
"""A replica is too busy for one more call of a model when it has BOUND times the mean, and not just a few."""

# -------------------------------------------------------------------- which replica (pure)


def choose_replica(model_id: str, ongoing: Mapping[str, int], held: Mapping[str, Collection[str]]) -> str:
    """One that has the model and is not too busy; else the one with the fewest models, to load it.

    ongoing: running calls by replica, of at least one; held: ids of the models by replica. Every process that knows the
    same chooses the same: ties go by rendezvous hashing (Thaler and Ravishankar 1998). The limit is that of consistent
    hashing with bounded loads (Mirrokni et al. 2016), so that a model in much demand is loaded by other replicas too.
    """
    limit = max(FEW_CALLS, math.ceil(BOUND * (sum(ongoing.values()) + 1) / len(ongoing)))
    free = [name for name, number in ongoing.items() if number < limit]
    holders = [name for name in free if model_id in held.get(name, ())]
    if holders:
        return min(holders, key=lambda name: (ongoing[name], _rank(name, model_id)))
    return min(free, key=lambda name: (len(held.get(name, ())), _rank(name, model_id)))


def _rank(replica: str, model_id: str) -> bytes:
    return hashlib.blake2b(f"{replica}\0{model_id}".encode(), digest_size=8).digest()


# -------------------------------------------------------------------- which models (pure)


@dataclass(eq=False)
class Slot:
    model_id: str
    users: int = 0
    """Requests that use it."""
    load: Any = None
    """The task that loads it, or has."""


class Slots:
    """The models of a replica, the least recently used first."""

    def __init__(self, max_models: int) -> None:
        self.max_models = max_models
        self.by_id: dict[str, Slot] = {}

    def take(self, model_id: str) -> tuple[Slot, Slot | None] | None:
        """Its slot, with one user more, and the slot that is given up for it; None: all are in use, wait."""
        slot, evicted = self.by_id.pop(model_id, None), None
        if slot is None:
            if len(self.by_id) >= self.max_models:
                evicted = next((each for each in self.by_id.values() if not each.users), None)
                if evicted is None:
                    return None
                del self.by_id[evicted.model_id]
            slot = Slot(model_id)
        self.by_id[model_id] = slot
        slot.users += 1
        return slot, evicted

    def forget(self, slot: Slot) -> None:
        """It could not be loaded."""
        if self.by_id.get(slot.model_id) is slot:
            del self.by_id[slot.model_id]


# -------------------------------------------------------------------- the request that runs


class ModelRequest:
    """`with ModelRequest(model_id):` around each request: what `serve.model_id()` says in it. At its end the models
    that it took are free."""

    __slots__ = ("_before", "is_over", "model_id", "taken")

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.taken: list[tuple[Models, Slot]] = []
        self.is_over = False
        self._before: ModelRequest | None = None

    def __enter__(self) -> None:
        self._before = _request.get()
        _request.set(self)

    def __exit__(self, *_: object) -> None:
        _request.set(self._before)
        self._before, self.is_over = None, True
        for models, slot in self.taken:
            models.give_back(slot)


_request: ContextVar[ModelRequest | None] = ContextVar("rlplat_serve_model_request", default=None)


def no_model_request() -> None:
    """From here on in this task no model is named: a batch is of several requests."""
    _request.set(None)


def model_id() -> str:
    """The id that the request names which runs here. Refused (400, `model-needed`) where it names none."""
    request = _request.get()
    if request is None or not request.model_id:
        raise Refused(
            400,
            "model-needed",
            "no model is named: send the header x-model-id, or call by handle.options(model_id=...)",
        )
    return request.model_id


def checked_model_id(text: str) -> str:
    """Refused where it is not an id: 1 to 256 printable characters."""
    if not (0 < len(text) <= MAX_ID_LENGTH and text.isprintable()):
        message = f"model_id is {text!r:.40}; expected 1 to {MAX_ID_LENGTH} printable characters"
        raise Refused(400, "bad-model-id", message)
    return text


def in_context(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """The call, to be made in a thread, where it is of the same request."""
    return functools.partial(copy_context().run, function, *args, **kwargs)


async def in_thread(values: Iterator[Any], executor: Executor) -> AsyncIterator[Any]:
    """The values of a generator, each made in the executor."""
    loop, end = asyncio.get_running_loop(), object()
    step = in_context(next, values, end)
    while (value := await loop.run_in_executor(executor, step)) is not end:
        yield value


# -------------------------------------------------------------------- the models of one object


class Models:
    def __init__(self, load: Callable[[str], Any], max_models: int) -> None:
        self._load = load
        self._slots = Slots(max_models)
        self._room = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None

    @property
    def ids(self) -> list[str]:
        return list(self._slots.by_id)

    async def get(self, model_id: str) -> Any:
        request = _request.get()
        if request is None or request.is_over:  # in a constructor, in a task that outlives its request
            with ModelRequest(model_id):
                return await self.get(model_id)
        checked_model_id(model_id)
        while (taken := self._slots.take(model_id)) is None:
            own = {slot for models, slot in request.taken if models is self}
            if len(own) >= self._slots.max_models:
                raise ConfigError(f"a request takes more than max_models={self._slots.max_models} models: raise it")
            self._room.clear()
            await self._room.wait()
        slot, evicted = taken
        request.taken.append((self, slot))
        if slot.load is None:
            slot.load = asyncio.get_running_loop().create_task(self._replace(evicted, slot))
            slot.load.add_done_callback(lambda load: load.cancelled() or load.exception())
            self.on_change()
        return await asyncio.shield(slot.load)  # a caller that leaves ends nobody else's load

    def give_back(self, slot: Slot) -> None:
        slot.users -= 1
        self._room.set()

    async def close(self) -> None:
        """All of them: the replica ends."""
        for slot in list(self._slots.by_id.values()):
            self._slots.forget(slot)
            await _close(slot)

    async def _replace(self, evicted: Slot | None, slot: Slot) -> Any:
        try:
            if evicted is not None:
                await _close(evicted)
            no_model_request()
            return await self._load(slot.model_id)
        except BaseException:
            self._slots.forget(slot)
            self._room.set()
            self.on_change()
            raise


async def _close(slot: Slot) -> None:
    """Its `close()`, where it has one."""
    load, slot.load = slot.load, None
    if load is None or not load.done() or load.cancelled() or load.exception():
        return
    close = getattr(load.result(), "close", None)
    if not callable(close):
        return
    try:
        answer = close() if inspect.iscoroutinefunction(close) else await asyncio.to_thread(close)
        if inspect.isawaitable(answer):
            await answer
    except Exception:
        say(f"warning: the model {slot.model_id!r} could not be closed:")
        say_traceback()


def multiplexed(function: Any = None, *, max_models: int = 3) -> Any:
    """Decorator of a method that loads a model by its id (`def` or `async def`); it is awaited, and loads each model
    once. A model that is unloaded is closed (`close()`) where it can be."""
    if max_models < 1:
        raise ConfigError(f"max_models is 1 or more, not {max_models}")

    def decorate(function: Any) -> Any:
        if len(inspect.signature(function).parameters) != 2:
            raise ConfigError("serve.multiplexed is for a method that takes a model's id, load(self, model_id)")
        attribute = f"_models_of_{function.__name__}"

        def models_of(self: Any) -> Models:
            models: Models | None = self.__dict__.get(attribute)
            if models is None:
                is_coroutine = inspect.iscoroutinefunction(function)
                load = functools.partial(function, self)
                load = load if is_coroutine else functools.partial(asyncio.to_thread, load)
                models = self.__dict__[attribute] = Models(load, max_models)
            return models

        @functools.wraps(function)
        def method(self: Any, model_id: str) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                raise TypeError(
                    f"{function.__qualname__} is awaited, in an `async def` method; a `def` runs in a thread"
                ) from None
            return models_of(self).get(model_id)

        method.models_of = models_of  # type: ignore[attr-defined]
        return method

    return decorate if function is None else decorate(function)


def loaders_of(target: Any) -> list[Callable[[Any], Models]]:
    """Of a class: the models of an object, for each of its multiplexed methods."""
    if not inspect.isclass(target):
        return []
    found = (getattr(getattr(target, name, None), "models_of", None) for name in dir(target))
    return [models_of for models_of in found if models_of is not None]
