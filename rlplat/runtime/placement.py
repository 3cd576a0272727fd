"""Where tasks and actors run: placement groups and scheduling strategies.

    pg = rlplat.placement_group([{"CPU": 1}, {"CPU": 2, "GPU": 1}], strategy="STRICT_PACK")
    rlplat.get(pg.ready(), timeout=30)                       # all of it is reserved now, or a GetTimeout says no
    train.options(num_cpus=2, num_gpus=1, placement_group=pg, placement_group_bundle_index=1).remote()
    rlplat.remove_placement_group(pg)                        # kills what runs in it, frees what it holds

The node's scheduler reserves bundles and gives leases out of them (`core.scheduler.groups`); here is what
the caller sees of that; `demand` is what they make of a call's options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlplat.errors import OptionError
from rlplat.runtime.connect import connected
from rlplat.runtime.core.resources import check_resources, check_text, exact_demand

if TYPE_CHECKING:
    from rlplat.runtime.refs import ObjectRef

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True)
class PlacementGroup:
    """A handle of a placement group; pass it to tasks and actors, or to `.options(placement_group=...)`."""

    id: str
    bundles: tuple[tuple[tuple[str, float], ...], ...]
    strategy: str = "PACK"
    name: str = ""

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The resources of each bundle."""
        return [dict(bundle) for bundle in self.bundles]

    @property
    def bundle_count(self) -> int:
        return len(self.bundles)

    def ready(self) -> ObjectRef:
        """A ref of this handle, there as soon as all bundles are reserved; `get` raises when they never will be."""
        return connected().group_ready(self)

    def wait(self, timeout_seconds: float | None = 30) -> bool:
        """Whether all bundles are reserved within that time. Raises when they never will be."""
        backend = connected()
        ref = backend.group_ready(self)
        if not backend.wait([ref], 1, timeout_seconds)[0]:
            return False
        backend.get([ref], None)
        return True

    def __repr__(self) -> str:
        return f"PlacementGroup({self.name or self.id}, {self.strategy}, {self.bundle_specs})"


def placement_group(
    bundles: Sequence[dict[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
) -> PlacementGroup:
    """Reserve bundles of resources, all or none. Returns at once; `ready()` or `wait()` say when it is done.

    strategy: "PACK" (few nodes), "SPREAD" (different nodes where possible), "STRICT_PACK" (one node), "STRICT_SPREAD".
    lifetime: "detached" groups outlive the actor that created them; every group ends with the cluster.
    """
    if strategy not in STRATEGIES:
        raise OptionError(f"placement_group: strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if lifetime not in (None, "detached"):
        raise OptionError(f"placement_group: lifetime must be None or 'detached', not {lifetime!r}")
    check_text("placement_group: name", name)
    made = tuple(_bundle(number, bundle) for number, bundle in enumerate(bundles))
    if not made:
        raise OptionError("placement_group needs at least one bundle, e.g. [{'CPU': 1}]")
    return connected().create_group(made, strategy, name, lifetime == "detached")


def _bundle(number: int, bundle: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(bundle, dict):
        raise OptionError(f"placement_group: bundle {number} must be a dict like {{'CPU': 1}}, not {bundle!r}")
    check_resources(f"placement_group: bundle {number}", bundle)
    kept = exact_demand(bundle, f"placement_group: bundle {number}")
    if not kept:
        raise OptionError(f"placement_group: bundle {number} is empty, and reserves nothing")
    return kept


def remove_placement_group(group: PlacementGroup) -> None:
    """Give back what it reserved. Tasks and actors that run in it are killed; what waits for it fails."""
    connected().remove_group(group)


def get_placement_group(name: str) -> PlacementGroup:
    """The group that was created with this name."""
    states = connected().cluster().groups
    for state in states:
        if state.name == name and state.state != "REMOVED":
            bundles = tuple(tuple(sorted(bundle.items())) for bundle in state.bundles)
            return PlacementGroup(state.group, bundles, state.strategy, name)
    names = ", ".join(repr(state.name) for state in states if state.name and state.state != "REMOVED")
    raise OptionError(f"there is no placement group named {name!r} (named groups: {names or 'none'})")


def placement_group_table(group: PlacementGroup | None = None) -> dict[str, Any]:
    """What the node knows of one group, or of all (by id): state, strategy, bundles, and the node of each bundle."""
    rows = {
        state.group: {
            "placement_group_id": state.group,
            "name": state.name,
            "bundles": dict(enumerate(state.bundles)),
            "bundles_to_node_id": dict(enumerate(state.nodes)),
            "strategy": state.strategy,
            "state": state.state,
        }
        for state in connected().cluster().groups
    }
    return rows if group is None else rows.get(group.id, {})


def get_current_placement_group() -> PlacementGroup | None:
    """The group whose resources this task or actor uses."""
    cluster = connected().cluster()
    for state in cluster.groups:
        if state.group == cluster.here.shape.group:
            bundles = tuple(tuple(sorted(bundle.items())) for bundle in state.bundles)
            return PlacementGroup(state.group, bundles, state.strategy, state.name)
    return None


def nodes() -> list[dict[str, Any]]:
    """Every machine of the cluster, in Ray's form."""
    host = os.uname().nodename
    return [
        {
            "NodeID": state.node,
            "Alive": state.is_alive,
            "alive": state.is_alive,
            "NodeManagerHostname": state.hostname or host,
            "NodeManagerAddress": state.address,
            "NodeName": state.node,
            "Resources": {name: amount for name, amount in state.total.items() if amount},
            "Available": {name: amount for name, amount in state.available.items() if state.total.get(name)},
            "Labels": {},
        }
        for state in connected().cluster().nodes
    ]


# ---------------------------------------------------------------- strategies


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """`.options(scheduling_strategy=...)`: the same as the three `placement_group...=` options."""

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """`.options(scheduling_strategy=...)`: on this node; with `soft`, elsewhere when it has no room now."""

    node_id: str
    soft: bool = False
