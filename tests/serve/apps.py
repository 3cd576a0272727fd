"""Applications for the tests."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rlplat import serve
from rlplat.errors import ActorDied
from rlplat.serve.handle import routes_of


@serve.deployment(num_replicas=2)
class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    async def __call__(self, x: float) -> float:
        return x * self.factor

    def blocking(self, x: float) -> float:
        return x + self.factor

    async def words(self, count: int) -> Any:
        for number in range(count):
            yield f"{number} "

    async def fail(self) -> None:
        raise KeyError("missing")


@serve.deployment
class Leaves:
    """`sys.exit()` in each kind of method, and names that a call has itself."""

    def plain(self) -> None:
        sys.exit(3)

    async def coroutine(self) -> None:
        sys.exit(3)

    def parts(self) -> Any:
        yield os.getpid()
        sys.exit(3)

    async def async_parts(self) -> Any:
        yield os.getpid()
        sys.exit(3)

    def pid(self, *, _method: str) -> int:
        return os.getpid()


@serve.deployment
class Gateway:
    """A pipeline, an ensemble and a fan-out over two models; over HTTP as well."""

    def __init__(self, models: list[Any]) -> None:
        self.models = models

    async def __call__(self, request: Any) -> Any:
        match request.url.path:
            case "/pipeline":
                return await self.pipeline(await request.json())
            case "/words":
                return self.models[0].words.stream(3)
            case "/fail":
                await self.models[0].fail.remote()
            case "/refuse":
                raise serve.Refused(409, "stale", "too old")
            case "/pid":
                return os.getpid()
            case "/slow":
                await asyncio.sleep(30)
        return None

    async def pipeline(self, x: float) -> float:
        answer = x
        for model in self.models:
            answer = await model.remote(answer)
        return answer

    async def chained(self, x: float) -> float:
        first, second = self.models
        return await second.remote(first.remote(x))

    async def ensemble(self, x: float) -> float:
        return sum(await asyncio.gather(*(model.remote(x) for model in self.models)))


@serve.deployment(batch=serve.Batch(max_size=8))
async def doubled(requests: list[Any]) -> list[float]:
    """Batched, and called over HTTP."""
    return [2 * await request.json() for request in requests]


@serve.deployment(num_replicas=2)
class Zoo:
    """Models by their id: says which, in which process, and how often it was loaded there."""

    def __init__(self) -> None:
        self.loads: dict[str, int] = {}

    @serve.multiplexed(max_models=2)
    def load(self, model_id: str) -> str:
        self.loads[model_id] = self.loads.get(model_id, 0) + 1
        return model_id

    async def __call__(self, x: int) -> tuple[str, int, int]:
        model = await self.load(serve.model_id())
        return model, os.getpid(), self.loads[model] * x


@serve.deployment
class Shop:
    def __init__(self, zoo: Any) -> None:
        self.zoo = zoo

    async def __call__(self, request: Any) -> Any:
        if request.url.path == "/models":  # that this process knows to be in some replica
            return sorted(set().union(*routes_of("Zoo").models.values()))
        return await self.zoo.options(model_id=serve.model_id()).remote(await request.json())


def gateway(*factors: float) -> Any:
    return Gateway.bind([Scale.options(name=f"scale{n}").bind(factor) for n, factor in enumerate(factors)])


@serve.deployment(num_replicas=2)
class Leaving:
    """Says which replicas know each other; drains until there is such a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def introduce(self, name: str, peers: Callable[[], dict[str, Any]]) -> None:
        self.peers = peers

    async def hand_over(self) -> None:
        while not self.file.exists():
            await asyncio.sleep(0.01)

    async def __call__(self, request: Any) -> list[str]:
        return sorted(self.peers())


@serve.deployment(num_replicas=2)
class Version:
    """Says which version it is; one that cannot start; one that dies when it is told to."""

    def __init__(self, version: int, *others: Any) -> None:
        if version < 0:
            raise ValueError("no such version")
        self.version = version

    def introduce(self, name: str, peers: Callable[[], dict[str, Any]]) -> None:
        self.name = name

    def reconfigure(self, version: int) -> None:
        if version == 9:
            os._exit(1)
        if version == 7 and self.name != "Version-0":
            raise ValueError("only one has 7")
        self.version = version

    async def __call__(self, request: Any) -> int:
        await asyncio.sleep(0.002)
        return self.version


@serve.deployment(user_config="first")
class Slow:
    """Says its user_config; takes a while to start, and for one of its configurations; marks its starts in a file."""

    def __init__(self, starts: Path) -> None:
        self.starts, self.config = starts, ""

    async def reconfigure(self, config: str) -> None:
        if config == "bad":
            raise ValueError("not that one")
        if config == "first":
            with self.starts.open("a") as file:
                file.write(".")
        if config in ("first", "slow"):
            await asyncio.sleep(0.5)
        self.config = config

    async def __call__(self, request: Any) -> str:
        return self.config


@serve.deployment
class Back:
    """Answers after so many seconds."""

    async def __call__(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "answered"

    def pid(self) -> int:
        return os.getpid()

    async def pids(self, mark: Path, pause_s: float) -> AsyncIterator[int]:
        """Its process, twice; which ends before that where there is no such file yet."""
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield os.getpid()
        await asyncio.sleep(pause_s)
        yield os.getpid()

    async def ticks(self, mark: Path) -> AsyncIterator[int]:
        """Without end; the file says that it was closed."""
        try:
            for number in itertools.count():
                yield number
                await asyncio.sleep(0.01)
        finally:
            mark.touch()


@serve.deployment
class Front:
    """Asks Back, `pause_s` after it was asked; `file` says that it was asked."""

    def __init__(self, back: Any, pause_s: float = 0.0, file: Path | None = None) -> None:
        self.back, self.pause_s, self.file = back, pause_s, file

    async def __call__(self, seconds: float) -> str:
        if self.file is not None:
            self.file.touch()
        await asyncio.sleep(self.pause_s)
        return await self.back.remote(seconds)


@serve.deployment
class Heir:
    """Raises what it heard of another actor; counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def __call__(self) -> None:
        self.num_calls += 1
        raise ActorDied("not this one")

    def count(self) -> int:
        return self.num_calls


@serve.deployment(request_timeout_s=0.3, health_check_period_s=0.1, health_check_timeout_s=0.6)
class Stuck:
    """Blocks its thread, or its event loop, or says that it is ill."""

    def __init__(self) -> None:
        self.is_ill = False

    async def check_health(self) -> None:
        if self.is_ill:
            raise ValueError("ill")

    def block(self) -> None:
        time.sleep(60)

    async def block_loop(self) -> None:
        time.sleep(60)

    async def fall_ill(self) -> None:
        self.is_ill = True

    def pid(self) -> int:
        return os.getpid()


class HangsOnce:
    """The second process that unpickles it, and the third that calls `enter`, hang; `folder` counts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return _unpickled, (self.folder,)

    def enter(self) -> None:
        _hang_as_number(3, self.folder / "entered")


def _unpickled(folder: Path) -> HangsOnce:
    _hang_as_number(2, folder / "unpickled")
    return HangsOnce(folder)


def _hang_as_number(number: int, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    if len(list(folder.iterdir())) == number:
        time.sleep(600)


@serve.deployment(start_timeout_s=1.0)
class Reluctant:
    def __init__(self, hangs: HangsOnce) -> None:
        hangs.enter()

    def pid(self) -> int:
        return os.getpid()


@serve.deployment
class Sizes:
    """Says how many bytes it was sent."""

    def asgi(self) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route, WebSocketRoute

        async def size(request: Any) -> Any:
            return JSONResponse(len(await request.body()))

        async def read(socket: Any) -> None:
            await socket.accept()
            async for _ in socket.iter_bytes():
                pass

        return Starlette(routes=[Route("/", size, methods=["GET", "POST"]), WebSocketRoute("/", read)])

    def pid(self) -> int:
        return os.getpid()
