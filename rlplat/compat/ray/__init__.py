"""Ray's spelling: a program written for Ray runs with `rlplat.compat.ray` in its import lines (docs/from-ray.md).

    import rlplat.compat.ray as ray
    from rlplat.compat.ray import tune
    from rlplat.compat.ray.util.sgd.torch import TorchTrainer

Verbs are rlplat's; here are the names and arguments that Ray spells otherwise, today's and those of 2017 to 2020. What
rlplat has not is refused and says what is here instead; nothing is dropped in silence.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import rlplat
from rlplat import errors
from rlplat.errors import UsageError

_HERE = __name__
_MODULES = {
    "actor": "core",
    "exceptions": "core",
    "experimental": "core",
    "experimental.sgd": "sgd",
    "experimental.sgd.pytorch": "sgd",
    "experimental.sgd.pytorch.pytorch_trainer": "sgd",
    "experimental.sgd.pytorch.resnet": "resnet",
    "train.torch": "train",
    "tune.async_hyperband": "tune",
    "tune.checkpoint": "tune",
    "tune.examples": "mnist_pytorch",
    "tune.examples.mnist_pytorch": "mnist_pytorch",
    "tune.hyperband": "tune",
    "tune.median_stopping_rule": "tune",
    "tune.pbt": "tune",
    "tune.registry": "tune",
    "tune.result_grid": "tune",
    "tune.sample": "tune",
    "tune.schedulers": "tune",
    "tune.search": "tune",
    "tune.search.bayesopt": "tune",
    "tune.search.hyperopt": "tune",
    "tune.search.optuna": "tune",
    "tune.suggest": "tune",
    "tune.suggest.bayesopt": "tune",
    "tune.suggest.hyperopt": "tune",
    "tune.suggest.optuna": "tune",
    "tune.track": "tune",
    "tune.trainable": "tune",
    "tune.tune": "tune",
    "tune.utils": "tune",
    "air": "train",
    "air.config": "train",
    "air.session": "train",
    "util.actor_pool": "util",
    "util.multiprocessing": "util",
    "util.queue": "util",
    "util.sgd": "sgd",
    "util.sgd.torch": "sgd",
    "util.sgd.torch.resnet": "resnet",
    "util.sgd.torch.training_operator": "sgd",
}
"""Modules of Ray, and which of ours has their names; core: this one."""
_OWN = ("serve", "train", "tune", "util")

_SAYS_NOTHING_HERE = frozenset(
    "configure_logging include_dashboard include_java include_webui job_config logging_config logging_format "
    "logging_level node_ip_address num_redis_shards plasma_directory plasma_store_socket_name raylet_socket_name "
    "redirect_output redirect_worker_output redis_max_memory redis_max_clients dashboard_host dashboard_port "
    "use_raylet webui_host _metrics_export_port _redis_max_memory _temp_dir temp_dir driver_object_store_memory "
    "_system_config ignore_version_mismatch lru_evict".split()
)
"""Arguments of `ray.init` that change no result of a program."""


def init(
    address: str | None = None,
    *,
    redis_address: str | None = None,
    local_mode: bool = False,
    memory: int | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """`rlplat.init`; address, redis_address: of a Ray cluster, then Ray carries the program; local_mode: all in this
    process."""
    unknown = sorted(name for name in arguments if name in _SAYS_NOTHING_HERE)
    if unknown:
        print(f"rlplat: ray.init: {', '.join(unknown)}: nothing to set here", file=sys.stderr)
    arguments = {name: value for name, value in arguments.items() if name not in unknown}
    if address is not None and redis_address is not None:
        raise UsageError("ray.init: redis_address is the old name of address; give one of them")
    address = address if redis_address is None else redis_address
    if address == "local":
        address = None
    if local_mode:
        arguments["backend"] = "inproc"
    if memory is not None:
        arguments["resources"] = {**(arguments.get("resources") or {}), "memory": float(memory)}
    if address is not None:
        arguments |= {"backend": "ray", "address": address.removeprefix("ray://")}
    rlplat.init(**arguments)
    return {"address": address or "local", "node_ip_address": "127.0.0.1"}


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Options with today's names."""
    for old, new in (("num_return_vals", "num_returns"), ("max_reconstructions", "max_restarts")):
        if old in options:
            options[new] = options.pop(old)
    return options


def remote(*given: Any, **options: Any) -> Any:
    """`rlplat.remote`, with the options' old names."""
    return rlplat.remote(*given, **_renamed(options))


def method(**options: Any) -> Callable[[Any], Any]:
    """`rlplat.method`, with the options' old names."""
    made: Callable[[Any], Any] = rlplat.method(**_renamed(options))
    return made


def wait(
    refs: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> Any:
    """`rlplat.wait`; timeout: seconds (before Ray 0.7 they were milliseconds)."""
    return rlplat.wait(refs, num_returns=num_returns, timeout=timeout)


def get_gpu_ids() -> list[int]:
    return list(rlplat.get_runtime_context().gpu_ids)


def shutdown(_exiting_interpreter: bool = False) -> None:
    rlplat.shutdown()


class _Spellings(MetaPathFinder, Loader):
    """Finds `rlplat.compat.ray.util.sgd.torch`: the module of ours that has its names."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        inner = name.removeprefix(f"{_HERE}.")
        return ModuleSpec(name, self, is_package=True) if inner in _MODULES and inner != name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        home = _MODULES[name.removeprefix(f"{_HERE}.")]
        sys.modules[name] = (
            sys.modules[_HERE] if home == "core" else importlib.import_module(f"{_HERE}.{home}")
        )


if not any(type(finder).__name__ == "_Spellings" for finder in sys.meta_path):
    sys.meta_path.append(_Spellings())

_NAMES = {
    "ActorDiedError": "ActorDied",
    "GetTimeoutError": "GetTimeout",
    "ObjectID": "ObjectRef",
    "ObjectLostError": "ObjectLost",
    "ObjectStoreFullError": "ObjectStoreFull",
    "OutOfMemoryError": "OutOfMemory",
    "RayActorError": "ActorDied",
    "RayError": "RlplatError",
    "RayTaskError": "TaskError",
    "RuntimeEnvSetupError": "RuntimeEnvFailed",
    "TaskCancelledError": "TaskCancelled",
    "WorkerCrashedError": "WorkerCrashed",
}


def __getattr__(name: str) -> Any:
    if name in _OWN or name in _MODULES:
        return importlib.import_module(f"{_HERE}.{name}")
    named = _NAMES.get(name, name)
    for home in (rlplat, errors):
        if not named.startswith("_") and hasattr(home, named):
            return getattr(home, named)
    raise AttributeError(
        f"module 'rlplat.compat.ray' has no attribute {name!r}: docs/from-ray.md says what is here"
    )
