"""What the in-process backend has, and who holds it: actors and placement groups are counted, tasks are not.

Nobody can wait here for an actor to end, so an actor that does not fit now is refused. A group waits: it is there when
actors that end, or groups that are removed, have left enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from rlplat.errors import InfeasibleResources, OptionError
from rlplat.runtime.core.resources import Resources, exact
from rlplat.runtime.placement import PlacementGroup
from rlplat.runtime.wire import codec
from rlplat.runtime.wire.codec import Packed
from rlplat.runtime.wire.errors import to_exception
from rlplat.runtime.wire.values import ErrorInfo, GroupState, NodeState, Shape

NODE = "node"


def _fits(demand: Resources, free: Resources) -> bool:
    return all(free.get(name, 0) >= amount for name, amount in demand.items())


def _add(free: Resources, demand: Resources, sign: int) -> None:
    for name, amount in demand.items():
        free[name] = exact(free.get(name, 0) + sign * amount)


@dataclass(eq=False)
class _Group:
    group: PlacementGroup
    state: str = "PENDING"
    free: list[Resources] = field(default_factory=list)
    """Of each bundle, what no actor holds."""
    on_settled: list[Callable[[Packed | ErrorInfo], None]] = field(default_factory=list)
    error: ErrorInfo | None = None

    def outcome(self) -> Packed | ErrorInfo | None:
        """What its `ready()` is, as far as that is known."""
        if self.error is not None:
            return self.error
        return codec.pack(self.group) if self.state == "CREATED" else None

    def settle(self) -> None:
        outcome = self.outcome()
        assert outcome is not None
        waiting, self.on_settled = self.on_settled, []
        for tell in waiting:
            tell(outcome)


class LocalResources:
    def __init__(self, total: Resources) -> None:
        self.total = total
        self.free = dict(total)
        self._groups: dict[str, _Group] = {}
        self._ids = itertools.count(1)

    # -- actors

    def take(self, shape: Shape, who: str) -> Callable[[], None]:
        """Hold what `shape` says; returns what gives it back."""
        demand = dict(shape.demand)
        pool = self._pool(shape, demand, who)
        lacking = {name: amount for name, amount in demand.items() if pool.get(name, 0) < amount}
        if lacking:
            raise InfeasibleResources(
                f"{who} needs {lacking} and other actors hold it; the inproc backend cannot wait"
            )
        _add(pool, demand, -1)

        def give_back() -> None:
            _add(pool, demand, 1)
            self._retry()

        return give_back

    def check(self, shape: Shape, who: str) -> None:
        """Whether a task may run: its group must be there."""
        self._pool(shape, {}, who)

    def _pool(self, shape: Shape, demand: Resources, who: str) -> Resources:
        if not shape.group:
            return self.free
        entry = self._groups.get(shape.group)
        if entry is None:
            raise OptionError(
                f"{who}: its placement group belongs to another cluster, or one that was shut down"
            )
        if entry.error is not None:
            raise to_exception(entry.error)
        if entry.state != "CREATED":
            raise InfeasibleResources(
                f"{who} is to run in {entry.group!r}, which waits for resources; the inproc backend cannot wait"
            )
        pools = entry.free if shape.bundle < 0 else [entry.free[shape.bundle]]
        return next((pool for pool in pools if _fits(demand, pool)), pools[0])

    # -- groups

    def create(
        self, bundles: tuple[tuple[tuple[str, float], ...], ...], strategy: str, name: str
    ) -> PlacementGroup:
        if name and any(e.group.name == name and e.state != "REMOVED" for e in self._groups.values()):
            raise OptionError(f"a placement group named {name!r} exists already")
        group = PlacementGroup(f"inproc:{next(self._ids)}", bundles, strategy, name)
        entry = self._groups[group.id] = _Group(group)
        needed: Resources = {}
        for bundle in bundles:
            _add(needed, dict(bundle), 1)
        if not _fits(needed, self.total):
            entry.error = ErrorInfo(
                "InfeasibleResources", f"{group!r} needs {needed} in all, and there is {self.total}"
            )
        elif strategy == "STRICT_SPREAD" and len(bundles) > 1:
            entry.error = ErrorInfo(
                "InfeasibleResources", f"{group!r} needs {len(bundles)} nodes, and there is 1"
            )
        self._retry()
        return group

    def when_ready(self, group: PlacementGroup, tell: Callable[[Packed | ErrorInfo], None]) -> None:
        entry = self._entry(group)
        outcome = entry.outcome()
        if outcome is None:
            entry.on_settled.append(tell)
        else:
            tell(outcome)

    def remove(self, group: PlacementGroup) -> None:
        """Its resources are free; the caller has ended its actors."""
        entry = self._entry(group)
        if entry.state == "REMOVED":
            return
        was, entry.state = entry.state, "REMOVED"
        entry.error = ErrorInfo("PlacementGroupRemoved", f"{group!r} was removed")
        if was == "CREATED":
            for bundle in group.bundle_specs:
                _add(self.free, bundle, 1)
        entry.settle()
        self._retry()

    def _retry(self) -> None:
        """Groups that wait are tried in the order in which they came."""
        for entry in self._groups.values():
            if entry.state != "PENDING" or entry.error is not None:
                continue
            needed: Resources = {}
            for bundle in entry.group.bundle_specs:
                _add(needed, bundle, 1)
            if _fits(needed, self.free):
                _add(self.free, needed, -1)
                entry.free, entry.state = entry.group.bundle_specs, "CREATED"
                entry.settle()

    def _entry(self, group: PlacementGroup) -> _Group:
        if group.id not in self._groups:
            raise OptionError(f"{group!r} belongs to a cluster that was shut down")
        return self._groups[group.id]

    # -- views

    def nodes(self) -> list[NodeState]:
        return [NodeState(NODE, True, dict(self.total), dict(self.free))]

    def groups(self) -> list[GroupState]:
        return [
            GroupState(
                entry.group.id,
                entry.group.name,
                entry.group.strategy,
                entry.state,
                entry.group.bundle_specs,
                [NODE if entry.state == "CREATED" else ""] * entry.group.bundle_count,
            )
            for entry in self._groups.values()
        ]
