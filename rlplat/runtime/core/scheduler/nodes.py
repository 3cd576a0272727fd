"""Resources that can be taken and given back: of a node, or of a bundle that a placement group has reserved there.

`FitIndex` finds a node with room for a demand without looking at all of them. It believes a node to have room until a
look shows that it has not; a node that gives something back is believed again. So each look that fails is paid for by
an earlier return, and a decision costs the same with one node or ten thousand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Any

from rlplat.runtime.core.resources import Resources, exact
from rlplat.runtime.core.scheduler.actors import ActorEntry
from rlplat.runtime.core.scheduler.events import Demand
from rlplat.runtime.wire.values import Shape

_MAX_STARTING = 64
"""Workers that start on a node at once, per runtime environment."""


class Gpus:
    """Which GPU has how much left. A demand of one or more gets whole ones, a fraction the fullest that has room."""

    def __init__(self, left: dict[int, float]) -> None:
        self.left = left

    def can_take(self, amount: float) -> bool:
        if amount >= 1:
            if amount % 1:  # the sum of a group's bundles; no single demand is like that
                return exact(sum(self.left.values())) >= amount
            return sum(left >= 1 for left in self.left.values()) >= int(amount)
        return any(left >= amount for left in self.left.values())

    def take(self, amount: float) -> dict[int, float]:
        """Share by GPU."""
        if amount >= 1:
            shares = dict.fromkeys(sorted(g for g, left in self.left.items() if left >= 1)[: int(amount)], 1.0)
        else:
            fitting = [gpu for gpu, left in self.left.items() if left >= amount]
            shares = {min(fitting, key=lambda gpu: (self.left[gpu], gpu)): amount}
        for gpu, share in shares.items():
            self.left[gpu] = exact(self.left[gpu] - share)
        return shares

    def give_back(self, shares: dict[int, float]) -> None:
        for gpu, share in shares.items():
            self.left[gpu] = exact(self.left.get(gpu, 0.0) + share)


NO_SHARES: dict[int, float] = {}


class Pool:
    """Named amounts: `total`, and what of it is `free` (CPUs may be less than 0: workers that lent theirs are back)."""

    def __init__(self, node: Node | None, total: Resources, gpus: dict[int, float]) -> None:
        self.node: Node = self if node is None else node  # type: ignore[assignment]
        self.total = total
        self.free = dict(total)
        self.gpus = Gpus(dict(gpus))
        self.shares = gpus
        """GPUs of the total."""
        self.group: Any = None
        """Whose bundle it is."""
        self.users: dict[Placement, None] = {}
        """Bundles only: who draws from it."""
        self.is_closed = False
        """A bundle whose group was removed: what comes back is the node's."""

    def fits(self, demand: Demand) -> bool:
        free = self.free
        for name, amount in demand:
            if free.get(name, 0.0) < amount or (name == "GPU" and not self.gpus.can_take(amount)):
                return False
        return True

    def take(self, demand: Demand) -> dict[int, float]:
        """Share by GPU."""
        free = self.free
        shares = NO_SHARES
        for name, amount in demand:
            free[name] = exact(free[name] - amount)
            if name == "GPU":
                shares = self.gpus.take(amount)
        return shares

    def give_back(self, demand: Demand, shares: dict[int, float]) -> None:
        pool = self.node if self.is_closed else self
        free = pool.free
        for name, amount in demand:
            free[name] = exact(free[name] + amount)
        if shares:
            pool.gpus.give_back(shares)

    def lend(self, cpus: float) -> None:
        """CPUs of a blocked worker (negative: it goes on)."""
        pool = self.node if self.is_closed else self
        pool.free["CPU"] = exact(pool.free.get("CPU", 0.0) + cpus)

    def close(self) -> None:
        """The bundle is no more: what is free goes back to the node, and the rest when it is given back."""
        self.is_closed = True
        node = self.node
        for name, amount in self.free.items():
            node.free[name] = exact(node.free.get(name, 0.0) + amount)
        node.gpus.give_back(self.gpus.left)
        del node.bundles[self]
        self.free, self.gpus = {}, Gpus({})


class Node(Pool):
    """A machine: its resources, and its workers by what they do."""

    def __init__(self, name: str, total: Resources, num_spares: int) -> None:
        gpus = dict.fromkeys(range(int(total.get("GPU", 0))), 1.0)
        super().__init__(None, {"CPU": 0.0, **total}, gpus)
        self.name = name
        self.num_spares = num_spares
        self.idle: dict[str, list[Worker]] = {}
        """Workers that have run tasks, by runtime environment; the one that was used last is used next."""
        self.fresh: dict[str, list[Worker]] = {}
        """Workers that have run nothing yet: an actor gets one of these, for its process ends with it, and what an
        earlier task left there (objects that others need) must not."""
        self.num_idle = 0
        """All of both."""
        self.idle_on_gpus: dict[tuple[int, ...], Worker] = {}
        """Workers that have run tasks, by their GPUs; each GPU has one at the most."""
        self.starting: dict[str, int] = {}
        """Workers that nobody in particular waits for."""
        self.waiting: dict[str, OrderedDict[Placement, None]] = {}
        """Leases whose resources are taken and that wait for a worker."""
        self.waiting_actors: dict[str, OrderedDict[Placement, None]] = {}
        """Actors of that kind."""
        self.failed_starts: dict[str, int] = {}
        """How many workers in a row died before they were ready."""
        self.hold_until: dict[str, float] = {}
        """No worker is started before this time: the last ones died at once."""
        self.workers: dict[str, Worker] = {}
        self.bundles: dict[Pool, None] = {}
        self.is_lost = False

    def take_idle(self, env: str, is_for_actor: bool) -> Worker | None:
        idle = None if is_for_actor else self.idle.get(env)
        idle = idle or self.fresh.get(env)
        if not idle:
            return None
        self.num_idle -= 1
        return idle.pop()

    def take_idle_on_gpus(self, gpu_ids: Iterable[int]) -> list[Worker]:
        """Those that hold memory of any of these."""
        gpus = set(gpu_ids)
        return [self.idle_on_gpus.pop(ids) for ids in list(self.idle_on_gpus) if not gpus.isdisjoint(ids)]

    def add_idle(self, worker: Worker) -> None:
        (self.fresh if worker.is_fresh else self.idle).setdefault(worker.env, []).append(worker)
        self.num_idle += 1

    def remove_idle(self, worker: Worker) -> None:
        if worker.gpu_ids:
            del self.idle_on_gpus[worker.gpu_ids]
            return
        (self.fresh if worker.is_fresh else self.idle)[worker.env].remove(worker)
        self.num_idle -= 1

    def waiters(self, placement: Placement) -> OrderedDict[Placement, None]:
        """Those that wait as it does."""
        waiting = self.waiting if placement.actor is None else self.waiting_actors
        return waiting.setdefault(placement.shape.env, OrderedDict())

    def next_waiter(self, worker: Worker) -> Placement | None:
        """Who gets the worker; it waits no more."""
        waiting = self.waiting_actors.get(worker.env) if worker.is_fresh else None
        waiting = waiting or self.waiting.get(worker.env)
        return waiting.popitem(last=False)[0] if waiting else None

    def num_to_start(self, env: str) -> int:
        """How many more workers the waiting placements and (without an environment) the spares call for."""
        starting = self.starting.get(env, 0)
        waiting = len(self.waiting.get(env, ())) + len(self.waiting_actors.get(env, ()))
        missing = min(waiting, _MAX_STARTING) - starting
        if not env:
            missing = max(missing, self.num_spares - starting - len(self.fresh.get("", ())))
        return missing

    def has_surplus(self) -> bool:
        return self.num_idle >= self.num_spares + self.total["CPU"]


class Placement:
    """Resources that were taken for a client's lease or an actor, and the worker that uses them, once it has one."""

    __slots__ = ("actor", "client", "pool", "shape", "shares", "worker")

    def __init__(
        self, client: str, shape: Shape, pool: Pool, shares: dict[int, float], actor: ActorEntry | None
    ) -> None:
        self.client, self.shape, self.pool, self.shares, self.actor = client, shape, pool, shares, actor
        self.worker: Worker | None = None

    def cpus(self) -> float:
        """What its worker lends while it is blocked."""
        for name, amount in self.shape.demand:
            if name == "CPU":
                return amount
        return 0.0


class Worker:
    """A worker process, as far as the scheduler cares."""

    __slots__ = ("env", "gpu_ids", "id", "idle_since", "is_blocked", "is_fresh", "node", "placement", "state")

    def __init__(self, id: str, node: Node, env: str, gpu_ids: tuple[int, ...]) -> None:
        self.id, self.node, self.env, self.gpu_ids = id, node, env, gpu_ids
        self.state = "starting"
        """starting | idle | leased | actor | dying"""
        self.placement: Placement | None = None
        """What it uses, until it is gone. One that starts with GPUs has it from the beginning."""
        self.is_blocked = False
        self.idle_since = 0.0
        """With GPUs only."""
        self.is_fresh = True
        """It has run nothing yet."""


class FitIndex:
    """Nodes (or bundles of a group) that, as far as is known, have room for a demand: see the head of the file."""

    def __init__(self, demand: Demand, pools: Iterable[Pool]) -> None:
        self.demand = demand
        self._believed = OrderedDict.fromkeys(pool for pool in pools if pool.fits(demand))

    def find(self, is_spread: bool = False, but: Container[Pool] = ()) -> Pool | None:
        """Packed: the node that was found last while it has room. Spread: the nodes in turn. Never one of `but`."""
        believed = self._believed
        skipped: list[Pool] = []
        found = None
        while believed:
            pool = next(iter(believed)) if is_spread else next(reversed(believed))
            if not pool.fits(self.demand):
                del believed[pool]
            elif pool in but:
                del believed[pool]
                skipped.append(pool)
            else:
                if is_spread:
                    believed.move_to_end(pool)
                found = pool
                break
        for pool in reversed(skipped):
            believed[pool] = None
            believed.move_to_end(pool, last=not is_spread)
        return found

    def freed(self, pool: Pool) -> None:
        """Something came back there."""
        if pool not in self._believed and pool.fits(self.demand):
            self._believed[pool] = None

    def forget(self, pool: Pool) -> None:
        self._believed.pop(pool, None)


def could_ever_fit(demand: Demand, total: Resources) -> bool:
    return all(total.get(name, 0.0) >= amount for name, amount in demand)


def summed(demands: Iterable[Demand]) -> Demand:
    total: Resources = {}
    for demand in demands:
        for name, amount in demand:
            total[name] = exact(total.get(name, 0.0) + amount)
    return tuple(sorted(total.items()))
