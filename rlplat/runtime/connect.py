"""How this process comes to a backend: `init`, `shutdown`, and the private cluster that the first verb starts."""

from __future__ import annotations

import atexit
import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from rlplat.errors import AlreadyInitialized, OptionError
from rlplat.runtime import refs
from rlplat.runtime.core.resources import check_text, check_texts
from rlplat.runtime.process.signals import uninterrupted

_BACKENDS = {
    "zmq": "rlplat.runtime.start.start",
    "inproc": "rlplat.runtime.inproc.nested",
    "ray": "rlplat.runtime.ray.start",
}
"""The module of each backend: its `open_backend` takes `Settings`, and is imported when it is asked for."""
_MACHINES_S, _MOST_S = 1.5, 30.0
"""How long after the last one another is waited for: they look for a program every half second, and start in one. How
long for those that do not come to an end with that."""


class Settings(msgspec.Struct, frozen=True):
    """What `init` was given, checked where all backends agree; `init` has the meanings."""

    num_cpus: float | None = None
    num_gpus: int | None = None
    resources: dict[str, float] | None = None
    address: str | None = None
    preload: tuple[str, ...] = ()
    runtime_env: dict[str, Any] | None = None
    user_code: str | None = None
    hang_timeout_s: float = 10.0
    memory_usage_threshold: float = 0.9
    log_dir: str | None = None
    log_to_driver: bool = True
    namespace: str = ""
    object_store_memory: int | None = None
    spill_dir: str | None = None
    store_full_timeout_s: float = 10.0


def init(
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    backend: str | None = None,
    address: str | None = None,
    preload: Sequence[str] = (),
    runtime_env: dict[str, Any] | None = None,
    user_code: str | None = None,
    hang_timeout_s: float = 10.0,
    memory_usage_threshold: float = 0.9,
    log_dir: str | None = None,
    log_to_driver: bool = True,
    namespace: str | None = None,
    object_store_memory: int | None = None,
    spill_dir: str | None = None,
    store_full_timeout_s: float = 10.0,
    ignore_reinit_error: bool = False,
) -> None:
    """Start a private cluster on this machine. In a task or an actor, `backend="inproc"` opens one inside its process,
    until `shutdown()`; refs and actor handles from outside work on.

    num_cpus, num_gpus: what tasks and actors may take in all; None: what the machine has.
    resources: custom resources by name.
    backend: "zmq" (worker processes), "inproc" (everything in this process and thread, at once: for debuggers), or
        "ray" (a Ray cluster; docs/on-ray.md says what differs). None: $RLPLAT_BACKEND, or "zmq".
    address: the join file of a cluster of several machines (docs/clusters.md), of which this one is the head while the
        program runs. With "ray": of a Ray cluster ("auto": the one that this machine belongs to). None: $RLPLAT_ADDRESS
        (without "ray" if it is a file), or a new one on this machine.
    namespace: where the names of this program's actors count.
    preload: modules that the zygote imports once, so that every worker starts with them (for example "torch"); one that
        starts threads then is left out.
    object_store_memory: bytes of shared memory that large objects may take; None: 30 % of RAM, as far as it is free.
    spill_dir: where objects go that find no room there; None: the temp directory; "": nowhere.
    store_full_timeout_s: how long a value waits for room before `ObjectStoreFull`; `math.inf`: for ever.
    runtime_env: for every task and actor: `env_vars`, `working_dir`, `py_modules`, `pip` or `uv` (docs/runtime.md).
    user_code: a folder that is sent to every machine of a cluster, where workers run in it; a `working_dir` in
        `runtime_env` comes first. On one machine nothing is copied.
    hang_timeout_s: a worker in use that neither answers nor uses CPU time for so long is killed, and counts as dead.
        When the process that forks workers hangs, the cluster ends (NodeLost).
    memory_usage_threshold: share of the machine's (or cgroup's) memory above which workers are killed, one at a time.
    log_dir: where folders with the output of workers are kept; None: $RLPLAT_LOG_DIR, or a temporary directory.
    log_to_driver: whether the output of workers is shown on this process's stderr as well.
    ignore_reinit_error: where there is a cluster already, keep it as it is; else a second call is an error.
    """
    if backend is None:
        backend = os.environ.get("RLPLAT_BACKEND") or "zmq"
        named = os.environ.get("RLPLAT_ADDRESS") or None
        if address is None and (backend == "ray" or (backend == "zmq" and named and os.path.isfile(named))):
            address = named
    namespace = "" if namespace is None else namespace
    check_text("rlplat.init: namespace", namespace)
    check_texts("rlplat.init: preload", preload)
    if backend not in _BACKENDS:
        raise OptionError(f"unknown backend {backend!r}: 'zmq', 'inproc' or 'ray'")
    if address is not None and backend == "inproc":
        raise OptionError(f"rlplat.init(address={address!r}): backend='inproc' has no cluster")
    outer = refs.connection()
    if outer is not None:
        if ignore_reinit_error and not (outer.can_nest and backend == "inproc"):
            return
        if not outer.can_nest:
            raise AlreadyInitialized(
                "rlplat.init() was called twice: call rlplat.shutdown() first, or pass ignore_reinit_error=True"
            )
        if backend != "inproc":
            raise AlreadyInitialized(
                "this code runs in a task or an actor, so it has a cluster: omit rlplat.init(), or open a "
                "cluster inside this process by rlplat.init(backend='inproc')"
            )
    settings = Settings(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        address=address,
        preload=tuple(preload),
        runtime_env=runtime_env,
        user_code=user_code,
        hang_timeout_s=hang_timeout_s,
        memory_usage_threshold=memory_usage_threshold,
        log_dir=log_dir,
        log_to_driver=log_to_driver,
        namespace=namespace,
        object_store_memory=object_store_memory,
        spill_dir=spill_dir,
        store_full_timeout_s=store_full_timeout_s,
    )
    _connect(importlib.import_module(_BACKENDS[backend]).open_backend(settings))
    if address is not None and backend == "zmq":
        _wait_for_machines()


def _wait_for_machines() -> None:
    """A program that looked at once would find this machine alone, and use no other: those that wait for one ask for it
    every half second, and need a second to start; or more, on a busy machine."""
    known, until = 1, time.monotonic() + _MACHINES_S
    longest = until + _MOST_S
    while (now := time.monotonic()) < until:
        cluster = connected().cluster()
        if len(cluster.nodes) > known or (cluster.num_joining and now < longest):
            known, until = len(cluster.nodes), now + _MACHINES_S
        time.sleep(0.05)


@uninterrupted
def _connect(opened: refs.Connection) -> None:
    refs.set_backend(opened)
    atexit.register(shutdown)


@uninterrupted
def shutdown() -> None:
    """End the cluster: every worker, actor and object of it. Does nothing when there is none.

    In a task or an actor it ends the cluster that was opened there by `init(backend="inproc")`.
    """
    ended = refs.connection()
    if ended is not None:
        atexit.unregister(shutdown)
        ended.shutdown()
        refs.set_backend(ended.outer)


def is_initialized() -> bool:
    return refs.connection() is not None


def connected() -> Any:
    """The backend; starts a private cluster on first use, as Ray does."""
    if refs.connection() is None and not refs.is_forked():
        init()
    return refs.backend()
