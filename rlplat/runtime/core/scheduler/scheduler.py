"""The head's judgement: who gets which worker, and what happens when one dies. Pure: events in, actions out.

Rules
1. A demand (a lease or an actor) is granted when some node has its resources free. Demands that fit are granted in
   order of arrival; one that does not fit now lets smaller ones pass.
2. It goes to the client's own node when that has room (what it passes on is in that node's memory), else to the node
   that was filled last: so nodes fill one after the other, whole ones stay free for large demands and groups, and idle
   ones need no workers. `strategy` can ask for nodes in turn ("SPREAD") or for one of them.
3. Its resources are taken at once; then it gets an idle worker with its runtime environment, or waits there until one
   has started.
4. A worker serves one client's leases, or one actor, at a time; a lease's worker returns to the idle ones. An actor
   gets a worker that has run nothing yet: the process ends with it, and objects of earlier tasks would be lost.
5. `num_spares` ready workers are kept on each node beside those in use, so that a demand rarely waits for a fork.
   A demand for GPUs gets a new worker, for CUDA_VISIBLE_DEVICES cannot change in a process; or, when it is a lease, the
   idle one of just these GPUs: one is kept for each GPU, for 10 s, until another demand takes one of its GPUs.
6. A blocked worker lends its CPUs; when it goes on they may be overdrawn for a while.
7. When a worker dies its resources are free, what it owned or leased ends, and everybody is told; its actor ends or has
   another process (`lives`). A lost node is the death of all its workers.
8. What belongs to a placement group draws from the group's bundles (`groups`).
9. What no node could ever hold is refused while the cluster is fixed. What waits for long is explained, once.

Cost: an event looks at the workers, requests and nodes that it is about, and at the *distinct* demands that wait, but
never at all workers, nodes or requests: those are indexed (`FitIndex`, `Queue`, idle workers by node and environment).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlplat.runtime.core.resources import Resources
from rlplat.runtime.core.scheduler import views
from rlplat.runtime.core.scheduler.actors import ActorEntry, Actors, Intensity
from rlplat.runtime.core.scheduler.events import (
    Action,
    ActorEnded,
    ActorRequested,
    ActorSought,
    EnvFailed,
    Event,
    GroupRemoved,
    GroupRequested,
    GroupSought,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    NodeLost,
    NodeSuspected,
    Tell,
    TellDied,
    Tick,
    Turn,
    Warn,
    WorkerBlocked,
    WorkerLost,
    WorkerReady,
    WorkerUnblocked,
)
from rlplat.runtime.core.scheduler.groups import STRATEGIES, Group, why_never
from rlplat.runtime.core.scheduler.lives import ActorLives
from rlplat.runtime.core.scheduler.nodes import Placement, Worker
from rlplat.runtime.core.scheduler.placing import Placing
from rlplat.runtime.core.scheduler.queues import Queue, Request
from rlplat.runtime.core.scheduler.views import InUse
from rlplat.runtime.wire import messages
from rlplat.runtime.wire.values import ErrorInfo, GroupState, NodeState, Place, Shape

__all__ = ["InUse", "Intensity", "Scheduler"]

WARN_AFTER_S = 10.0


class Scheduler:
    def __init__(self, *, is_fixed: bool = True, intensity: Intensity | None = None) -> None:
        """is_fixed: no nodes will join but those that were here once, so what none of them can hold is refused."""
        self._is_fixed = is_fixed
        self._turn = Turn()
        self._actors = Actors(intensity or Intensity(), self._turn)
        self.placing = Placing(self._turn, is_fixed, self._actors.bury, self._watch)
        self._lives = ActorLives(self._turn, self.placing, self._actors)
        self._groups = self.placing.groups
        self._handlers: dict[type, Callable[[Any], None]] = {
            NodeJoined: self._on_node_joined,
            NodeSuspected: lambda event: self.placing.remove_node(event.node),
            NodeLost: self._on_node_lost,
            LeasesRequested: self._on_leases_requested,
            LeaseReturned: self._on_lease_returned,
            ActorRequested: self._lives.on_requested,
            ActorSought: self._lives.on_sought,
            ActorEnded: self._lives.on_ended,
            GroupRequested: self._on_group_requested,
            GroupSought: self._on_group_sought,
            GroupRemoved: self._on_group_removed,
            WorkerReady: self._on_worker_ready,
            WorkerLost: self._on_worker_lost,
            WorkerBlocked: self._on_worker_blocked,
            WorkerUnblocked: self._on_worker_unblocked,
            EnvFailed: self._on_env_failed,
            Tick: lambda _: self._turn.ask_for_next(),
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from `event`. `now`: any clock that never goes back."""
        actions = self._turn.begin(now)
        self._handlers[type(event)](event)
        return actions

    # ---------------------------------------------------------------- nodes

    def _on_node_joined(self, event: NodeJoined) -> None:
        if event.node not in self.placing.nodes:
            self.placing.add_node(event)

    def _on_node_lost(self, event: NodeLost) -> None:
        self.placing.remove_node(event.node)
        node = self.placing.leaving.pop(event.node, None)
        if node is None:
            return
        workers = list(node.workers.values())
        for worker in workers:
            del self.placing.workers[worker.id]
        queues = [*node.waiting.values(), *node.waiting_actors.values()]
        again = [placement for waiting in queues for placement in waiting]
        for placement in again:
            self.placing.withdraw(placement)
        for worker in workers:
            self._bury_worker(worker, f"its node {event.node} was lost: {event.reason}", "WorkerCrashed", False)
        for placement in again:
            self.placing.demand_again(placement)
        self.placing.reserve_groups()

    # ---------------------------------------------------------------- leases

    def _on_leases_requested(self, event: LeasesRequested) -> None:
        if event.count > 0 and self.placing.is_alive(event.client):
            self.placing.demand(Request(event.client, event.shape, event.count))

    def _on_lease_returned(self, event: LeaseReturned) -> None:
        worker = self.placing.workers.get(event.worker)
        if worker is not None and worker.state == "leased":
            assert worker.placement is not None
            if worker.placement.client == event.client:
                self.placing.let_go(worker, event.is_worn)

    def _on_env_failed(self, event: EnvFailed) -> None:
        env, placing = event.env, self.placing
        requests = [r for queue in placing.queues.values() if queue.shape.env == env for r in queue.requests]
        placements = [p for mine in placing.placing.values() for p in mine if p.shape.env == env]
        self._abandon(requests, placements, event.error)

    # ---------------------------------------------------------------- workers

    def _on_worker_ready(self, event: WorkerReady) -> None:
        worker = self.placing.workers.get(event.worker)
        if worker is not None and worker.state == "starting":
            self.placing.ready(worker)

    def _on_worker_blocked(self, event: WorkerBlocked) -> None:
        worker = self.placing.workers.get(event.worker)
        if worker is not None and worker.state in ("leased", "actor") and not worker.is_blocked:
            placement = worker.placement
            assert placement is not None
            worker.is_blocked = True
            cpus = placement.cpus()
            if cpus:
                placement.pool.lend(cpus)
                self.placing.freed(placement.pool)

    def _on_worker_unblocked(self, event: WorkerUnblocked) -> None:
        worker = self.placing.workers.get(event.worker)
        if worker is not None and worker.is_blocked:
            assert worker.placement is not None
            worker.is_blocked = False
            worker.placement.pool.lend(-worker.placement.cpus())

    def _on_worker_lost(self, event: WorkerLost) -> None:
        worker = self.placing.workers.pop(event.worker, None)
        if worker is not None:
            self._bury_worker(worker, event.reason, event.kind, True)

    def _bury_worker(self, worker: Worker, reason: str, kind: str, is_crash: bool) -> None:
        """It is gone (and out of the books): tell everybody, end what depends on it, give away what it held."""
        placing, node, placement, state, id = (
            self.placing,
            worker.node,
            worker.placement,
            worker.state,
            worker.id,
        )
        del node.workers[id]
        if state == "idle":
            node.remove_idle(worker)
        elif state == "starting":
            placing.note_failed_start(worker, reason)
        elif state == "leased":
            assert placement is not None
            placing.forget_lease(worker, placement)
        placing.release(worker)
        actor = placement.actor if placement is not None else None
        if actor is not None and actor.worker == id:
            delay_s = self._lives.lost_process(
                actor, f"{id} died: {reason}" if is_crash else f"{id} is gone: {reason}", is_crash
            )
        else:
            actor, delay_s = None, None
        self._client_lost(id, reason, actor is not None)
        self._turn.out.append(TellDied(id, reason, kind))
        if actor is not None and delay_s == 0:
            self._lives.restart(actor)
        if placement is not None:
            if state == "starting":
                self._start_over(placement)
            placing.freed(placement.pool)
        placing.start_missing(node, worker.env)

    def _start_over(self, placement: Placement) -> None:
        """The worker that started for it, with its GPUs, died before it was ready."""
        self.placing.has_worker(placement)
        node = placement.pool.node
        hold_until = node.hold_until.get(placement.shape.env, 0.0)
        if hold_until > self._turn.now and not node.is_lost:
            self._turn.wake_at(hold_until, self.placing.demand_again, placement)
        else:
            self.placing.demand_again(placement)

    def _client_lost(self, client: str, reason: str, was_actor: bool) -> None:
        """What it asked for, leased and created ends."""
        placing = self.placing
        for request in list(placing.asked.get(client, ())):
            if request.actor is None:
                placing.unqueue(request)
        for placement in list(placing.placing.get(client, ())):
            if placement.actor is None:
                placing.cancel(placement)
        for worker in list(placing.leases.get(client, ())):
            self._orphan(worker)
        why = f"its creator {client} died ({reason})"
        self._lives.creator_lost(client, why)
        if was_actor:  # groups of a task belong to the driver's job
            for group in list(self._groups.by_creator.get(client, ())):
                self._remove_group(group, why)

    def _orphan(self, worker: Worker) -> None:
        """Its client died. It may own what others need, so it ends as a surplus one does; what it held is free."""
        placement = worker.placement
        assert placement is not None
        self.placing.forget_lease(worker, placement)
        self.placing.release(worker)
        if worker.node.is_lost:
            worker.state = "dying"
        else:
            self.placing.retire(worker)
            self.placing.freed(placement.pool)

    # ---------------------------------------------------------------- placement groups

    def _on_group_requested(self, event: GroupRequested) -> None:
        if event.group in self._groups.by_id or not self.placing.is_alive(event.client):
            return
        group = Group(event)
        never = "" if event.bundles else "it has no bundles"
        if event.strategy not in STRATEGIES:
            never = f"there is no strategy {event.strategy!r}"
        if self._is_fixed and not never:
            never = why_never(group, self.placing.known.values())
        if never:
            text = f"placement group {event.name or event.group} ({event.strategy}) can never be reserved: {never}"
            error = ErrorInfo("InfeasibleResources", text)
            self._groups.refuse(group, error)
            self._turn.out.append(Tell(event.client, messages.GroupNews(event.group, error)))
            return
        self._groups.add(group)
        self.placing.reserve_groups()
        if group.state == "PENDING":
            self._turn.wake_at(self._turn.now + WARN_AFTER_S, self._explain_group, group)

    def _on_group_sought(self, event: GroupSought) -> None:
        group = self._groups.by_id.get(event.group)
        if group is None:
            error = ErrorInfo("PlacementGroupRemoved", f"placement group {event.group} is not known here")
            self._turn.out.append(Tell(event.client, messages.GroupNews(event.group, error)))
        elif group.error is not None or group.state == "CREATED":
            self._turn.out.append(Tell(event.client, messages.GroupNews(event.group, group.error)))
        else:
            group.seekers.add(event.client)

    def _on_group_removed(self, event: GroupRemoved) -> None:
        group = self._groups.by_id.get(event.group)
        if group is not None and group.error is None:
            self._remove_group(group, "remove_placement_group was called")

    def _remove_group(self, group: Group, why: str) -> None:
        text = f"placement group {group.name or group.id} was removed: {why}"
        error = ErrorInfo("PlacementGroupRemoved", text)
        users = [placement for pool in group.pools if pool is not None for placement in pool.users]
        requests = [request for queue in group.waiting for request in queue.requests]
        pools = self._groups.remove(group, error)
        for client in sorted(group.seekers):
            self._turn.out.append(Tell(client, messages.GroupNews(group.id, error)))
        self._abandon(requests, users, error)
        for shape in [shape for shape in self.placing.queues if shape.group == group.id]:
            del self.placing.queues[shape]
        for pool in pools:
            self.placing.freed(pool)

    def _abandon(self, requests: list[Request], placements: list[Placement], error: ErrorInfo) -> None:
        """None of these will be granted, and what was is taken away."""
        placing = self.placing
        refused: dict[tuple[str, Shape], None] = {}
        for request in requests:
            if request.queue is not None:
                placing.unqueue(request)
            if request.actor is not None:
                self._lives.end_with(request.actor, error)
            else:
                refused[request.client, request.shape] = None
        for placement in placements:
            worker, actor = placement.worker, placement.actor
            if actor is not None:
                self._lives.end_with(actor, error)
            elif worker is None or worker.state == "starting":
                placing.cancel(placement)
                refused[placement.client, placement.shape] = None
            elif worker.state == "leased":
                placing.kill(worker, error.message)
        for client, shape in refused:
            self._turn.out.append(Tell(client, messages.LeasesRefused(shape, error)))

    # ---------------------------------------------------------------- waiting too long

    def _watch(self, queue: Queue) -> None:
        if not queue.is_watched:
            queue.is_watched = True
            self._turn.wake_at(self._turn.now + WARN_AFTER_S, self._explain, queue)

    def _explain(self, queue: Queue) -> None:
        """Say once what a queue waits for that has not moved for long."""
        now = self._turn.now
        if not queue.requests:
            queue.is_watched = queue.is_warned = False
            return
        starving = [request for request in queue.requests if not self.placing.is_served(request)]
        if not starving:  # they go on, with fewer workers than they would like
            queue.moved_at, queue.is_warned = now, False
        since_s = now - queue.moved_at
        if since_s >= WARN_AFTER_S - 1e-6 and not queue.is_warned:
            queue.is_warned = True
            why = views.why_waiting(self.placing, queue)
            self._turn.out.append(Warn(f"{views.waiter(queue, starving)} has waited for {since_s:.0f} s: {why}"))
        self._turn.wake_at((now if queue.is_warned else queue.moved_at) + WARN_AFTER_S, self._explain, queue)

    def _explain_group(self, group: Group) -> None:
        if group.state == "PENDING":
            never = why_never(group, self.placing.known.values())
            why = never or f"too much is in use; {views.free_text(self.placing)}"
            self._turn.out.append(Warn(f"placement group {group.name or group.id} waits to be reserved: {why}"))

    # ---------------------------------------------------------------- questions

    @property
    def available(self) -> Resources:
        return views.available(self.placing)

    @property
    def total(self) -> Resources:
        return views.total(self.placing)

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
        entry = self.placing.workers.get(worker)
        placement = entry.placement if entry is not None else None
        return worker if placement is None or placement.actor is None else placement.actor.info.class_name

    def in_use(self) -> dict[str, InUse]:
        """Workers that are leased or an actor."""
        return views.in_use(self.placing)

    def view(self) -> dict[str, Any]:
        """All of it as plain data."""
        return views.view(self.placing, self.actors)

    def place_of(self, client: str) -> Place:
        return views.place_of(self.placing, client)

    def node_states(self) -> list[NodeState]:
        return views.node_states(self.placing)

    def group_states(self) -> list[GroupState]:
        return views.group_states(self.placing)
