"""Who takes part in the runtime benchmark. rlplat and Ray have the same verbs; a process pool has some of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import Any, Protocol

NUM_CPUS = max(2, len(os.sched_getaffinity(0)))

RAY_OPTIONS: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Verbs(Protocol):
    """What a row uses; the modules `rlplat` and `ray` are such objects."""

    def remote(self, target: Any) -> Any: ...

    def get(self, refs: Any) -> Any: ...

    def put(self, value: Any) -> Any: ...

    def wait(self, refs: Any, *, num_returns: int) -> tuple[list[Any], list[Any]]: ...


@dataclass(frozen=True)
class Peer:
    name: str
    start: Callable[[], Any]
    """Start a cluster of `NUM_CPUS`; returns the verbs."""
    stop: Callable[[], None]
    can: frozenset[str]
    """Of `tasks`, `refs` (put, refs as arguments), `actors`, `retries` (of tasks and actor calls), `bulk` (`map`)."""


def _start_rlplat() -> Any:
    import rlplat

    rlplat.init(num_cpus=NUM_CPUS)
    return rlplat


def _stop_rlplat() -> None:
    import rlplat

    rlplat.shutdown()


def _start_ray() -> Any:
    os.environ.update(RAY_ENVIRONMENT)
    import ray

    ray.init(num_cpus=NUM_CPUS, **RAY_OPTIONS)
    return ray


def _stop_ray() -> None:
    import ray

    ray.shutdown()


class _PoolTask:
    def __init__(self, pool: ProcessPoolExecutor, target: Callable[..., Any]) -> None:
        self._pool, self._target = pool, target

    def remote(self, *args: Any) -> Future[Any]:
        return self._pool.submit(self._target, *args)


class _PoolVerbs:
    """`concurrent.futures.ProcessPoolExecutor` behind the verbs that it can do: plain tasks."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(NUM_CPUS)

    def remote(self, target: Callable[..., Any]) -> _PoolTask:
        return _PoolTask(self.pool, target)

    def get(self, refs: Any) -> Any:
        return [ref.result() for ref in refs] if isinstance(refs, list) else refs.result()

    def wait(self, refs: list[Future[Any]], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        done: set[Future[Any]] = set()
        while len(done) < num_returns:
            done |= wait_for_futures(set(refs) - done, return_when=FIRST_COMPLETED).done
        ready = [ref for ref in refs if ref in done][:num_returns]
        taken = set(ready)
        return ready, [ref for ref in refs if ref not in taken]


_pools: list[_PoolVerbs] = []


def _start_pool() -> Any:
    _pools.append(_PoolVerbs())
    return _pools[-1]


def _stop_pool() -> None:
    _pools.pop().pool.shutdown()


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "rlplat", _start_rlplat, _stop_rlplat, frozenset({"tasks", "refs", "actors", "retries", "bulk"})
        ),
        Peer("ray", _start_ray, _stop_ray, frozenset({"tasks", "refs", "actors", "retries"})),
        Peer("pool", _start_pool, _stop_pool, frozenset({"tasks"})),
    )
}
