"""`ray.util`."""

from __future__ import annotations

import sys

import rlplat
from rlplat import (
    get_current_placement_group,
    get_placement_group,
    list_named_actors,
    placement_group,
    placement_group_table,
    remove_placement_group,
    state,
)
from rlplat.compat.ray.refusals import refusing
from rlplat.compat.ray.util.actor_pool import ActorPool

__all__ = [  # type checkers take no other import for a name of the module
    "ActorPool", "get_current_placement_group", "get_placement_group", "list_named_actors", "placement_group",
    "placement_group_table", "remove_placement_group", "state",
]  # fmt: skip

sys.modules[f"{__name__}.placement_group"] = sys.modules[f"{__name__}.scheduling_strategies"] = rlplat
sys.modules[f"{__name__}.state"] = state


__getattr__ = refusing(__name__)
