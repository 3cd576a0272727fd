"""Where tasks and actors run: placement groups, scheduling strategies, and what they make of a call's options.

    pg = rlplat.placement_group([{"CPU": 1}, {"CPU": 2, "GPU": 1}], strategy="STRICT_PACK")
    rlplat.get(pg.ready(), timeout=30)                       # all of it is reserved now, or a GetTimeout says no
    train.options(num_cpus=2, num_gpus=1, placement_group=pg, placement_group_bundle_index=1).remote()
    rlplat.remove_placement_group(pg)                        # kills what runs in it, frees what it holds

The node's scheduler reserves bundles and gives leases out of them (`core.scheduler.groups`); here is what
the caller sees of that, and `GroupBook`, a client's record of the groups that it waits for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlplat.errors import InfeasibleResources, OptionError
from rlplat.runtime.machine.hardware import Resources, check_feasible, exact, exact_demand, units
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.messages import Capture, Shape, Value

if TYPE_CHECKING:
    from rlplat.runtime.backend import Options
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
        return _connected().group_ready(self)

    def wait(self, timeout_seconds: float | None = 30) -> bool:
        """Whether all bundles are reserved within that time. Raises when they never will be."""
        backend = _connected()
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
        raise OptionError(
            f"placement_group: strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}"
        )
    if lifetime not in (None, "detached"):
        raise OptionError(f"placement_group: lifetime must be None or 'detached', not {lifetime!r}")
    made = tuple(_bundle(number, bundle) for number, bundle in enumerate(bundles))
    if not made:
        raise OptionError("placement_group needs at least one bundle, e.g. [{'CPU': 1}]")
    return _connected().create_group(made, strategy, name, lifetime == "detached")


def _bundle(number: int, bundle: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(bundle, dict):
        raise OptionError(
            f"placement_group: bundle {number} must be a dict like {{'CPU': 1}}, not {bundle!r}"
        )
    for name, amount in bundle.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not amount >= 0:
            raise OptionError(f"placement_group: bundle {number} has {name}={amount!r}: not an amount")
    kept = exact_demand(bundle, f"placement_group: bundle {number}")
    if not kept:
        raise OptionError(f"placement_group: bundle {number} is empty, and reserves nothing")
    return kept


def remove_placement_group(group: PlacementGroup) -> None:
    """Give back what it reserved. Tasks and actors that run in it are killed; what waits for it fails."""
    _connected().remove_group(group)


def get_placement_group(name: str) -> PlacementGroup:
    """The group that was created with this name."""
    states = _connected().cluster().groups
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
        for state in _connected().cluster().groups
    }
    return rows if group is None else rows.get(group.id, {})


def get_current_placement_group() -> PlacementGroup | None:
    """The group whose resources this task or actor uses."""
    cluster = _connected().cluster()
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
            "NodeManagerHostname": host,
            "NodeManagerAddress": "127.0.0.1",
            "NodeName": state.node,
            "Resources": {name: amount for name, amount in state.total.items() if amount},
            "Available": {name: amount for name, amount in state.available.items() if state.total.get(name)},
            "Labels": {},
        }
        for state in _connected().cluster().nodes
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


def shape_of(options: Options, default_cpus: float, total: Resources, who: str, env: str = "") -> Shape:
    """What a task or an actor with these options needs. Raises for what could never be met."""
    demand = options.demand(default_cpus)
    group, bundle, strategy = _placement(options, who)
    if group is None:
        check_feasible(demand, total, who)
    else:
        _check_bundle(demand, group, bundle, who, capture_of(options) is not None)
    return Shape(
        exact_demand(demand, who),
        options.memory,
        env,
        "" if group is None else group.id,
        bundle,
        strategy,
        can_retry=options.max_retries != 0,
    )


def _placement(options: Options, who: str) -> tuple[PlacementGroup | None, int, str]:
    """(group, bundle, strategy) that the options ask for."""
    if isinstance(options.scheduling_strategy, PlacementGroupSchedulingStrategy) and isinstance(
        options.placement_group, PlacementGroup
    ):
        raise OptionError(f"{who}: give the placement group once, as placement_group= or in the strategy")
    options = _plain(options)
    wanted: Any = options.scheduling_strategy
    group, bundle = options.placement_group, options.placement_group_bundle_index
    if group == "default":
        group = None
    if group is not None:
        if not isinstance(group, PlacementGroup):
            raise OptionError(f"{who}: placement_group must be a PlacementGroup, not {group!r}")
        if wanted not in (None, "DEFAULT"):
            raise OptionError(
                f"{who}: a placement group says where it runs: no scheduling_strategy={wanted!r}"
            )
        if isinstance(bundle, bool) or not isinstance(bundle, int) or not -1 <= bundle < group.bundle_count:
            raise OptionError(
                f"{who}: placement_group_bundle_index must be -1 (any) or one of its {group.bundle_count} bundles, "
                f"not {bundle!r}"
            )
        return group, bundle, ""
    if bundle != -1:
        raise OptionError(f"{who}: placement_group_bundle_index={bundle!r} without a placement_group")
    if wanted is None or wanted == "DEFAULT":
        return None, -1, ""
    if wanted == "SPREAD":
        return None, -1, "SPREAD"
    if isinstance(wanted, NodeAffinitySchedulingStrategy):
        return None, -1, f"node{'?' if wanted.soft else ''}:{wanted.node_id}"
    raise OptionError(
        f"{who}: scheduling_strategy must be 'DEFAULT', 'SPREAD', a PlacementGroupSchedulingStrategy or a "
        f"NodeAffinitySchedulingStrategy, not {wanted!r}"
    )


def _plain(options: Options) -> Options:
    """A strategy that names a group, as the options that say the same."""
    wanted = options.scheduling_strategy
    if not isinstance(wanted, PlacementGroupSchedulingStrategy):
        return options
    return replace(
        options,
        scheduling_strategy=None,
        placement_group=wanted.placement_group,
        placement_group_bundle_index=wanted.placement_group_bundle_index,
        placement_group_capture_child_tasks=wanted.placement_group_capture_child_tasks,
    )


def captured(options: Options, capture: Capture) -> Options:
    """The options of a child of what runs in a group that captures its children: what they say themselves wins.

    A strategy of its own ("DEFAULT" among them) or placement_group=None leads out of the group, and from there nothing
    is captured any more; another group captures on, unless it is told not to.
    """
    options = _plain(options)
    if options.scheduling_strategy is not None or options.placement_group is None:
        return options
    if options.placement_group == "default":
        group = PlacementGroup(capture.id, capture.bundles, capture.strategy, capture.name)
        options = replace(options, placement_group=group)
    if options.placement_group_capture_child_tasks is None:
        options = replace(options, placement_group_capture_child_tasks=True)
    return options


def capture_of(options: Options) -> Capture | None:
    """Where the children of a task or an actor with these options run, if its group captures them."""
    plain = _plain(options)
    group = plain.placement_group
    if not plain.placement_group_capture_child_tasks or not isinstance(group, PlacementGroup):
        return None
    return Capture(group.id, group.bundles, group.strategy, group.name)


def _check_bundle(
    demand: Resources, group: PlacementGroup, bundle: int, who: str, is_capturing: bool
) -> None:
    specs = group.bundle_specs if bundle < 0 else [group.bundle_specs[bundle]]
    if not any(all(spec.get(name, 0) >= exact(amount) for name, amount in demand.items()) for spec in specs):
        which = "none of its bundles has" if bundle < 0 else f"its bundle {bundle} has not"
        way_out = (
            ". The group captures what its tasks and actors submit: .options(scheduling_strategy='DEFAULT') leads out "
            "of it"
        )
        raise InfeasibleResources(
            f"{who} needs {demand} of {group!r}, and {which} that much: lower the demand (a task takes 1 CPU unless "
            f"told otherwise: .options(num_cpus=...)) or make the bundle larger{way_out if is_capturing else ''}"
        )


def most_leases(shape: Shape, group: PlacementGroup | None, total: Resources) -> int:
    """How many leases of this shape there can be at once."""
    if group is None:
        pools = [total]
    else:
        pools = group.bundle_specs if shape.bundle < 0 else [group.bundle_specs[shape.bundle]]
    if not shape.demand:
        return max(1, int(total.get("CPU", 1)))
    return max(
        1,
        sum(
            min(units(pool.get(name, 0)) // units(amount) for name, amount in shape.demand) for pool in pools
        ),
    )


def group_of(options: Options) -> PlacementGroup | None:
    return _placement(options, "it")[0]


# ---------------------------------------------------------------- a client's part (lock held)


class GroupBook:
    """Which refs of this process wait for which group."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Value]] = {}

    def wait_for(self, group: str, id: int, value: Value) -> messages.FindGroup | None:
        """Object `id` has this value once the group is there; what to ask the node, unless that has been asked."""
        waiting = self._waiting.setdefault(group, {})
        waiting[id] = value
        return messages.FindGroup(group) if len(waiting) == 1 else None

    def on_news(self, news: messages.GroupNews) -> dict[int, Value]:
        """The objects that wait no more."""
        waiting = self._waiting.pop(news.group, {})
        return waiting if news.error is None else {id: Value(error=news.error) for id in waiting}


def _connected() -> Any:
    from rlplat.runtime import api

    return api._connected()
