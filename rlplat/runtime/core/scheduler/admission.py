"""What a client may ask of the scheduler: ValueError for a demand that makes no sense. Pure.

The scheduler's books rely on it: a negative amount would make resources, an endless count would never be placed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rlplat.runtime.core.scheduler.events import Demand
from rlplat.runtime.wire.values import Shape

_MOST_LEASES = 1 << 16
"""In one request: far more than a node has processes."""
_MOST_BUNDLES = 1 << 16


def check_shape(shape: Shape) -> None:
    check_demand(shape.demand)
    if shape.memory < 0 or shape.bundle < -1:
        raise ValueError(f"memory={shape.memory}, bundle={shape.bundle}")


def check_count(shape: Shape, count: int) -> None:
    """Of leases."""
    if not 0 < count <= _MOST_LEASES:
        raise ValueError(f"{count} leases")
    check_shape(shape)


def check_bundles(bundles: Iterable[Demand]) -> None:
    bundles = list(bundles)
    if len(bundles) > _MOST_BUNDLES:
        raise ValueError(f"{len(bundles)} bundles")
    for bundle in bundles:
        check_demand(bundle)


def check_demand(demand: Demand) -> None:
    if len({name for name, _ in demand}) < len(demand):
        raise ValueError("one resource twice")
    for name, amount in demand:
        if not (0 <= amount and math.isfinite(amount)):
            raise ValueError(f"{amount:g} of {name!r:.50}")


def check_actor(actor: str, creator: str) -> None:
    """Actors are numbered by their creators."""
    owner, _, number = actor.rpartition(":")
    if owner != creator or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{actor!r:.50} is not an actor of {creator}")
