"""rlplat: reinforcement learning on a small, fast distributed runtime.

    import rlplat

    @rlplat.remote
    def square(x):
        return x * x

    rlplat.get([square.remote(i) for i in range(4)])         # tasks, actors, object refs: Ray's verbs
    rlplat.train("ppo", env="CartPole-v1", out="runs/demo")  # what `rlplat train` does
    action = rlplat.load("runs/demo").act(obs)               # what came of it

Every name, and every public module (`rlplat.tune`, `rlplat.state`), is imported when it is first used: `import rlplat`
itself loads next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlplat import checkpoints, data_parallel, errors, export, metrics, serve, state, tune
    from rlplat.rl.run.trained_agent import load
    from rlplat.rl.run.training_loop import train, training_loop
    from rlplat.runtime.api import (
        ObjectRef,
        ObjectRefGenerator,
        available_resources,
        cancel,
        cluster_resources,
        exit_actor,
        get,
        get_actor,
        get_runtime_context,
        kill,
        list_named_actors,
        put,
        wait,
    )
    from rlplat.runtime.connect import init, is_initialized, shutdown
    from rlplat.runtime.map import map
    from rlplat.runtime.placement import (
        NodeAffinitySchedulingStrategy,
        PlacementGroup,
        PlacementGroupSchedulingStrategy,
        get_current_placement_group,
        get_placement_group,
        nodes,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from rlplat.runtime.remote import ActorHandle, method, remote
    from rlplat.state import timeline

_HOMES = {
    "rlplat.runtime.api": (
        "available_resources cancel cluster_resources exit_actor get get_actor get_runtime_context "
        "kill list_named_actors put wait"
    ),
    "rlplat.runtime.connect": "init is_initialized shutdown",
    "rlplat.runtime.generators": "ObjectRefGenerator",
    "rlplat.runtime.refs": "ObjectRef",
    "rlplat.runtime.remote": "ActorHandle method remote",
    "rlplat.runtime.map": "map",
    "rlplat.runtime.placement": (
        "NodeAffinitySchedulingStrategy PlacementGroup PlacementGroupSchedulingStrategy "
        "get_current_placement_group get_placement_group nodes placement_group placement_group_table "
        "remove_placement_group"
    ),
    "rlplat.rl.run.trained_agent": "load",
    "rlplat.rl.run.training_loop": "train training_loop",
    "rlplat.state": "timeline",
}
_HOME_BY_NAME = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("checkpoints", "data_parallel", "errors", "export", "metrics", "serve", "state", "tune")

__all__ = [
    "ActorHandle",
    "NodeAffinitySchedulingStrategy",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroup",
    "PlacementGroupSchedulingStrategy",
    "available_resources",
    "cancel",
    "checkpoints",
    "cluster_resources",
    "data_parallel",
    "errors",
    "exit_actor",
    "export",
    "get",
    "get_actor",
    "get_current_placement_group",
    "get_placement_group",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "list_named_actors",
    "load",
    "map",
    "method",
    "metrics",
    "nodes",
    "placement_group",
    "placement_group_table",
    "put",
    "remote",
    "remove_placement_group",
    "serve",
    "shutdown",
    "state",
    "timeline",
    "train",
    "training_loop",
    "tune",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rlplat.{name}")
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlplat' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
