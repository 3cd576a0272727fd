"""Who takes part in the runtime benchmark. rlplat and Ray have the same verbs; a process pool has some of them, and
`zmq` is the floor below rlplat: an echo over a bare DEALER and ROUTER."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from types import SimpleNamespace
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
    """Of `round trips`, `tasks` (many at once, `wait`), `refs` (put, refs as arguments), `calls` (of actors), `actors`
    (all else about them), `retries` (of both), `bulk` (`map`)."""
    python: str = sys.executable
    """The interpreter of a peer that has an environment of its own."""


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


_SPIN_S = 120e-6
"""As long as a caller of rlplat looks for its reply before it sleeps."""


class _EchoVerbs:
    """One process that sends back what it gets. `remote` sends 64 bytes, `get` takes the next reply."""

    def __init__(self) -> None:
        import zmq

        self._folder = tempfile.mkdtemp()
        address = f"ipc://{self._folder}/echo"
        self._pid = os.fork()
        if not self._pid:
            router = zmq.Context().socket(zmq.ROUTER)
            router.bind(address)
            while True:
                router.send_multipart(router.recv_multipart(copy=False), copy=False)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)
        self._none, self._no_wait = zmq.Again, zmq.DONTWAIT
        self._frame = bytes(64)

    def remote(self, target: object) -> Any:
        return SimpleNamespace(remote=lambda: self._socket.send(self._frame))

    def get(self, ref: object) -> bytes:
        end = time.perf_counter() + _SPIN_S
        while time.perf_counter() < end:
            try:
                return self._socket.recv(self._no_wait)
            except self._none:
                continue
        return self._socket.recv()

    def close(self) -> None:
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder)


_echoes: list[_EchoVerbs] = []


def _start_echo() -> Any:
    _echoes.append(_EchoVerbs())
    return _echoes[-1]


def _stop_echo() -> None:
    _echoes.pop().close()


class _MonarchVerbs:
    """torchmonarch's actors: a process each; several of them are a mesh, which one message calls."""

    def remote(self, target: type) -> Any:
        return SimpleNamespace(remote=lambda: self._spawned(target, 1, "call_one"))

    def several(self, target: type, count: int) -> Any:
        return self._spawned(target, count, "call")

    def get(self, ref: Any) -> Any:
        return ref.get()

    def _spawned(self, target: type, count: int, verb: str) -> Any:
        from monarch.actor import Actor, endpoint, this_host

        actor_class = type(target.__name__, (Actor,), {"ping": endpoint(target.ping)})  # type: ignore[attr-defined]
        actors = this_host().spawn_procs({"hosts": count}).spawn(target.__name__.lower(), actor_class)
        return SimpleNamespace(ping=SimpleNamespace(remote=getattr(actors.ping, verb)))


_RAYS_VERBS = frozenset({"round trips", "tasks", "refs", "calls", "actors", "retries"})
PEERS = {
    peer.name: peer
    for peer in (
        Peer("rlplat", _start_rlplat, _stop_rlplat, _RAYS_VERBS | {"bulk"}),
        Peer("ray", _start_ray, _stop_ray, _RAYS_VERBS),
        Peer("pool", _start_pool, _stop_pool, frozenset({"round trips", "tasks"})),
        Peer("zmq", _start_echo, _stop_echo, frozenset({"round trips"})),
        Peer("monarch", _MonarchVerbs, lambda: None, frozenset({"calls"}), os.environ.get("MONARCH_PYTHON", "")),
    )
}
