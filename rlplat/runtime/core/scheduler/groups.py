"""Placement groups: bundles of resources that are reserved together, all or none.

Rules
1. STRICT_PACK: all bundles on one node. PACK: on as few as a greedy choice finds (one when one has room for all).
   STRICT_SPREAD: no two on one node. SPREAD: on different nodes as far as there are any with room.
2. Groups that do not fit wait; those that came first are tried first whenever something is free again. Up to `_TRIED`
   of them are tried, so that one large group does not hold up all others, nor a thousand of them the scheduler.
3. A bundle whose node is lost is reserved again elsewhere; the others stay where they are.
4. What belongs to a group draws from its bundles only, and waits in queues of the group's own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from rlplat.runtime.core.resources import Resources
from rlplat.runtime.core.scheduler.events import Demand, GroupRequested
from rlplat.runtime.core.scheduler.nodes import FitIndex, Node, Pool, could_ever_fit, summed
from rlplat.runtime.core.scheduler.queues import Queue
from rlplat.runtime.wire.values import ErrorInfo, Shape

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_TRIED = 8
_REMEMBERED = 1000


class Group:
    def __init__(self, event: GroupRequested) -> None:
        self.id, self.client, self.name = event.group, event.client, event.name
        self.strategy, self.is_detached = event.strategy, event.is_detached
        self.bundles = event.bundles
        self.pools: list[Pool | None] = [None] * len(event.bundles)
        self.state = "PENDING"
        """PENDING | CREATED | RESCHEDULING | REMOVED"""
        self.error: ErrorInfo | None = None
        self.seekers: set[str] = {event.client}
        self.waiting: dict[Queue, None] = {}
        """Queues of shapes that draw from this group and have requests."""
        self._indexes: dict[Demand, FitIndex] = {}

    def find(self, shape: Shape) -> Pool | None:
        """A bundle with room now."""
        if shape.bundle >= 0:
            pool = self.pools[shape.bundle]
            return pool if pool is not None and pool.fits(shape.demand) else None
        index = self._indexes.get(shape.demand)
        if index is None:
            there = [pool for pool in self.pools if pool is not None]
            index = self._indexes[shape.demand] = FitIndex(shape.demand, there)
        return index.find()

    def could_ever_fit(self, shape: Shape) -> bool:
        bundles = self.bundles if shape.bundle < 0 else self.bundles[shape.bundle : shape.bundle + 1]
        return any(could_ever_fit(shape.demand, dict(bundle)) for bundle in bundles)

    def freed(self, pool: Pool) -> None:
        for index in self._indexes.values():
            index.freed(pool)

    def forget(self, pool: Pool) -> None:
        for index in self._indexes.values():
            index.forget(pool)


class Groups:
    """All of them. `index(demand)` gives the nodes that have room."""

    def __init__(self, index: Callable[[Demand], FitIndex]) -> None:
        self.by_id: dict[str, Group] = {}
        self.pending: OrderedDict[Group, None] = OrderedDict()
        self.by_creator: dict[str, dict[Group, None]] = {}
        self._index = index
        self._removed: deque[str] = deque()

    def add(self, group: Group) -> None:
        self.by_id[group.id] = group
        self.pending[group] = None
        if not group.is_detached:
            self.by_creator.setdefault(group.client, {})[group] = None

    def remove(self, group: Group, error: ErrorInfo) -> list[Pool]:
        """Its bundles, which are closed now."""
        group.state, group.error = "REMOVED", error
        self.pending.pop(group, None)
        mine = self.by_creator.get(group.client, {})
        mine.pop(group, None)
        if not mine:
            self.by_creator.pop(group.client, None)
        self._note_removed(group)
        pools = [pool for pool in group.pools if pool is not None]
        for pool in pools:
            pool.close()
        group.pools = [None] * len(group.pools)
        return pools

    def refuse(self, group: Group, error: ErrorInfo) -> None:
        """It can never be reserved."""
        self.by_id[group.id] = group
        group.state, group.error = "REMOVED", error
        self._note_removed(group)

    def _note_removed(self, group: Group) -> None:
        self._removed.append(group.id)
        while len(self._removed) > _REMEMBERED:
            del self.by_id[self._removed.popleft()]

    def node_lost(self, node: Node) -> None:
        for bundle in list(node.bundles):
            group = bundle.group
            group.pools[group.pools.index(bundle)] = None
            group.forget(bundle)
            group.state = "RESCHEDULING"
            del node.bundles[bundle]
            self.pending[group] = None
            self.pending.move_to_end(group, last=False)

    def reserve_pending(self) -> list[Group]:
        """Those that have all their bundles now."""
        done = []
        for group in list(self.pending)[:_TRIED] if len(self.pending) > _TRIED else list(self.pending):
            if self._reserve(group):
                del self.pending[group]
                group.state = "CREATED"
                done.append(group)
        return done

    # ---------------------------------------------------------------- choosing nodes

    def _reserve(self, group: Group) -> bool:
        missing = [number for number, pool in enumerate(group.pools) if pool is None]
        taken: list[tuple[int, Node, dict[int, float]]] = []
        if group.strategy in ("STRICT_PACK", "PACK"):
            is_done = self._on_one_node(group, missing, taken)
            if not is_done and group.strategy == "PACK":
                is_done = self._greedily(group, missing, taken)
        else:
            is_done = self._spread(group, missing, taken)
        if not is_done:
            self._undo(group, taken)
            return False
        for number, node, shares in taken:
            pool = Pool(node, dict(group.bundles[number]), shares)
            pool.group = group
            node.bundles[pool] = None
            group.pools[number] = pool
            group.freed(pool)
        return True

    def _on_one_node(self, group: Group, missing: list[int], taken: list[tuple[int, Node, dict[int, float]]]) -> bool:
        index = self._index(summed(group.bundles[number] for number in missing))
        tried: list[Pool] = []
        while len(tried) < _TRIED:  # with fractions of GPUs a node may have the sum and yet not the parts
            node = index.find(but=tried)
            if node is None:
                return False
            if all(self._take(group, number, node, taken) for number in _largest_first(group, missing)):
                return True
            self._undo(group, taken)
            tried.append(node)
        return False

    def _greedily(self, group: Group, missing: list[int], taken: list[tuple[int, Node, dict[int, float]]]) -> bool:
        used: dict[Pool, None] = {pool.node: None for pool in group.pools if pool is not None}
        for number in _largest_first(group, missing):
            demand = group.bundles[number]
            node = next((node for node in used if node.fits(demand)), None) or self._index(demand).find()
            if node is None or not self._take(group, number, node, taken):
                return False
            used[node] = None
        return True

    def _spread(self, group: Group, missing: list[int], taken: list[tuple[int, Node, dict[int, float]]]) -> bool:
        used: dict[Pool, None] = {pool.node: None for pool in group.pools if pool is not None}
        for number in _largest_first(group, missing):
            index = self._index(group.bundles[number])
            node = index.find(is_spread=True, but=used)
            if node is None and group.strategy == "SPREAD":
                node = index.find(is_spread=True)
            if node is None or not self._take(group, number, node, taken):
                return False
            used[node] = None
        return True

    def _take(self, group: Group, number: int, node: Pool, taken: list[tuple[int, Node, dict[int, float]]]) -> bool:
        demand = group.bundles[number]
        if not node.fits(demand):
            return False
        taken.append((number, node.node, node.take(demand)))
        return True

    def _undo(self, group: Group, taken: list[tuple[int, Node, dict[int, float]]]) -> None:
        for number, node, shares in taken:
            node.give_back(group.bundles[number], shares)
        for demand in dict.fromkeys(group.bundles):  # looks at them meanwhile have found these nodes full
            for _, node, _ in taken:
                self._index(demand).freed(node)
        taken.clear()


def _largest_first(group: Group, numbers: Iterable[int]) -> list[int]:
    return sorted(numbers, key=lambda number: -sum(amount for _, amount in group.bundles[number]))


def why_never(group: Group, totals: Iterable[Resources]) -> str:
    """Why nodes with these totals could never hold the group; "" when they could (as far as a glance tells)."""
    totals = list(totals)
    for number, bundle in enumerate(group.bundles):
        if not any(could_ever_fit(bundle, total) for total in totals):
            return f"no node has room for bundle {number}, {dict(bundle)}"
    whole = summed(group.bundles)
    if group.strategy == "STRICT_PACK" and not any(could_ever_fit(whole, total) for total in totals):
        return f"no node has room for all its bundles together, {dict(whole)}"
    if group.strategy == "STRICT_SPREAD" and len(group.bundles) > len(totals):
        return f"its {len(group.bundles)} bundles need as many nodes, and there are {len(totals)}"
    everything = summed(tuple(total.items()) for total in totals)
    if not could_ever_fit(whole, dict(everything)):
        return f"its bundles need {dict(whole)} in all, and the cluster has {dict(everything)}"
    return ""
