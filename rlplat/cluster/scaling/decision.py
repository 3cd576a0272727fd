"""Which nodes to start and which to drain, from what waits for room: pure.

    decision = decide(nodes, demands, types, idle_timeout_s=60)

1. What waits is placed into the room of nodes that run, busy ones first, then of those that start, then of new ones,
   until a type has `max_nodes`. The parts of a group are placed all or not at all.
2. A node that was idle for `idle_timeout_s`, and that rule 1 did not use, is drained: the longest idle first, down to
   `min_nodes`.
3. What is unknown is not gone: a node that cannot be asked counts, and is neither drained nor replaced; where the
   engine itself cannot be asked nothing is decided.
4. What the types could never hold, each with all its nodes, starts nothing and is named.

A decision looks at each node once for each different size of bundle, and not once for each thing that waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rlplat.node_types import NodeType, amounts

Resources = Mapping[str, float]


@dataclass(frozen=True)
class NodeSeen:
    name: str
    type: str
    state: Literal["starting", "running", "draining", "unknown"]
    free: Resources = field(default_factory=dict)
    """What no task or actor holds; of a node that starts: all."""
    idle_s: float = 0.0
    """Seconds since it was last used; 0: it is used."""


@dataclass(frozen=True)
class Demand:
    """What waits for room: one task or actor, or the bundles of a group, which is reserved whole."""

    bundles: tuple[Resources, ...]
    is_apart: bool = False
    """Each bundle on a node of its own."""
    count: int = 1
    """How many of the same kind wait."""


@dataclass(frozen=True)
class Decision:
    start: Mapping[str, int] = field(default_factory=dict)
    """type: how many more."""
    drain: Sequence[str] = ()
    infeasible: Sequence[Demand] = ()
    """What no node could ever hold."""


class Scaling(Protocol):
    def look(self) -> EngineView | None:
        """What waits and what is free; None: the engine does not answer now."""

    def drain(self, node: str) -> bool:
        """Nothing new is placed there; False where it is in use again, and stays."""


@dataclass(frozen=True)
class EngineView:
    demands: Sequence[Demand]
    nodes: Mapping[str, EngineNode]
    """By name; `head` is the head's."""


@dataclass(frozen=True)
class EngineNode:
    free: Mapping[str, float]
    idle_s: float
    """0: it is used."""
    is_draining: bool = False


def decide(
    nodes: Sequence[NodeSeen],
    demands: Sequence[Demand],
    types: Mapping[str, NodeType],
    idle_timeout_s: float,
    blocked: Collection[str] = (),
) -> Decision:
    """blocked: types of which no node is started now."""
    existing = dict.fromkeys(types, 0)
    for node in nodes:
        existing[node.type] = existing.get(node.type, 0) + 1
    limits = {name: existing[name] if name in blocked else kind.max_nodes for name, kind in types.items()}
    rooms = _Rooms(nodes, types, existing, limits)
    for name, kind in types.items():
        while existing[name] < min(kind.min_nodes, limits[name]):
            rooms.add(name)
    infeasible = []
    for demand in demands:
        for _ in range(demand.count):
            if not rooms.place(demand):  # nor will the next of its kind be
                if why_never(demand, types):
                    infeasible.append(demand)
                break
    return Decision(
        {name: count for name, count in rooms.started.items() if count},
        _idle(nodes, rooms.taken, types, idle_timeout_s),
        infeasible,
    )


def why_never(demand: Demand, types: Mapping[str, NodeType]) -> str:
    """Why the types, each with all its nodes, could not hold this; "" where they could."""
    for bundle in demand.bundles:
        if not any(_fits(bundle, kind.resources) for kind in types.values()):
            return f"no node type has {amounts(bundle)}: there are {_known(types)}"
    nothing = dict.fromkeys(types, 0)
    if _Rooms((), types, nothing, {name: kind.max_nodes for name, kind in types.items()}).place(demand):
        return ""
    apart = " on different nodes" if demand.is_apart else ""
    asked = " and ".join(map(amounts, demand.bundles))
    return f"{asked}{apart} need more nodes than there may be: {_known(types)}"


def _known(types: Mapping[str, NodeType]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in types.items())


def _idle(
    nodes: Sequence[NodeSeen], taken: Collection[str], types: Mapping[str, NodeType], idle_timeout_s: float
) -> list[str]:
    certain: dict[str, int] = {}
    for node in nodes:
        if node.state in ("running", "starting"):
            certain[node.type] = certain.get(node.type, 0) + 1
    drained = []
    for node in sorted(nodes, key=lambda node: -node.idle_s):
        keep = types[node.type].min_nodes if node.type in types else 0
        is_idle = node.state == "running" and node.idle_s >= idle_timeout_s
        if is_idle and node.name not in taken and certain[node.type] > keep:
            certain[node.type] -= 1
            drained.append(node.name)
    return drained


@dataclass
class _Room:
    name: str
    free: dict[str, float]
    group: int = 0
    """The number of the group that had a bundle placed here last."""


class _Rooms:
    """What is free where, while demands are placed; new nodes are at the end."""

    def __init__(
        self,
        nodes: Sequence[NodeSeen],
        types: Mapping[str, NodeType],
        existing: dict[str, int],
        limits: Mapping[str, int],
    ) -> None:
        usable = [node for node in nodes if node.state in ("running", "starting")]
        usable.sort(key=lambda node: (node.state == "starting", node.idle_s))
        self._rooms = [_Room(node.name, dict(node.free)) for node in usable]
        self._types, self._existing, self._limits = types, existing, limits
        self._first: dict[tuple[tuple[str, float], ...], int] = {}
        """Of a bundle: the rooms before this one have no room for it."""
        self._groups = 0
        self.started: dict[str, int] = {}
        self.taken: set[str] = set()
        """Nodes on which something was placed."""

    def add(self, name: str) -> None:
        self._existing[name] += 1
        self.started[name] = self.started.get(name, 0) + 1
        self._rooms.append(_Room("", dict(self._types[name].resources)))

    def place(self, demand: Demand) -> bool:
        """Whether all its bundles found room; if not, nothing has changed."""
        self._groups += 1
        placed: list[tuple[_Room, dict[str, float], int]] = []
        added: list[str] = []
        first, began = dict(self._first), len(self._rooms)
        for bundle in sorted(demand.bundles, key=lambda bundle: -sum(bundle.values())):
            room = self._room_for(bundle, demand.is_apart)
            if room is None:
                name = self._type_for(bundle)
                if name is None:
                    for each, free, group in reversed(placed):
                        each.free, each.group = free, group
                    del self._rooms[began:]
                    for name in added:
                        self._existing[name] -= 1
                        self.started[name] -= 1
                    self._first = first
                    return False
                self.add(name)
                added.append(name)
                room = self._rooms[-1]
            placed.append((room, dict(room.free), room.group))
            room.group = self._groups
            for kind, amount in bundle.items():
                if amount:
                    room.free[kind] = round(room.free[kind] - amount, 4)
        self.taken.update(room.name for room, _, _ in placed)
        return True

    def _room_for(self, bundle: Resources, is_apart: bool) -> _Room | None:
        key = tuple(sorted(bundle.items()))
        start = self._first.get(key, 0)
        while start < len(self._rooms) and not _fits(bundle, self._rooms[start].free):
            start += 1
        self._first[key] = start
        for place in range(start, len(self._rooms)):
            room = self._rooms[place]
            if not (is_apart and room.group == self._groups) and _fits(bundle, room.free):
                return room
        return None

    def _type_for(self, bundle: Resources) -> str | None:
        """The one that wastes least: kinds of resources that are not asked for (GPUs), then size."""

        def waste(name: str) -> tuple[int, float, str]:
            has = self._types[name].resources
            unasked = sum(1 for kind, amount in has.items() if amount and not bundle.get(kind))
            return unasked, sum(has.values()), name

        fitting = [
            name
            for name, kind in self._types.items()
            if self._existing[name] < self._limits[name] and _fits(bundle, kind.resources)
        ]
        return min(fitting, key=waste, default=None)


def _fits(bundle: Resources, free: Resources) -> bool:
    return all(amount <= free.get(name, 0.0) for name, amount in bundle.items() if amount)
