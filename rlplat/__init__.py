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

from typing import TYPE_CHECKING

from rlplat.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlplat import (
        checkpoints as checkpoints,
        data_parallel as data_parallel,
        errors as errors,
        export as export,
        metrics as metrics,
        serve as serve,
        state as state,
        tune as tune,
    )
    from rlplat.rl.run.trained_agent import load as load
    from rlplat.rl.run.training_loop import train as train, training_loop as training_loop
    from rlplat.rl.together.training import train_together as train_together
    from rlplat.runtime.api import (
        ObjectRef as ObjectRef,
        ObjectRefGenerator as ObjectRefGenerator,
        as_completed as as_completed,
        available_resources as available_resources,
        cancel as cancel,
        cluster_resources as cluster_resources,
        empty as empty,
        exit_actor as exit_actor,
        get as get,
        get_actor as get_actor,
        get_gpu_ids as get_gpu_ids,
        get_runtime_context as get_runtime_context,
        kill as kill,
        list_named_actors as list_named_actors,
        put as put,
        wait as wait,
    )
    from rlplat.runtime.connect import init as init, is_initialized as is_initialized, shutdown as shutdown
    from rlplat.runtime.map import map as map
    from rlplat.runtime.placement import (
        NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy,
        PlacementGroup as PlacementGroup,
        PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy,
        get_current_placement_group as get_current_placement_group,
        get_placement_group as get_placement_group,
        nodes as nodes,
        placement_group as placement_group,
        placement_group_table as placement_group_table,
        remove_placement_group as remove_placement_group,
    )
    from rlplat.runtime.remote import ActorHandle as ActorHandle, method as method, remote as remote
    from rlplat.state import timeline as timeline
else:
    _HOMES = {
        **dict.fromkeys(("checkpoints", "data_parallel", "errors", "export", "metrics", "serve", "tune"), ""),
        "runtime.api": (
            "as_completed available_resources cancel cluster_resources empty exit_actor get get_actor get_gpu_ids "
            "get_runtime_context kill list_named_actors put wait"
        ),
        "runtime.connect": "init is_initialized shutdown",
        "runtime.generators": "ObjectRefGenerator",
        "runtime.refs": "ObjectRef",
        "runtime.remote": "ActorHandle method remote",
        "runtime.map": "map",
        "runtime.placement": (
            "NodeAffinitySchedulingStrategy PlacementGroup PlacementGroupSchedulingStrategy "
            "get_current_placement_group get_placement_group nodes placement_group placement_group_table "
            "remove_placement_group"
        ),
        "rl.run.trained_agent": "load",
        "rl.run.training_loop": "train training_loop",
        "rl.together.training": "train_together",
        "state": "state timeline",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
