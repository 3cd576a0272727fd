"""Requests that wait for resources: one queue for each shape, so that a look at its head is a look at all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from rlplat.runtime.core.scheduler.actors import ActorEntry
from rlplat.runtime.core.scheduler.nodes import Pool
from rlplat.runtime.wire.values import Shape


class Request:
    """`count` leases of a shape for a client; or an actor."""

    __slots__ = ("actor", "client", "count", "queue", "seq", "shape")

    def __init__(self, client: str, shape: Shape, count: int, actor: ActorEntry | None = None) -> None:
        self.client, self.shape, self.count, self.actor = client, shape, count, actor
        self.seq = 0
        """Order of arrival among all shapes."""
        self.queue: Queue | None = None


class Queue:
    """Requests of one shape, in order of arrival."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.requests: OrderedDict[Request, None] = OrderedDict()
        self.only = shape.strategy[5:] if shape.strategy.startswith("node:") else ""
        """The node that it must be."""
        self.moved_at = 0.0
        """When a request was last granted, or the queue last empty."""
        self.is_watched = False
        self.is_warned = False
        self.is_feasible = True
        """Whether any node that was ever here could hold it."""

    def head(self) -> Request:
        return next(iter(self.requests))

    def fits(self, pool: Pool) -> bool:
        if self.only and self.only != pool.node.name:
            return False
        if pool.group is not None and self.shape.bundle >= 0:
            return pool.group.pools[self.shape.bundle] is pool and pool.fits(self.shape.demand)
        return pool.fits(self.shape.demand)


def first_that_fits(queues: Iterable[Queue], pool: Pool) -> Queue | None:
    """The queue whose head came first, among those that the pool has room for."""
    best: Queue | None = None
    for queue in queues:
        if (best is None or queue.head().seq < best.head().seq) and queue.fits(pool):
            best = queue
    return best
