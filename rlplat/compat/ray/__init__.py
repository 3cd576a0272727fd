"""Ray's names, of 2017 to today, over rlplat's verbs: a program runs as it is with `import rlplat.compat.ray as ray`.

    import rlplat.compat.ray as ray
    from rlplat.compat.ray import tune
    from rlplat.compat.ray.util.sgd.torch import TorchTrainer

Adapters only: they translate names and arguments, and refuse in one line what rlplat does not have. docs/from-ray.md
has the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import rlplat
from rlplat import (
    ActorHandle,
    ObjectRef,
    ObjectRefGenerator,
    available_resources,
    cancel,
    cluster_resources,
    get_actor,
    get_gpu_ids,
    get_runtime_context,
    is_initialized,
    kill,
    nodes,
    put,
    shutdown,
    timeline,
)
from rlplat.compat.ray.refusals import check, refusal
from rlplat.errors import OptionError

__all__ = [  # type checkers take no other import for a name of the module
    "ActorHandle", "Context", "ObjectID", "ObjectRef", "ObjectRefGenerator", "available_resources", "cancel",
    "cluster_resources", "get", "get_actor", "get_gpu_ids", "get_runtime_context", "init", "is_initialized",
    "kill", "method", "nodes", "put", "remote", "shutdown", "timeline", "wait",
]  # fmt: skip

ObjectID = ObjectRef
__version__ = rlplat.__version__
_MODULES = ("actor", "air", "exceptions", "experimental", "serve", "train", "tune", "util")
_NO_SUCH_OPTION = {
    "memory": "memory of a task or an actor is a limit",
    "redis_password": "a Ray cluster of today: ray.init(address=...)",
    "labels": "resources={...}",
    "job_config": "runtime_env",
}
_NO_EFFECT = (
    "configure_logging include_dashboard include_webui dashboard_host dashboard_port webui_host logging_level "
    "logging_format logging_config redirect_output redirect_worker_output num_redis_shards redis_max_memory "
    "plasma_directory huge_pages driver_object_store_memory lru_evict use_raylet _system_config "
    "num_workers start_ray_local"
).split()
"""Of Ray's own processes and logs."""
_OLD_OPTIONS = {
    "num_return_vals": "num_returns",
    "max_reconstructions": "max_restarts",
    "_generator_backpressure_num_objects": "generator_backpressure",
}


class Context:
    """What `init` returns: `with ray.init():` ends the cluster."""

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        shutdown()


def init(
    address: str | None = None,
    *,
    redis_address: str | None = None,
    local_mode: bool = False,
    temp_dir: str | None = None,
    _temp_dir: str | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    object_store_memory: int | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    ignore_reinit_error: bool = False,
    log_to_driver: bool = True,
    **others: Any,
) -> Context:
    """A cluster on this machine; with `address` or `redis_address` a program of that Ray cluster (`backend="ray"`)."""
    check("ray.init", others, _NO_SUCH_OPTION, _NO_EFFECT)
    if address and redis_address and address != redis_address:
        raise OptionError(f"ray.init(address={address!r}, redis_address={redis_address!r}): give one of them")
    address = address or redis_address or None
    if address is not None and address.startswith("ray://"):
        raise OptionError("ray.init('ray://...') is Ray's client: give the address of the head, HOST:6379, or 'auto'")
    if address == "local":
        address = None
    if local_mode and address:
        raise OptionError("ray.init(local_mode=True) runs in this process: omit the address")
    rlplat.init(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        backend="inproc" if local_mode else "ray" if address else None,
        address=address,
        object_store_memory=object_store_memory,
        spill_dir=_temp_dir or temp_dir,
        namespace=namespace,
        runtime_env=runtime_env,
        ignore_reinit_error=ignore_reinit_error,
        log_to_driver=log_to_driver,
    )
    return Context()


def remote(*args: Any, **options: Any) -> Any:
    """`@ray.remote`, `@ray.remote(num_gpus=1)`, `@ray.remote(num_return_vals=2)`."""
    made = rlplat.remote(*args, **renamed(options))
    return _with_old_names(made) if args else lambda target: _with_old_names(made(target))


def _with_old_names(made: Any) -> Any:
    """`f._remote(args=[1], num_gpus=1)` and the options' old names, in the process that decorated it."""
    options = made.options
    made.options = lambda **changes: _with_old_names(options(**renamed(changes)))
    made._remote = lambda args=(), kwargs=None, **changes: made.options(**changes).remote(*args, **(kwargs or {}))
    return made


def method(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return rlplat.method(**renamed(options))


def renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Options of 2017 to 2020 by today's names."""
    for old, new in _OLD_OPTIONS.items():
        if old in options and new in options:
            raise OptionError(f"{old} is the old name of {new}: give one of them")
    return {_OLD_OPTIONS.get(name, name): value for name, value in options.items()}


def get(refs: Any, timeout: float | None = None) -> Any:
    return rlplat.get(refs, timeout=timeout)


def wait(
    refs: Any, num_returns: int = 1, timeout: float | None = None, *, fetch_local: bool = True
) -> tuple[list[Any], list[Any]]:
    """timeout: seconds; in Ray before 0.6 it was milliseconds."""
    return rlplat.wait(refs, num_returns=num_returns, timeout=timeout, fetch_local=fetch_local)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(refusal(__name__, name))
