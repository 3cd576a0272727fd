"""Where things run on a Ray cluster: nodes, resources, placement groups, in our words."""

from __future__ import annotations

from typing import Any

import msgspec
import ray
from ray.util.placement_group import PlacementGroup as RayGroup
from ray.util.placement_group import placement_group as create_ray_group
from ray.util.placement_group import placement_group_table as table_of_groups
from ray.util.placement_group import remove_placement_group as remove_ray_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlplat.errors import InfeasibleResources, PlacementGroupRemoved
from rlplat.node_types import amounts, node_types
from rlplat.runtime.core.scheduler.events import GroupRequested
from rlplat.runtime.core.scheduler.groups import Group, why_never
from rlplat.runtime.demand import capture_of, placement_of, shape_of
from rlplat.runtime.options import Options
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.ray.host import Identity
from rlplat.runtime.wire.values import GroupState, NodeState, Place, Shape


def placed(options: Options, default_cpus: float, who: str) -> dict[str, Any]:
    """Ray's options of what a task or an actor needs and where it runs. Raises for what can never be met."""
    shape_of(options, default_cpus, _room_for(options, default_cpus, who), who)
    group, bundle, strategy = placement_of(options, who)
    given: dict[str, Any] = {
        "num_cpus": default_cpus if options.num_cpus is None else options.num_cpus,
        "num_gpus": options.num_gpus,
        "resources": options.resources,
        "memory": options.memory or None,
        "runtime_env": {name: value for name, value in options.runtime_env.items() if value} or None,
    }
    if group is not None:
        captures = capture_of(options) is not None
        given["scheduling_strategy"] = PlacementGroupSchedulingStrategy(ray_group(group), bundle, captures)
    elif strategy.startswith("node"):
        kind, _, node = strategy.partition(":")
        given["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=kind.endswith("?"))
    elif strategy or options.placement_group is None or options.scheduling_strategy is not None:
        given["scheduling_strategy"] = strategy or "DEFAULT"
    return {name: value for name, value in given.items() if value is not None}


def _room_for(options: Options, default_cpus: float, who: str) -> dict[str, float]:
    """What is to be compared with a demand: all there is, or all that one machine, or one that may start, can hold."""
    machines = [node.total for node in nodes() if node.is_alive]
    types = node_types()
    demand = {name: amount for name, amount in options.demand(default_cpus).items() if amount}
    for room in (*machines, *(kind.resources for kind in types.values())):
        if all(room.get(name, 0.0) >= amount for name, amount in demand.items()):
            return dict(room)
    everything = resources(available=False)
    if types:
        known = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        raise InfeasibleResources(f"{who} needs {amounts(demand)}, and no node type has that: there are {known}")
    if all(everything.get(name, 0.0) >= amount for name, amount in demand.items()):
        raise InfeasibleResources(
            f"{who} needs {amounts(demand)} on one machine, and the cluster has "
            + "; ".join(amounts(machine) for machine in machines)
        )
    return everything


def resources(available: bool) -> dict[str, float]:
    found = ray.available_resources() if available else ray.cluster_resources()
    return {"CPU": 0.0, "GPU": 0.0} | _without_rays_own(found)


def _without_rays_own(found: dict[str, float]) -> dict[str, float]:
    hidden = ("node:", "bundle", "accelerator_type:")
    return {
        name: amount
        for name, amount in found.items()
        if not (name.startswith(hidden) or "_group_" in name or name in ("memory", "object_store_memory"))
    }


def nodes() -> list[NodeState]:
    return [
        NodeState(
            node["NodeID"],
            node["Alive"],
            _without_rays_own(node["Resources"]),
            {},
            node["NodeManagerAddress"],
            node["NodeManagerHostname"],
        )
        for node in ray.nodes()
    ]


def place(here: Identity | None) -> Place:
    """Where this worker runs; here: of an actor, who it is."""
    context = ray.get_runtime_context()
    held = tuple(sorted((name, float(n)) for name, n in context.get_assigned_resources().items()))
    found = Place(context.get_node_id(), Shape(held, group=context.get_placement_group_id() or ""))
    if here is None:
        return found
    return msgspec.structs.replace(
        found,
        actor=context.get_actor_id(),
        actor_name=context.get_actor_name() or "",
        incarnation=2 if context.was_current_actor_reconstructed else 1,
        info=here.info,
        is_detached=here.is_detached,
    )


# ---------------------------------------------------------------- placement groups


def ray_group(group: PlacementGroup) -> Any:
    id = ray.PlacementGroupID(bytes.fromhex(group.id))
    return RayGroup(id, [dict(bundle) for bundle in group.bundles])


def create_group(
    bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str, is_detached: bool
) -> PlacementGroup:
    made = create_ray_group(
        [dict(bundle) for bundle in bundles],
        strategy=strategy,
        name=name,
        lifetime="detached" if is_detached else None,
    )
    return PlacementGroup(made.id.hex(), bundles, strategy, name)


def require_possible(group: PlacementGroup) -> None:
    """Raises where the group was removed, and where the machines that there are could never hold it."""
    state = {state.group: state.state for state in groups()}.get(group.id)
    if state == "REMOVED":
        raise PlacementGroupRemoved(f"{group!r} was removed")
    if state == "CREATED":
        return
    asked = GroupRequested(client="", group=group.id, bundles=group.bundles, strategy=group.strategy)
    totals = [node.total for node in nodes() if node.is_alive]
    for kind in node_types().values():
        totals += [dict(kind.resources)] * kind.max_nodes
    if never := why_never(Group(asked), totals):
        raise InfeasibleResources(
            f"placement group {group.name or group.id} ({group.strategy}) can never be reserved: {never}"
        )


def remove_group(group: PlacementGroup) -> None:
    remove_ray_group(ray_group(group))


def groups() -> list[GroupState]:
    return [
        GroupState(
            id,
            row["name"],
            row["strategy"],
            row["state"],
            [{name: float(amount) for name, amount in bundle.items()} for bundle in row["bundles"].values()],
            list((row.get("bundles_to_node_id") or {}).values()),
        )
        for id, row in table_of_groups().items()
    ]
