"""What the options of a call make of it: what it needs, and in which placement group it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlplat.errors import InfeasibleResources, OptionError, OptionTypeError
from rlplat.runtime.core.resources import Resources, check_feasible, check_text, exact, exact_demand, units
from rlplat.runtime.placement import (
    NodeAffinitySchedulingStrategy,
    PlacementGroup,
    PlacementGroupSchedulingStrategy,
)
from rlplat.runtime.wire.values import Capture, Shape

if TYPE_CHECKING:
    from rlplat.runtime.options import Options


def shape_of(options: Options, default_cpus: float, total: Resources, who: str, env: str = "") -> Shape:
    """What a task or an actor with these options needs. Raises for what could never be met."""
    demand = options.demand(default_cpus)
    group, bundle, strategy = placement_of(options, who)
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


def placement_of(options: Options, who: str) -> tuple[PlacementGroup | None, int, str]:
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
            raise OptionTypeError(f"{who}: placement_group must be a PlacementGroup, not {group!r}")
        if wanted not in (None, "DEFAULT"):
            raise OptionError(f"{who}: a placement group says where it runs: no scheduling_strategy={wanted!r}")
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
        check_text(f"{who}: node_id", wanted.node_id)
        return None, -1, f"node{'?' if wanted.soft else ''}:{wanted.node_id}"
    raise (OptionError if isinstance(wanted, str) else OptionTypeError)(
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


def _check_bundle(demand: Resources, group: PlacementGroup, bundle: int, who: str, is_capturing: bool) -> None:
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
        pools = [dict(total)]  # what there is, of what there may come to be
    else:
        pools = group.bundle_specs if shape.bundle < 0 else [group.bundle_specs[shape.bundle]]
    if not shape.demand:
        return max(1, int(total["CPU"] if "CPU" in total else 1))
    return max(
        1,
        sum(min(units(pool.get(name, 0)) // units(amount) for name, amount in shape.demand) for pool in pools),
    )


def group_of(options: Options) -> PlacementGroup | None:
    return placement_of(options, "it")[0]
