"""`ray.util`."""

from __future__ import annotations

import sys
from typing import Any

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
from rlplat.compat.ray.refusals import missing
from rlplat.compat.ray.util.actor_pool import ActorPool

__all__ = [
    "ActorPool",
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
    "state",
]

sys.modules[f"{__name__}.placement_group"] = sys.modules[f"{__name__}.scheduling_strategies"] = rlplat
sys.modules[f"{__name__}.state"] = state


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
