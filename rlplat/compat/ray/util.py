"""`ray.util`: placement groups and named actors."""

from __future__ import annotations

from typing import Any

from rlplat import (
    get_current_placement_group,
    get_placement_group,
    list_named_actors,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__path__: list[str] = []  # its modules are found by the package's finder
__all__ = [
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
_HERE = {
    "ActorPool": "a list of handles and rlplat.wait, or rlplat.map for functions",
    "Pool": "rlplat.map",
    "Queue": "an actor with an asyncio.Queue",
}


def __getattr__(name: str) -> Any:
    told = f"; here it is {_HERE[name]}" if name in _HERE else ": docs/from-ray.md says what is here"
    raise AttributeError(f"rlplat.compat.ray.util has no {name!r}{told}")
