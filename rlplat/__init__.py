"""rlplat: reinforcement learning on a small, fast distributed runtime.

    import rlplat

    @rlplat.remote
    def square(x):
        return x * x

    rlplat.get([square.remote(i) for i in range(4)])         # tasks, actors, object refs: Ray's verbs
    rlplat.train("ppo", env="CartPole-v1", out="runs/demo")  # what `rlplat train` does

Every name is imported when it is first used: `import rlplat` itself loads next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlplat.rl.training_loop import train, training_loop
    from rlplat.runtime.api import (
        ActorHandle,
        ObjectRef,
        available_resources,
        cluster_resources,
        get,
        get_actor,
        get_runtime_context,
        init,
        is_initialized,
        kill,
        list_named_actors,
        method,
        put,
        remote,
        shutdown,
        wait,
    )
    from rlplat.runtime.bulk import map

_HOMES = {
    "rlplat.runtime.api": (
        "ActorHandle ObjectRef available_resources cluster_resources get get_actor get_runtime_context init "
        "is_initialized kill list_named_actors method put remote shutdown wait"
    ),
    "rlplat.runtime.bulk": "map",
    "rlplat.rl.training_loop": "train training_loop",
}
_HOME_BY_NAME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ActorHandle",
    "ObjectRef",
    "available_resources",
    "cluster_resources",
    "get",
    "get_actor",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_named_actors",
    "map",
    "method",
    "put",
    "remote",
    "shutdown",
    "train",
    "training_loop",
    "wait",
]


def __getattr__(name: str) -> Any:
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlplat' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_BY_NAME])
