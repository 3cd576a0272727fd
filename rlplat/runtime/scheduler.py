"""The head's judgement: who gets which worker, and what happens when one dies. Pure: events in, actions out.

Rules
1. A demand (a lease or an actor) is granted when some node has its resources free. Demands that fit are granted in
   order of arrival; one that does not fit now lets smaller ones pass.
2. It goes to the client's own node when that has room (what it passes on is in that node's memory), else to the node
   that was filled last: so nodes fill one after the other, whole ones stay free for large demands and groups, and idle
   ones need no workers. `strategy` can ask for nodes in turn ("SPREAD") or for one of them.
3. Its resources are taken at once; then it gets an idle worker with its runtime environment, or waits there for one to start.
4. A worker serves one client's leases, or one actor, at a time; a lease's worker returns to the idle ones.
5. `num_spares` ready workers are kept on each node beside those in use, so that a demand rarely waits for a fork.
   A demand for GPUs always gets a new worker: CUDA_VISIBLE_DEVICES cannot change in a process.
6. A blocked worker lends its CPUs; when it goes on they may be overdrawn for a while.
7. When a worker dies its resources are free, what it owned or leased ends, and everybody is told; its actor ends or has
   another process (`scheduling.actors`). A lost node is the death of all its workers.
8. What belongs to a placement group draws from the group's bundles (`scheduling.groups`).
9. What no node could ever hold is refused while the cluster is fixed. What waits for long is explained, once.

Cost: an event looks at the workers, requests and nodes that it is about, and at the *distinct* demands that wait, but
never at all workers, nodes or requests: those are indexed (`FitIndex`, `Queue`, idle workers by node and environment).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rlplat.runtime.codec import ErrorInfo
from rlplat.runtime.messages import GroupState, NodeState, Place, Shape
from rlplat.runtime.resources import Resources
from rlplat.runtime.scheduling.actors import ActorEntry, Actors, Intensity
from rlplat.runtime.scheduling.events import (
    Action,
    ActorEnded,
    ActorRequested,
    ActorSought,
    CreateDetached,
    Demand,
    EnvFailed,
    Event,
    GrantLease,
    GroupRemoved,
    GroupRequested,
    GroupSought,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    NodeLost,
    RefuseLeases,
    StartWorker,
    StopWorker,
    TellDied,
    TellGone,
    TellGroup,
    TellNameTaken,
    TellPlaced,
    TellRestarting,
    Tick,
    WakeAt,
    Warn,
    WorkerBlocked,
    WorkerLost,
    WorkerReady,
    WorkerUnblocked,
)
from rlplat.runtime.scheduling.groups import Group, Groups, why_never
from rlplat.runtime.scheduling.nodes import FitIndex, Node, Placement, Pool, Worker, could_ever_fit
from rlplat.runtime.scheduling.queues import Queue, Request, first_that_fits

WARN_AFTER_S = 10.0
_MAX_INDEXES = 32
_MAX_QUEUES = 4096
_START_FAILURES = 3
"""Workers in a row that may die before they are ready until the next start waits."""


class Scheduler:
    def __init__(self, *, is_fixed: bool = True, intensity: Intensity | None = None) -> None:
        """is_fixed: no nodes will join but those that were here once, so what none of them can hold is refused."""
        self._is_fixed = is_fixed
        self._now = 0.0
        self._out: list[Action] = []
        self._nodes: dict[str, Node] = {}
        self._known: dict[str, Resources] = {}
        """Totals of all nodes that were ever here."""
        self._home: Node | None = None
        """Where clients are that are no workers."""
        self._workers: dict[str, Worker] = {}
        self._next_worker = 1
        self._indexes: dict[Demand, FitIndex] = {}
        self._queues: dict[Shape, Queue] = {}
        self._waiting: dict[Queue, None] = {}
        """Queues with requests, but those of groups."""
        self._next_seq = 0
        self._asked: dict[str, dict[Request, None]] = {}
        """Requests in queues, by client."""
        self._placing: dict[str, dict[Placement, None]] = {}
        """Those that wait for a worker, by client."""
        self._leases: dict[str, dict[Worker, None]] = {}
        """By client."""
        self._actors = Actors(intensity or Intensity())
        self._groups = Groups(self._index)
        self._timers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            NodeJoined: self._on_node_joined,
            NodeLost: self._on_node_lost,
            LeasesRequested: self._on_leases_requested,
            LeaseReturned: self._on_lease_returned,
            ActorRequested: self._on_actor_requested,
            ActorSought: self._on_actor_sought,
            ActorEnded: self._on_actor_ended,
            GroupRequested: self._on_group_requested,
            GroupSought: self._on_group_sought,
            GroupRemoved: self._on_group_removed,
            WorkerReady: self._on_worker_ready,
            WorkerLost: self._on_worker_lost,
            WorkerBlocked: self._on_worker_blocked,
            WorkerUnblocked: self._on_worker_unblocked,
            EnvFailed: self._on_env_failed,
            Tick: self._on_tick,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from `event`. `now`: any clock that never goes back."""
        self._now = now
        actions = self._out = []
        if self._timers and self._timers[0][0] <= now:
            self._fire_timers()
        self._handlers[type(event)](event)
        return actions

    # ---------------------------------------------------------------- nodes

    def _on_node_joined(self, event: NodeJoined) -> None:
        if event.node in self._nodes:
            return
        node = self._nodes[event.node] = Node(event.node, dict(event.total), event.num_spares)
        self._known[event.node] = dict(event.total)
        if self._home is None:
            self._home = node
        for queue in self._queues.values():
            if not queue.is_feasible and not queue.shape.group:
                queue.is_feasible = self._could_ever(queue)
        self._start_missing(node, "")
        self._freed(node)

    def _on_node_lost(self, event: NodeLost) -> None:
        node = self._nodes.pop(event.node, None)
        if node is None:
            return
        node.is_lost = True
        for index in self._indexes.values():
            index.forget(node)
        if self._home is node:
            self._home = next(iter(self._nodes.values()), None)
        self._groups.node_lost(node)
        workers = list(node.workers.values())
        for worker in workers:
            del self._workers[worker.id]
        again = [placement for waiting in node.waiting.values() for placement in waiting]
        for placement in again:
            self._withdraw(placement)
        for worker in workers:
            self._bury_worker(worker, f"its node {event.node} was lost: {event.reason}", is_crash=False)
        for placement in again:
            self._demand_again(placement)
        self._reserve_groups()

    def _index(self, demand: Demand) -> FitIndex:
        index = self._indexes.get(demand)
        if index is None:
            if len(self._indexes) >= _MAX_INDEXES:
                del self._indexes[next(iter(self._indexes))]
            index = self._indexes[demand] = FitIndex(demand, self._nodes.values())
        return index

    def _node_of(self, client: str) -> Node | None:
        worker = self._workers.get(client)
        return self._home if worker is None else worker.node

    # ---------------------------------------------------------------- demands

    def _on_leases_requested(self, event: LeasesRequested) -> None:
        if event.count > 0 and self._is_alive(event.client):
            self._demand(Request(event.client, event.shape, event.count))

    def _demand(self, request: Request) -> None:
        """Grant what can be granted now; the rest waits, or is refused when waiting is of no use."""
        shape = request.shape
        group = None
        if shape.group:
            group = self._groups.by_id.get(shape.group)
            if group is None or group.error is not None:
                text = f"placement group {shape.group} was removed, or never created"
                self._refuse(request, ErrorInfo("PlacementGroupRemoved", text))
                return
        queue = self._queues.get(shape)
        if queue is None:
            queue = self._new_queue(shape)
        if not queue.is_feasible and (self._is_fixed or group is not None):
            self._refuse(request, self._infeasible(shape, group))
            return
        if not queue.requests:
            while request.count:
                pool = self._find(shape, group, request.client)
                if pool is None:
                    break
                request.count -= 1
                self._place(request.client, shape, pool, request.actor)
        if request.count:
            request.queue, request.seq = queue, self._next_seq
            self._next_seq += 1
            if not queue.requests:
                queue.moved_at = self._now
                (self._waiting if group is None else group.waiting)[queue] = None
                if not queue.is_watched:
                    queue.is_watched = True
                    self._wake_at(self._now + WARN_AFTER_S, self._watch, queue)
            queue.requests[request] = None
            self._asked.setdefault(request.client, {})[request] = None
            if request.actor is not None:
                request.actor.request = request

    def _new_queue(self, shape: Shape) -> Queue:
        if len(self._queues) >= _MAX_QUEUES:
            self._queues = {s: q for s, q in self._queues.items() if q.requests or q.is_watched}
        queue = self._queues[shape] = Queue(shape)
        queue.is_feasible = self._could_ever(queue)
        return queue

    def _could_ever(self, queue: Queue) -> bool:
        shape = queue.shape
        if shape.group:
            return self._groups.by_id[shape.group].could_ever_fit(shape)
        if queue.only:
            return queue.only in self._known and could_ever_fit(shape.demand, self._known[queue.only])
        return any(could_ever_fit(shape.demand, total) for total in self._known.values())

    def _infeasible(self, shape: Shape, group: Group | None) -> ErrorInfo:
        if group is not None:
            bundles = ", ".join(str(dict(bundle)) for bundle in group.bundles)
            which = f"bundle {shape.bundle}" if shape.bundle >= 0 else "no bundle"
            text = f"{dict(shape.demand)} fits into {which} of placement group {group.id}: its bundles are {bundles}"
            return ErrorInfo("InfeasibleResources", text.replace("fits into bundle", "does not fit into bundle"))
        totals = "; ".join(f"{name} has {total}" for name, total in list(self._known.items())[:4])
        return ErrorInfo("InfeasibleResources", f"no node has room for {dict(shape.demand)}: {totals}")

    def _find(self, shape: Shape, group: Group | None, client: str) -> Pool | None:
        """Where there is room now."""
        demand = shape.demand
        if group is not None:
            return group.find(shape)
        strategy = shape.strategy
        if not strategy:
            pass
        elif strategy.startswith("node"):
            node = self._nodes.get(strategy.partition(":")[2])
            if node is not None and node.fits(demand):
                return node
            if strategy.startswith("node:"):
                return None
        elif strategy == "SPREAD":
            return self._index(demand).find(is_spread=True)
        home = self._node_of(client)
        if home is not None and not home.is_lost and home.fits(demand):
            return home
        return self._index(demand).find()

    def _place(self, client: str, shape: Shape, pool: Pool, actor: ActorEntry | None) -> None:
        """Take the resources; give them to a worker."""
        shares = pool.take(shape.demand)
        placement = Placement(client, shape, pool, shares, actor)
        node, env = pool.node, shape.env
        if pool is not node:
            pool.users[placement] = None
        if shares:
            placement.worker = self._start(node, env, shape.memory, placement)
        else:
            worker = node.take_idle(env)
            if worker is not None:
                self._give(worker, placement)
                if not env:
                    self._start_missing(node, env)
                return
            node.waiting.setdefault(env, OrderedDict())[placement] = None
        if actor is not None:
            actor.placement = placement
        self._placing.setdefault(client, {})[placement] = None
        self._start_missing(node, env)

    def _give(self, worker: Worker, placement: Placement) -> None:
        worker.placement, placement.worker = placement, worker
        actor = placement.actor
        if actor is None:
            worker.state = "leased"
            self._leases.setdefault(placement.client, {})[worker] = None
            self._out.append(GrantLease(placement.client, placement.shape, worker.id))
            return
        worker.state = "actor"
        actor.worker, actor.placement = worker.id, None
        if actor.is_detached:
            self._out.append(CreateDetached(worker.id, actor.id, actor.incarnation))
        for client in sorted(actor.seekers):
            self._out.append(TellPlaced(client, actor.id, worker.id, actor.incarnation))

    def _freed(self, pool: Pool) -> None:
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
        if self._groups.pending:
            self._reserve_groups()
        if self._waiting:
            self._serve(self._waiting, node)

    def _serve(self, waiting: dict[Queue, None], pool: Pool) -> None:
        while waiting:
            queue = first_that_fits(waiting, pool)
            if queue is None:
                return
            request = queue.head()
            queue.moved_at = self._now
            request.count -= 1
            if not request.count:
                self._unqueue(request)
            self._place(request.client, request.shape, pool, request.actor)

    def _unqueue(self, request: Request) -> None:
        queue = request.queue
        assert queue is not None
        del queue.requests[request]
        request.queue = None
        if not queue.requests:
            group = self._groups.by_id.get(queue.shape.group)
            del (self._waiting if group is None else group.waiting)[queue]
        mine = self._asked[request.client]
        del mine[request]
        if not mine:
            del self._asked[request.client]
        if request.actor is not None:
            request.actor.request = None

    def _withdraw(self, placement: Placement) -> None:
        """It waits for a worker no more, and its resources go back (nobody is served with them yet)."""
        self._placed(placement)
        if placement.worker is None:
            waiting = placement.pool.node.waiting[placement.shape.env]
            del waiting[placement]
            self._give_back(placement)

    def _placed(self, placement: Placement) -> None:
        """It waits for a worker no more."""
        mine = self._placing[placement.client]
        del mine[placement]
        if not mine:
            del self._placing[placement.client]
        if placement.actor is not None:
            placement.actor.placement = None

    def _give_back(self, placement: Placement) -> None:
        placement.pool.give_back(placement.shape.demand, placement.shares)
        placement.pool.users.pop(placement, None)

    def _demand_again(self, placement: Placement) -> None:
        if placement.actor is not None:
            if placement.actor.error is None and not placement.actor.end_reason:
                self._demand(Request(placement.client, placement.shape, 1, placement.actor))
        elif self._is_alive(placement.client):
            self._demand(Request(placement.client, placement.shape, 1))

    def _is_alive(self, client: str) -> bool:
        """Whether whoever asked lives still. Clients are drivers and workers."""
        return not client.startswith("w") or client in self._workers

    def _refuse(self, request: Request, error: ErrorInfo) -> None:
        if request.actor is not None:
            self._bury(request.actor, ErrorInfo(error.kind, f"actor {request.actor.info.class_name}: {error.message}"))
        else:
            self._out.append(RefuseLeases(request.client, request.shape, error))

    # ---------------------------------------------------------------- workers

    def _start_missing(self, node: Node, env: str) -> None:
        num = node.num_to_start(env)
        if num > 0 and not node.is_lost and node.hold_until.get(env, 0.0) <= self._now:
            waiting = node.waiting.get(env)
            memory = next(iter(waiting)).shape.memory if waiting else 0
            for _ in range(num):
                self._start(node, env, memory, None)

    def _start(self, node: Node, env: str, memory: int, placement: Placement | None) -> Worker:
        id = f"w{self._next_worker}"
        self._next_worker += 1
        worker = self._workers[id] = node.workers[id] = Worker(id, node, env)
        gpu_ids: tuple[int, ...] = ()
        if placement is None:
            node.starting[env] = node.starting.get(env, 0) + 1
        else:
            worker.placement = placement
            gpu_ids = tuple(placement.shares)
        self._out.append(StartWorker(id, gpu_ids, node.name, env, memory))
        return worker

    def _on_worker_ready(self, event: WorkerReady) -> None:
        worker = self._workers.get(event.worker)
        if worker is None or worker.state != "starting":
            return
        node, env = worker.node, worker.env
        node.failed_starts.pop(env, None)
        node.hold_until.pop(env, None)
        placement = worker.placement
        if placement is not None:
            self._placed(placement)
            self._give(worker, placement)
        else:
            node.starting[env] -= 1
            self._make_idle(worker)

    def _make_idle(self, worker: Worker) -> None:
        """Whoever waits there for a worker gets it."""
        node, env = worker.node, worker.env
        waiting = node.waiting.get(env)
        if waiting:
            placement, _ = waiting.popitem(last=False)
            self._placed(placement)
            self._give(worker, placement)
            self._start_missing(node, env)
        else:
            worker.state, worker.placement = "idle", None
            node.add_idle(env, worker)

    def _on_lease_returned(self, event: LeaseReturned) -> None:
        worker = self._workers.get(event.worker)
        if worker is None or worker.state != "leased":
            return
        placement = worker.placement
        assert placement is not None
        if placement.client != event.client:
            return
        self._forget_lease(worker, placement)
        self._release(worker)
        node = worker.node
        if placement.shares or (node.has_surplus() and not node.waiting.get(worker.env)):
            worker.state = "dying"
            self._out.append(StopWorker(worker.id, at_once=False, is_surplus=True))
        else:
            self._make_idle(worker)
        self._freed(placement.pool)

    def _forget_lease(self, worker: Worker, placement: Placement) -> None:
        mine = self._leases[placement.client]
        del mine[worker]
        if not mine:
            del self._leases[placement.client]

    def _release(self, worker: Worker) -> None:
        """Its resources are free."""
        placement = worker.placement
        if placement is not None:
            if worker.is_blocked:
                worker.is_blocked = False
                placement.pool.lend(-_cpus(placement))
            self._give_back(placement)
            worker.placement = None

    def _on_worker_blocked(self, event: WorkerBlocked) -> None:
        worker = self._workers.get(event.worker)
        if worker is not None and worker.state in ("leased", "actor") and not worker.is_blocked:
            assert worker.placement is not None
            cpus = _cpus(worker.placement)
            worker.is_blocked = True
            if cpus:
                worker.placement.pool.lend(cpus)
                self._freed(worker.placement.pool)

    def _on_worker_unblocked(self, event: WorkerUnblocked) -> None:
        worker = self._workers.get(event.worker)
        if worker is not None and worker.is_blocked:
            assert worker.placement is not None
            worker.is_blocked = False
            worker.placement.pool.lend(-_cpus(worker.placement))

    def _stop(self, worker: Worker, reason: str) -> None:
        """Kill it. It holds its resources until it is gone."""
        if worker.state == "leased":
            assert worker.placement is not None
            self._forget_lease(worker, worker.placement)
        worker.state = "dying"
        if not worker.node.is_lost:
            self._out.append(StopWorker(worker.id, at_once=True, reason=reason))

    def _on_worker_lost(self, event: WorkerLost) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is not None:
            self._bury_worker(worker, f"{event.worker} died: {event.reason}", True, event.reason)

    def _bury_worker(self, worker: Worker, what: str, is_crash: bool, reason: str = "") -> None:
        """It is gone (and out of `_workers`): tell everybody, end what depends on it, give away what it held."""
        node, placement, state, id = worker.node, worker.placement, worker.state, worker.id
        reason = reason or what
        del node.workers[id]
        if state == "idle":
            node.idle[worker.env].remove(worker)
            node.num_idle -= 1
        elif state == "starting":
            self._note_failed_start(worker, reason)
        elif state == "leased":
            assert placement is not None
            self._forget_lease(worker, placement)
        self._release(worker)
        actor = placement.actor if placement is not None and state != "starting" else None
        restart_s: float | None = None
        if actor is not None and actor.worker == id:
            restart_s = self._lose_actor(actor, what, is_crash)
        self._client_lost(id, reason, actor is not None)
        self._out.append(TellDied(id, reason))
        if placement is not None:
            if state == "starting":
                self._placed(placement)
                hold_until = node.hold_until.get(worker.env, 0.0)
                if hold_until > self._now and not node.is_lost:
                    self._wake_at(hold_until, self._demand_again, placement)
                else:
                    self._demand_again(placement)
            elif restart_s == 0:
                assert actor is not None
                self._restart((actor, actor.incarnation))
            self._freed(placement.pool)
        self._start_missing(node, worker.env)

    def _client_lost(self, client: str, reason: str, was_actor: bool) -> None:
        """What it asked for, leased and created ends."""
        for request in list(self._asked.get(client, ())):
            if request.actor is None:
                self._unqueue(request)
        for placement in list(self._placing.get(client, ())):
            if placement.actor is None:
                self._cancel(placement)
        for worker in list(self._leases.get(client, ())):
            self._stop(worker, f"its client {client} died")
        for actor in self._actors.client_lost(client):
            self._end_actor(actor, f"its creator {client} died ({reason})", at_once=True)
        if was_actor:  # groups of a task belong to the driver's job
            for group in list(self._groups.by_creator.get(client, ())):
                self._remove_group(group, f"its creator {client} died ({reason})")

    def _cancel(self, placement: Placement) -> None:
        """Nobody wants it any more, and it has no worker that is ready yet."""
        self._withdraw(placement)
        if placement.worker is not None:  # one with its GPUs
            self._stop(placement.worker, "what it was started for is not wanted any more")
        else:
            self._freed(placement.pool)

    def _note_failed_start(self, worker: Worker, reason: str) -> None:
        node, env = worker.node, worker.env
        if worker.placement is None:
            node.starting[env] -= 1
        if node.is_lost:
            return
        failed = node.failed_starts[env] = node.failed_starts.get(env, 0) + 1
        if failed >= _START_FAILURES:
            hold_s = min(10.0, 0.1 * 2 ** (failed - _START_FAILURES))
            node.hold_until[env] = self._now + hold_s
            self._wake_at(self._now + hold_s, self._start_again, (node, env))
        if failed == 2 * _START_FAILURES:
            self._out.append(
                Warn(f"node {node.name}: {failed} workers in a row ended before they were ready, the last one: {reason}")
            )

    def _start_again(self, at: tuple[Node, str]) -> None:
        self._start_missing(*at)

    # ---------------------------------------------------------------- actors

    def _on_actor_requested(self, event: ActorRequested) -> None:
        if event.actor in self._actors.entries or not self._is_alive(event.client):
            return
        holder = self._actors.named(event.namespace, event.name) if event.name else None
        if holder is not None:
            if event.get_if_exists:
                self._out.append(
                    TellNameTaken(event.client, event.actor, holder.id, holder.info, holder.is_detached)
                )
                return
            text = f"an actor named {event.name!r} exists already: use rlplat.get_actor({event.name!r})"
            self._out.append(TellGone(event.client, event.actor, ErrorInfo("ConfigError", text)))
            return
        entry = self._actors.add(event)
        self._demand(Request(event.client, event.shape, 1, entry))

    def _on_actor_sought(self, event: ActorSought) -> None:
        entry = self._actors.entries.get(event.actor)
        if entry is None:
            error = ErrorInfo("ActorDied", f"actor {event.actor} is not known here: it ended long ago")
            self._out.append(TellGone(event.client, event.actor, error))
        elif entry.error is not None:
            self._out.append(TellGone(event.client, event.actor, entry.error))
        else:
            if self._is_alive(event.client):
                self._actors.seek(entry, event.client)
            if entry.worker:
                self._out.append(TellPlaced(event.client, event.actor, entry.worker, entry.incarnation))

    def _on_actor_ended(self, event: ActorEnded) -> None:
        entry = self._actors.entries.get(event.actor)
        if entry is None or entry.error is not None:
            return
        if event.no_restart:
            self._end_actor(entry, event.reason, event.at_once)
        elif entry.worker:
            entry.stop_reason = event.reason
            self._out.append(StopWorker(entry.worker, True, reason=event.reason))

    def _end_actor(self, entry: ActorEntry, reason: str, at_once: bool) -> None:
        entry.end_reason = reason
        if entry.worker:
            worker = self._workers.get(entry.worker)
            if worker is not None and not worker.node.is_lost:
                self._out.append(StopWorker(entry.worker, at_once))
            return
        if entry.request is not None:
            self._unqueue(entry.request)
        placement = entry.placement
        when = "while it was restarted" if entry.num_restarts else "before it had a worker"
        self._bury(entry, ErrorInfo("ActorDied", f"actor {entry.info.class_name} ended {when}: {reason}"))
        if placement is not None:
            self._cancel(placement)

    def _bury(self, entry: ActorEntry, error: ErrorInfo) -> None:
        for client in self._actors.bury(entry, error):
            self._out.append(TellGone(client, entry.id, error))

    def _lose_actor(self, entry: ActorEntry, what: str, is_crash: bool) -> float | None:
        """Its process is gone; seconds until its next, or None."""
        entry.worker = ""
        verdict = self._actors.judge(entry, what, self._now, is_crash)
        if isinstance(verdict, ErrorInfo):
            self._bury(entry, verdict)
            return None
        reason = entry.stop_reason or f"its process {what}"
        entry.stop_reason = ""
        entry.num_restarts += 1
        entry.incarnation += 1
        for client in sorted(entry.seekers):
            self._out.append(TellRestarting(client, entry.id, reason))
        if verdict > 0:
            self._wake_at(self._now + verdict, self._restart, (entry, entry.incarnation))
        return verdict

    def _restart(self, life: tuple[ActorEntry, int]) -> None:
        entry, incarnation = life
        is_pending = not entry.worker and entry.request is None and entry.placement is None
        if entry.error is None and entry.incarnation == incarnation and is_pending:
            self._demand(Request(entry.client, entry.shape, 1, entry))

    # ---------------------------------------------------------------- placement groups

    def _on_group_requested(self, event: GroupRequested) -> None:
        if event.group in self._groups.by_id or not self._is_alive(event.client):
            return
        group = Group(event, self._next_seq)
        self._next_seq += 1
        never = why_never(group, self._known.values()) if event.bundles else "it has no bundles"
        if never and (self._is_fixed or not event.bundles):
            text = f"placement group {event.name or event.group} ({event.strategy}) can never be reserved: {never}"
            self._out.append(TellGroup(event.client, event.group, ErrorInfo("InfeasibleResources", text)))
            return
        self._groups.add(group)
        self._reserve_groups()
        if group.state == "PENDING":
            self._wake_at(self._now + WARN_AFTER_S, self._watch_group, group)

    def _on_group_sought(self, event: GroupSought) -> None:
        group = self._groups.by_id.get(event.group)
        if group is None:
            error = ErrorInfo("PlacementGroupRemoved", f"placement group {event.group} is not known here")
            self._out.append(TellGroup(event.client, event.group, error))
        elif group.error is not None or group.state == "CREATED":
            self._out.append(TellGroup(event.client, event.group, group.error))
        else:
            group.seekers.add(event.client)

    def _reserve_groups(self) -> None:
        for group in self._groups.reserve_pending():
            for client in sorted(group.seekers):
                self._out.append(TellGroup(client, group.id))
            group.seekers.clear()
            for pool in group.pools:
                if pool is not None and group.waiting:
                    self._serve(group.waiting, pool)

    def _on_group_removed(self, event: GroupRemoved) -> None:
        group = self._groups.by_id.get(event.group)
        if group is not None and group.error is None:
            self._remove_group(group, "remove_placement_group was called")

    def _remove_group(self, group: Group, why: str) -> None:
        text = f"placement group {group.name or group.id} was removed: {why}"
        error = ErrorInfo("PlacementGroupRemoved", text)
        users = [placement for pool in group.pools if pool is not None for placement in pool.users]
        waiting = list(group.waiting)
        requests = [request for queue in waiting for request in queue.requests]
        pools = self._groups.remove(group, error)
        for client in sorted(group.seekers):
            self._out.append(TellGroup(client, group.id, error))
        self._abandon(requests, users, error)
        for shape in [shape for shape in self._queues if shape.group == group.id]:
            del self._queues[shape]
        for pool in pools:
            self._freed(pool)

    def _abandon(self, requests: list[Request], placements: list[Placement], error: ErrorInfo) -> None:
        """None of these will be granted, and what was is taken away."""
        refused: dict[tuple[str, Shape], None] = {}
        for request in requests:
            if request.queue is not None:
                self._unqueue(request)
            if request.actor is not None:
                self._end_actor(request.actor, error.message, at_once=True)
            else:
                refused[request.client, request.shape] = None
        for placement in placements:
            worker, actor = placement.worker, placement.actor
            if actor is not None and actor.error is None:
                self._end_actor(actor, error.message, at_once=True)
            elif actor is None and (worker is None or worker.state == "starting"):
                self._cancel(placement)
                refused[placement.client, placement.shape] = None
            elif actor is None and worker is not None and worker.state == "leased":
                self._stop(worker, error.message)
        for client, shape in refused:
            self._out.append(RefuseLeases(client, shape, error))

    def _on_env_failed(self, event: EnvFailed) -> None:
        env = event.env
        requests = [r for queue in self._queues.values() if queue.shape.env == env for r in queue.requests]
        placements = [p for mine in self._placing.values() for p in mine if p.shape.env == env]
        self._abandon(requests, placements, event.error)

    # ---------------------------------------------------------------- time

    def _wake_at(self, time: float, do: Callable[[Any], None], about: Any) -> None:
        is_first = not self._timers or time < self._timers[0][0]
        heapq.heappush(self._timers, (time, self._next_seq, do, about))
        self._next_seq += 1
        if is_first:
            self._out.append(WakeAt(time))

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            _, _, do, about = heapq.heappop(self._timers)
            do(about)

    def _on_tick(self, event: Tick) -> None:
        if self._timers:
            self._out.append(WakeAt(self._timers[0][0]))

    def _watch(self, queue: Queue) -> None:
        """Say once what a queue waits for that has not moved for long."""
        if not queue.requests:
            queue.is_watched = queue.is_warned = False
            return
        since = self._now - queue.moved_at
        if since >= WARN_AFTER_S - 1e-6 and not queue.is_warned:
            queue.is_warned = True
            self._out.append(Warn(f"{_waiter(queue)} has waited for {since:.0f} s: {self._why_waiting(queue)}"))
        since_s = self._now if queue.is_warned else queue.moved_at
        self._wake_at(since_s + WARN_AFTER_S, self._watch, queue)

    def _watch_group(self, group: Group) -> None:
        if group.state == "PENDING":
            never = why_never(group, self._known.values())
            why = never or "too much is in use; " + self._free_text()
            name = group.name or group.id
            self._out.append(Warn(f"placement group {name} ({group.strategy}) waits to be reserved: {why}"))

    def _why_waiting(self, queue: Queue) -> str:
        """Which resource is short, and who has it. (Looks at all workers: this is rare.)"""
        shape = queue.shape
        group = self._groups.by_id.get(shape.group)
        if group is not None and group.state != "CREATED":
            return f"placement group {group.id} itself waits for its resources"
        if not queue.is_feasible:
            return self._infeasible(shape, group).message
        pools: list[Pool] = list(self._nodes.values())
        if group is not None:
            pools = [p for number, p in enumerate(group.pools) if p is not None and shape.bundle in (-1, number)]
        short = sorted({name for name, amount in shape.demand for p in pools if p.free.get(name, 0) < amount})
        holders: dict[str, int] = {}
        for worker in self._workers.values():
            placement = worker.placement
            if placement is not None and any(name in short for name, _ in placement.shape.demand):
                who = placement.actor.info.class_name if placement.actor is not None else f"tasks of {placement.client}"
                holders[who] = holders.get(who, 0) + 1
        have = ", ".join(f"{who} x {num}" for who, num in sorted(holders.items(), key=lambda h: -h[1])[:5])
        return f"{' and '.join(short) or 'everything'} is in use (by {have or 'placement groups'}); {self._free_text()}"

    def _free_text(self) -> str:
        parts = []
        for node in list(self._nodes.values())[:4]:
            free = ", ".join(f"{node.free[name]:g} of {amount:g} {name}" for name, amount in node.total.items() if amount)
            parts.append(f"free on {node.name}: {free or 'nothing'}")
        return "; ".join(parts) or "there is no node"

    # ---------------------------------------------------------------- questions

    @property
    def available(self) -> Resources:
        """What is free in all; less than nothing while workers that lent their CPUs are back. What groups reserved is not free."""
        return _sum_of(node.free for node in self._nodes.values())

    @property
    def total(self) -> Resources:
        return _sum_of(node.total for node in self._nodes.values())

    @property
    def actors(self) -> dict[str, ActorEntry]:
        """All that live, and the last that do not."""
        return self._actors.entries

    @property
    def actor_by_name(self) -> dict[tuple[str, str], str]:
        """(namespace, name) -> actor."""
        return self._actors.by_name

    def who(self, worker: str) -> str:
        """The class of the worker's actor, or its id."""
        entry = self._workers.get(worker)
        placement = entry.placement if entry is not None else None
        return worker if placement is None or placement.actor is None else placement.actor.info.class_name

    def memory_of(self, worker: str) -> int:
        """The limit of what runs there now, in bytes; 0 for none."""
        entry = self._workers.get(worker)
        return 0 if entry is None or entry.placement is None else entry.placement.shape.memory

    def place_of(self, client: str) -> Place:
        worker = self._workers.get(client)
        if worker is None or worker.placement is None:
            node = self._node_of(client)
            return Place("" if node is None else node.name)
        placement = worker.placement
        group = placement.pool.group
        bundle = group.pools.index(placement.pool) if group is not None and placement.pool in group.pools else -1
        actor = placement.actor.id if placement.actor is not None else ""
        return Place(worker.node.name, placement.shape, actor, bundle)

    def node_states(self) -> list[NodeState]:
        states = [NodeState(name, True, dict(node.total), dict(node.free)) for name, node in self._nodes.items()]
        gone = [name for name in self._known if name not in self._nodes]
        return states + [NodeState(name, False, dict(self._known[name]), {}) for name in gone]

    def group_states(self) -> list[GroupState]:
        return [
            GroupState(
                group.id,
                group.name,
                group.strategy,
                group.state,
                [dict(bundle) for bundle in group.bundles],
                ["" if pool is None else pool.node.name for pool in group.pools],
            )
            for group in self._groups.by_id.values()
        ]

    def check_valid(self) -> None:
        """Assert the invariants (for tests)."""
        from rlplat.runtime.scheduling.validity import check_valid

        check_valid(self)


def _cpus(placement: Placement) -> float:
    """CPUs that its worker lends while it is blocked."""
    for name, amount in placement.shape.demand:
        if name == "CPU":
            return amount
    return 0.0


def _sum_of(parts: Any) -> Resources:
    whole: Resources = {}
    for part in parts:
        for name, amount in part.items():
            whole[name] = whole.get(name, 0.0) + amount
    return whole


def _waiter(queue: Queue) -> str:
    request = queue.head()
    num = sum(request.count for request in queue.requests)
    who = f"actor {request.actor.info.class_name}" if request.actor is not None else f"a task of {request.client}"
    return f"{who} that needs {dict(queue.shape.demand)}" + (f" (and {num - 1} like it)" if num > 1 else "")
