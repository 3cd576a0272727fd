"""Which demand gets which node and worker: the books of nodes, workers and queues, and the steps that change them.

A demand's way: `demand` -> (a queue, until `freed` finds it a pool) -> `place` takes the resources -> (waits on that
node for a worker to start) -> `give` -> a lease, or an actor's process -> `release`.
"""

from __future__ import annotations

from collections.abc import Callable

from rlplat.runtime.core.resources import Resources
from rlplat.runtime.core.scheduler.actors import ActorEntry
from rlplat.runtime.core.scheduler.events import (
    CreateDetached,
    Demand,
    NodeJoined,
    StartWorker,
    StopWorker,
    Tell,
    Turn,
    Warn,
)
from rlplat.runtime.core.scheduler.groups import Group, Groups
from rlplat.runtime.core.scheduler.nodes import FitIndex, Node, Placement, Pool, Worker, could_ever_fit
from rlplat.runtime.core.scheduler.queues import Queue, Request, first_that_fits
from rlplat.runtime.wire.messages import Granted, GroupNews, LeasesRefused, Placed
from rlplat.runtime.wire.values import ErrorInfo, Shape

_MAX_INDEXES = 32
_MAX_QUEUES = 4096
_GPU_IDLE_S = 10.0
_START_FAILURES = 3
"""Workers in a row that may die before they are ready until the next start waits."""


class Placing:
    def __init__(
        self,
        turn: Turn,
        is_fixed: bool,
        bury: Callable[[ActorEntry, ErrorInfo], None],
        watch: Callable[[Queue], None],
    ) -> None:
        """`bury(actor, error)` when an actor can never have what it needs; `watch(queue)` when one begins to wait."""
        self.turn, self.is_fixed = turn, is_fixed
        self._bury, self._watch = bury, watch
        self.nodes: dict[str, Node] = {}
        self.leaving: dict[str, Node] = {}
        """Removed ones whose workers are not buried yet."""
        self.known: dict[str, Resources] = {}
        """Totals of all nodes that were ever here."""
        self.where: dict[str, tuple[str, str]] = {}
        """(address, hostname) of them."""
        self.home: Node | None = None
        """Where clients are that are no workers."""
        self.workers: dict[str, Worker] = {}
        self.next_worker = 1
        self._indexes: dict[Demand, FitIndex] = {}
        self.queues: dict[Shape, Queue] = {}
        self.waiting: dict[Queue, None] = {}
        """Queues with requests, but those of groups."""
        self._next_seq = 0
        self.asked: dict[str, dict[Request, None]] = {}
        """Requests in queues, by client."""
        self.placing: dict[str, dict[Placement, None]] = {}
        """Those that wait for a worker, by client."""
        self.leases: dict[str, dict[Worker, None]] = {}
        """By client."""
        self.groups = Groups(self.index)

    # ---------------------------------------------------------------- nodes

    def add_node(self, event: NodeJoined) -> None:
        node = self.nodes[event.node] = Node(event.node, dict(event.total), event.num_spares)
        self.known[event.node] = dict(event.total)
        self.where[event.node] = (event.address, event.hostname)
        if self.home is None:
            self.home = node
        for queue in self.queues.values():
            if not queue.is_feasible and not queue.shape.group:
                queue.is_feasible = self.could_ever(queue)
        self.start_missing(node, "")
        self.freed(node)

    def remove_node(self, name: str) -> None:
        """No more demands go there; what is there is still to be buried."""
        node = self.nodes.pop(name, None)
        if node is not None:
            node.is_lost = True
            self.leaving[name] = node
            for index in self._indexes.values():
                index.forget(node)
            if self.home is node:
                self.home = next(iter(self.nodes.values()), None)
            self.groups.node_lost(node)

    def index(self, demand: Demand) -> FitIndex:
        index = self._indexes.get(demand)
        if index is None:
            if len(self._indexes) >= _MAX_INDEXES:
                del self._indexes[next(iter(self._indexes))]
            index = self._indexes[demand] = FitIndex(demand, self.nodes.values())
        return index

    def node_of(self, client: str) -> Node | None:
        worker = self.workers.get(client)
        return self.home if worker is None else worker.node

    def is_alive(self, client: str) -> bool:
        """Whether whoever asked lives still. Clients are drivers and workers."""
        return not client.startswith("w") or client in self.workers

    # ---------------------------------------------------------------- demands

    def demand(self, request: Request) -> None:
        """Grant what can be granted now; the rest waits, or is refused when waiting is of no use."""
        shape = request.shape
        group = None
        if shape.group:
            group = self.groups.by_id.get(shape.group)
            if group is None or group.error is not None:
                text = f"placement group {shape.group} was removed, or never created"
                self.refuse(request, ErrorInfo("PlacementGroupRemoved", text))
                return
        queue = self.queues.get(shape)
        if queue is None:
            queue = self._new_queue(shape)
        if not queue.is_feasible and (self.is_fixed or group is not None):
            self.refuse(request, self.infeasible(shape))
            return
        if not queue.requests:
            while request.count:
                pool = self._find(shape, group, request.client)
                if pool is None:
                    break
                request.count -= 1
                self._place(request.client, shape, pool, request.actor)
        if request.count:
            self._enqueue(request, queue, self.waiting if group is None else group.waiting)

    def demand_again(self, placement: Placement) -> None:
        """Its worker died before it was ready."""
        actor = placement.actor
        if actor is not None:
            if actor.error is None and not actor.end_reason:
                self.demand(Request(placement.client, placement.shape, 1, actor))
        elif self.is_alive(placement.client):
            self.demand(Request(placement.client, placement.shape, 1))

    def _enqueue(self, request: Request, queue: Queue, waiting: dict[Queue, None]) -> None:
        request.queue, request.seq = queue, self._next_seq
        self._next_seq += 1
        if not queue.requests:
            queue.moved_at = self.turn.now
            waiting[queue] = None
            self._watch(queue)
        queue.requests[request] = None
        self.asked.setdefault(request.client, {})[request] = None
        if request.actor is not None:
            request.actor.request = request

    def is_served(self, request: Request) -> bool:
        """Whether its client has a worker of just this kind at work: its tasks come one after the other there."""
        if request.actor is not None:
            return False
        placements = [worker.placement for worker in self.leases.get(request.client, ()) if not worker.is_blocked]
        return any(placement is not None and placement.shape == request.shape for placement in placements)

    def unqueue(self, request: Request) -> None:
        queue = request.queue
        assert queue is not None
        del queue.requests[request]
        request.queue = None
        if not queue.requests:
            group = self.groups.by_id.get(queue.shape.group)
            del (self.waiting if group is None else group.waiting)[queue]
        mine = self.asked[request.client]
        del mine[request]
        if not mine:
            del self.asked[request.client]
        if request.actor is not None:
            request.actor.request = None

    def _new_queue(self, shape: Shape) -> Queue:
        if len(self.queues) >= _MAX_QUEUES:
            self.queues = {s: q for s, q in self.queues.items() if q.requests or q.is_watched}
        queue = self.queues[shape] = Queue(shape)
        queue.is_feasible = self.could_ever(queue)
        return queue

    def could_ever(self, queue: Queue) -> bool:
        shape = queue.shape
        if shape.group:
            return self.groups.by_id[shape.group].could_ever_fit(shape)
        if queue.only:
            return queue.only in self.known and could_ever_fit(shape.demand, self.known[queue.only])
        return any(could_ever_fit(shape.demand, total) for total in self.known.values())

    def infeasible(self, shape: Shape) -> ErrorInfo:
        group = self.groups.by_id.get(shape.group)
        if group is not None:
            bundles = ", ".join(str(dict(bundle)) for bundle in group.bundles)
            which = f"bundle {shape.bundle}" if shape.bundle >= 0 else "any bundle"
            text = f"{dict(shape.demand)} can never fit into {which} of placement group {group.id}: it has {bundles}"
            return ErrorInfo("InfeasibleResources", text)
        totals = "; ".join(f"{name} has {total}" for name, total in list(self.known.items())[:4])
        where = f"node {shape.strategy[5:]} has no" if shape.strategy.startswith("node:") else "no node has"
        return ErrorInfo("InfeasibleResources", f"{where} room for {dict(shape.demand)}: {totals}")

    def refuse(self, request: Request, error: ErrorInfo) -> None:
        if request.actor is not None:
            name = request.actor.info.class_name
            self._bury(request.actor, ErrorInfo(error.kind, f"actor {name}: {error.message}"))
        else:
            self.turn.out.append(Tell(request.client, LeasesRefused(request.shape, error)))

    # ---------------------------------------------------------------- resources

    def _find(self, shape: Shape, group: Group | None, client: str) -> Pool | None:
        """Where there is room now."""
        demand, strategy = shape.demand, shape.strategy
        if group is not None:
            return group.find(shape)
        if strategy == "SPREAD":
            return self.index(demand).find(is_spread=True)
        if strategy:
            node = self.nodes.get(strategy.partition(":")[2])
            if node is not None and node.fits(demand):
                return node
            if strategy.startswith("node:"):
                return None
        home = self.node_of(client)
        if home is not None and not home.is_lost and home.fits(demand):
            return home
        return self.index(demand).find()

    def _place(self, client: str, shape: Shape, pool: Pool, actor: ActorEntry | None) -> None:
        """Take the resources; give them to a worker."""
        shares = pool.take(shape.demand)
        placement = Placement(client, shape, pool, shares, actor)
        node, env = pool.node, shape.env
        if pool is not node:
            pool.users[placement] = None
        if shares:
            idle = self._take_on_gpus(node, tuple(shares), env, actor is not None)
            if idle is not None:
                self.give(idle, placement)
                return
            placement.worker = self._start(node, env, shape.memory, placement)
        else:
            worker = node.take_idle(env, actor is not None)
            if worker is not None:
                self.give(worker, placement)
                if not env:
                    self.start_missing(node, env)
                return
            node.waiters(placement)[placement] = None
        if actor is not None:
            actor.placement = placement
        self.placing.setdefault(client, {})[placement] = None
        self.start_missing(node, env)

    def give_back(self, placement: Placement) -> None:
        placement.pool.give_back(placement.shape.demand, placement.shares)
        placement.pool.users.pop(placement, None)

    def freed(self, pool: Pool) -> None:
        """Something came back to the pool: who waits for it?"""
        if pool.is_closed:
            pool = pool.node
        node = pool.node
        if node.is_lost:
            return
        group: Group | None = pool.group
        if group is not None:
            group.freed(pool)
            if group.waiting:
                self._serve(group.waiting, pool)
            return
        for index in self._indexes.values():
            index.freed(node)
        if self.groups.pending:
            self.reserve_groups()
        if self.waiting:
            self._serve(self.waiting, node)

    def reserve_groups(self) -> None:
        for group in self.groups.reserve_pending():
            for client in sorted(group.seekers):
                self.turn.out.append(Tell(client, GroupNews(group.id)))
            group.seekers.clear()
            for pool in group.pools:
                if pool is not None and group.waiting:
                    self._serve(group.waiting, pool)

    def _serve(self, waiting: dict[Queue, None], pool: Pool) -> None:
        while waiting:
            queue = first_that_fits(waiting, pool)
            if queue is None:
                return
            request = queue.head()
            queue.moved_at = self.turn.now
            request.count -= 1
            if not request.count:
                self.unqueue(request)
            self._place(request.client, request.shape, pool, request.actor)

    # ---------------------------------------------------------------- workers

    def start_missing(self, node: Node, env: str) -> None:
        num = node.num_to_start(env)
        if num > 0 and not node.is_lost and node.hold_until.get(env, 0.0) <= self.turn.now:
            waiting = node.waiting.get(env) or node.waiting_actors.get(env)
            memory = next(iter(waiting)).shape.memory if waiting else 0
            for _ in range(num):
                self._start(node, env, memory, None)

    def _start(self, node: Node, env: str, memory: int, placement: Placement | None) -> Worker:
        id = f"w{self.next_worker}"
        self.next_worker += 1
        gpu_ids = () if placement is None else tuple(placement.shares)
        worker = self.workers[id] = node.workers[id] = Worker(id, node, env, gpu_ids)
        worker.placement = placement
        if placement is None:
            node.starting[env] = node.starting.get(env, 0) + 1
        self.turn.out.append(StartWorker(id, gpu_ids, node.name, env, memory))
        return worker

    def ready(self, worker: Worker) -> None:
        node, env = worker.node, worker.env
        if node.failed_starts:
            node.failed_starts.pop(env, None)
            node.hold_until.pop(env, None)
        placement = worker.placement
        if placement is not None:
            self.has_worker(placement)
            self.give(worker, placement)
        else:
            node.starting[env] -= 1
            self.make_idle(worker)

    def note_failed_start(self, worker: Worker, reason: str) -> None:
        """It died before it was ready: when that goes on, the next one waits for longer and longer."""
        node, env = worker.node, worker.env
        if worker.placement is None:
            node.starting[env] -= 1
        if node.is_lost:
            return
        failed = node.failed_starts[env] = node.failed_starts.get(env, 0) + 1
        if failed >= _START_FAILURES:
            until = self.turn.now + min(10.0, 0.1 * 2 ** (failed - _START_FAILURES))
            node.hold_until[env] = until
            self.turn.wake_at(until, lambda env: self.start_missing(node, env), env)
        if failed == 2 * _START_FAILURES:
            text = f"node {node.name}: {failed} workers in a row ended before they were ready, the last one: {reason}"
            self.turn.out.append(Warn(text))

    def make_idle(self, worker: Worker) -> None:
        """Whoever waits there for a worker gets it."""
        placement = worker.node.next_waiter(worker)
        if placement is None:
            worker.state, worker.placement = "idle", None
            worker.node.add_idle(worker)
        else:
            self.has_worker(placement)
            self.give(worker, placement)
            self.start_missing(worker.node, worker.env)

    def _take_on_gpus(self, node: Node, gpu_ids: tuple[int, ...], env: str, is_for_actor: bool) -> Worker | None:
        """The idle worker with just these GPUs; others that hold memory of any of them end."""
        found = None
        for worker in node.take_idle_on_gpus(gpu_ids):
            if not is_for_actor and (worker.gpu_ids, worker.env) == (gpu_ids, env):
                found = worker
            else:
                self.retire(worker)
        return found

    def _keep_on_gpus(self, worker: Worker) -> None:
        """Idle, for a while: a process that the runtime knows nothing of may need the memory that it holds."""
        for other in worker.node.take_idle_on_gpus(worker.gpu_ids):
            self.retire(other)
        worker.state, worker.idle_since = "idle", self.turn.now
        worker.node.idle_on_gpus[worker.gpu_ids] = worker
        self.turn.wake_at(self.turn.now + _GPU_IDLE_S, self._end_on_gpus, (worker, worker.idle_since))

    def _end_on_gpus(self, kept: tuple[Worker, float]) -> None:
        worker, since = kept
        if worker.node.idle_on_gpus.get(worker.gpu_ids) is worker and worker.idle_since == since:
            worker.node.remove_idle(worker)
            self.retire(worker)

    def give(self, worker: Worker, placement: Placement) -> None:
        out = self.turn.out
        worker.placement, placement.worker = placement, worker
        worker.is_fresh = False
        actor = placement.actor
        if actor is None:
            worker.state = "leased"
            self.leases.setdefault(placement.client, {})[worker] = None
            out.append(Tell(placement.client, Granted(placement.shape, worker.id)))
            return
        worker.state = "actor"
        actor.worker, actor.placement = worker.id, None
        if actor.is_detached:
            out.append(CreateDetached(worker.id, actor.id, actor.incarnation))
        for client in sorted(actor.seekers):
            out.append(Tell(client, Placed(actor.id, worker.id, actor.incarnation)))

    def has_worker(self, placement: Placement) -> None:
        """It waits for a worker no more."""
        mine = self.placing[placement.client]
        del mine[placement]
        if not mine:
            del self.placing[placement.client]
        if placement.actor is not None:
            placement.actor.placement = None

    def withdraw(self, placement: Placement) -> None:
        """It waits for a worker no more; its resources go back, unless a worker starts with its GPUs."""
        self.has_worker(placement)
        if placement.worker is None:
            del placement.pool.node.waiters(placement)[placement]
            self.give_back(placement)

    def cancel(self, placement: Placement) -> None:
        """Nobody wants it any more, and it has no worker that is ready yet."""
        self.withdraw(placement)
        if placement.worker is not None:
            self.kill(placement.worker, "what it was started for is not wanted any more")
        else:
            self.freed(placement.pool)

    def forget_lease(self, worker: Worker, placement: Placement) -> None:
        mine = self.leases[placement.client]
        del mine[worker]
        if not mine:
            del self.leases[placement.client]

    def release(self, worker: Worker) -> None:
        """Its resources are free."""
        placement = worker.placement
        if placement is not None:
            if worker.is_blocked:
                worker.is_blocked = False
                placement.pool.lend(-placement.cpus())
            self.give_back(placement)
            worker.placement = None

    def let_go(self, worker: Worker, is_worn: bool = False) -> None:
        """Its lease has ended: it is idle, or more than are needed (it ends when nobody needs what it owns)."""
        node, placement = worker.node, worker.placement
        assert placement is not None
        self.forget_lease(worker, placement)
        self.release(worker)
        if is_worn or (not worker.gpu_ids and node.has_surplus() and not node.waiting.get(worker.env)):
            self.retire(worker)
        elif worker.gpu_ids:
            self._keep_on_gpus(worker)
        else:
            self.make_idle(worker)
        self.freed(placement.pool)

    def retire(self, worker: Worker) -> None:
        worker.state = "dying"
        self.turn.out.append(StopWorker(worker.id, at_once=False, is_surplus=True))

    def kill(self, worker: Worker, reason: str) -> None:
        """It holds its resources until it is gone."""
        if worker.state == "leased":
            assert worker.placement is not None
            self.forget_lease(worker, worker.placement)
        worker.state = "dying"
        if not worker.node.is_lost:
            self.turn.out.append(StopWorker(worker.id, at_once=True, reason=reason))
