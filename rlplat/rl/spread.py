"""`spread`: actors that keep a CPU busy, distributed over the machines of the cluster.

    worker = spread(RolloutWorker, settings)
    handle = worker.remote(settings, 0, 0)

1. On one machine they ask for no CPUs, so that their number is free: there is nothing to choose.
2. On several each asks for one CPU, and where there are fewer CPUs than actors for a half, a third, ... so that all of
   them find room: nothing waits for a CPU that this run itself holds. The strategy is SPREAD: it is the engine that
   knows what else runs where, and so chooses.
3. In a placement group they ask for nothing: whoever made it (a trial of `tune`) has booked their CPUs and their place.
4. It is decided anew for every actor: one that replaces a lost one finds the machines of then.

What mostly waits (parameter servers, the pool of opponents) is left to the engine and asks for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat.node_types import node_types

if TYPE_CHECKING:
    from rlplat import ActorHandle


class spread:  # noqa: N801  (used as `rlplat.remote` is)
    """An actor class with the placement of an actor that keeps a CPU busy."""

    def __init__(self, actor_class: type, settings: Mapping[str, Any], **options: Any) -> None:
        """settings: of an algorithm; options: of the actor beside those."""
        self._class = rlplat.remote(actor_class)
        self._num_actors = num_busy_actors(settings)
        self._options = options

    def remote(self, *arguments: Any, **named: Any) -> ActorHandle:
        options = placement(self._num_actors) | self._options
        handle: ActorHandle = self._class.options(**options).remote(*arguments, **named)
        return handle


def num_busy_actors(settings: Mapping[str, Any]) -> int:
    """Rollout workers, learners, replay shards and the evaluation of a run with these settings."""
    num_learners: int = settings.get("learner", {}).get("num_learners", 1)
    num_shards: int = settings.get("num_replay_shards", 0)
    return max(1, int(settings.get("num_rollout_workers", 1))) + num_learners + num_shards + 1


def cpus_of_machines() -> list[float]:
    """Of every machine of the cluster that is alive; where they come and go with the demand, of all that may come."""
    if types := node_types():
        return [kind.resources.get("CPU", 0.0) for kind in types.values() for _ in range(kind.max_nodes)]
    return [node["Resources"].get("CPU", 0.0) for node in rlplat.nodes() if node["Alive"]]


def is_one_machine() -> bool:
    """Whether what this process finds on its machine holds for all actors."""
    return not rlplat.is_initialized() or len(cpus_of_machines()) == 1


def placement(num_actors: int) -> dict[str, Any]:
    """Options of one of `num_actors` actors."""
    cpus = cpus_of_machines()
    if len(cpus) == 1 or rlplat.get_current_placement_group() is not None:
        return {}
    return {"num_cpus": cpus_each(cpus, num_actors), "scheduling_strategy": "SPREAD"}


def cpus_each(cpus: Sequence[float], num_actors: int) -> float:
    """1, 1/2, 1/3, ...: the first with which `num_actors` find room on machines with so many CPUs; no actor is divided
    between machines. 0 where there are no CPUs."""
    if not sum(cpus):
        return 0.0
    parts = max(1, int(num_actors / sum(cpus)))
    while sum(math.floor(amount * parts) for amount in cpus) < num_actors:
        parts += 1
    return math.floor(10_000 / parts) / 10_000  # as finely as Ray counts
