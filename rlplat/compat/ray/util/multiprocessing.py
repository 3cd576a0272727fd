"""`ray.util.multiprocessing.Pool`: Python's Pool, its processes actors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import TimeoutError
from typing import Any

import rlplat
from rlplat.errors import GetTimeout, InfeasibleResources


class _Process:
    def __init__(self, initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> None:
        if initializer is not None:
            initializer(*initargs)

    def run(self, function: Callable[..., Any], argument_lists: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        return [function(*args, **kwargs) for args in argument_lists]


class AsyncResult:
    def __init__(self, refs: list[Any], is_one: bool = False) -> None:
        self._refs, self._is_one = refs, is_one

    def get(self, timeout: float | None = None) -> Any:
        try:
            values = list(itertools.chain.from_iterable(rlplat.get(self._refs, timeout=timeout)))
        except GetTimeout as late:
            raise TimeoutError(str(late)) from None
        return values[0] if self._is_one else values

    def wait(self, timeout: float | None = None) -> bool:
        return not rlplat.wait(self._refs, num_returns=len(self._refs), timeout=timeout)[1]

    def ready(self) -> bool:
        return self.wait(0)


class Pool:
    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        """processes: None: as many as the cluster has CPUs."""
        if not rlplat.is_initialized():
            rlplat.init()
        num_cpus = int(rlplat.cluster_resources().get("CPU", 1))
        if not 1 <= (processes or 1) <= num_cpus:
            raise InfeasibleResources(f"Pool({processes}): a CPU for each process, and the cluster has {num_cpus}")
        make = rlplat.remote(**{"num_cpus": 1, **(ray_remote_args or {})})(_Process)
        self._processes = [make.remote(initializer, tuple(initargs)) for _ in range(processes or num_cpus)]
        self._turn = itertools.cycle(self._processes)
        self._sent: list[Any] | None = []
        """None: closed."""

    def _send(self, function: Any, argument_lists: Any, size: int | None, kwargs: Any = None) -> list[Any]:
        if self._sent is None:
            raise ValueError("Pool not running")
        calls = [tuple(args) for args in argument_lists]
        size = size or max(1, -(-len(calls) // (4 * len(self._processes))))
        chunks = [calls[start : start + size] for start in range(0, len(calls), size)]
        refs = [next(self._turn).run.remote(function, chunk, kwargs or {}) for chunk in chunks]
        self._sent += refs
        return refs

    def apply_async(self, func: Any, args: Any = (), kwds: Any = None) -> AsyncResult:
        return AsyncResult(self._send(func, [args], 1, kwds), is_one=True)

    def starmap_async(self, func: Any, iterable: Any, chunksize: int | None = None) -> AsyncResult:
        return AsyncResult(self._send(func, iterable, chunksize))

    def map_async(self, func: Any, iterable: Any, chunksize: int | None = None) -> AsyncResult:
        return self.starmap_async(func, ((value,) for value in iterable), chunksize)

    def apply(self, func: Any, args: Any = (), kwds: Any = None) -> Any:
        return self.apply_async(func, args, kwds).get()

    def map(self, func: Any, iterable: Any, chunksize: int | None = None) -> Any:
        return self.map_async(func, iterable, chunksize).get()

    def starmap(self, func: Any, iterable: Any, chunksize: int | None = None) -> Any:
        return self.starmap_async(func, iterable, chunksize).get()

    def imap(self, func: Any, iterable: Any, chunksize: int = 1) -> Iterator[Any]:
        refs = self._send(func, ((value,) for value in iterable), chunksize)
        return itertools.chain.from_iterable(map(rlplat.get, refs))

    def imap_unordered(self, func: Any, iterable: Any, chunksize: int = 1) -> Iterator[Any]:
        left = self._send(func, ((value,) for value in iterable), chunksize)
        while left:
            (ready, *_), left = rlplat.wait(left)
            yield from rlplat.get(ready)

    def close(self) -> None:
        self._ended, self._sent = self._sent, None

    def terminate(self) -> None:
        self._sent = None
        for process in self._processes:
            rlplat.kill(process)

    def join(self) -> None:
        if self._sent is not None:
            raise ValueError("Pool is still running")
        rlplat.wait(self._ended, num_returns=len(self._ended)) if self._ended else None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
