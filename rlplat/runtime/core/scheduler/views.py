"""Answers about what a scheduler holds, as plain data or in words: on request only, for they look at everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlplat.runtime.core.resources import Resources, exact
from rlplat.runtime.core.scheduler.nodes import Pool
from rlplat.runtime.core.scheduler.queues import Queue, Request
from rlplat.runtime.wire.values import GroupState, NodeState, Place

if TYPE_CHECKING:
    from rlplat.runtime.core.scheduler.actors import ActorEntry
    from rlplat.runtime.core.scheduler.placing import Placing


@dataclass(frozen=True)
class InUse:
    """A worker that runs somebody's tasks or is an actor, as the watchers of hangs and memory need to know it."""

    name: str
    is_actor: bool
    can_run_again: bool
    """Its tasks have retries, or the actor restarts."""
    memory: int
    """Bytes that it may hold; 0: no limit of its own."""


def available(placing: Placing) -> Resources:
    """What is free in all (less than nothing while workers that lent their CPUs are back) and not reserved."""
    return _summed(node.free for node in placing.nodes.values())


def total(placing: Placing) -> Resources:
    return _summed(node.total for node in placing.nodes.values())


def _summed(parts: Iterable[Resources]) -> Resources:
    whole: Resources = {}
    for part in parts:
        for name, amount in part.items():
            whole[name] = exact(whole.get(name, 0.0) + amount)
    return whole


def in_use(placing: Placing) -> dict[str, InUse]:
    """Workers that are leased or an actor."""
    found = {}
    for id, worker in placing.workers.items():
        placement = worker.placement
        if placement is not None and worker.state in ("leased", "actor"):
            actor, shape = placement.actor, placement.shape
            can = shape.can_retry if actor is None else actor.may_restart()
            found[id] = InUse(id if actor is None else actor.info.class_name, actor is not None, can, shape.memory)
    return found


def place_of(placing: Placing, client: str) -> Place:
    """Where a client runs, and with what."""
    worker = placing.workers.get(client)
    if worker is None or worker.placement is None:
        home = placing.node_of(client)
        return Place("" if home is None else home.name)
    placement = worker.placement
    group = placement.pool.group
    bundle = group.pools.index(placement.pool) if group is not None and placement.pool in group.pools else -1
    actor, node = placement.actor, worker.node.name
    if actor is None:
        return Place(node, placement.shape, bundle=bundle)
    return Place(
        node,
        placement.shape,
        actor.id,
        bundle,
        actor.name,
        actor.incarnation,
        actor.info,
        actor.is_detached,
    )


def node_states(placing: Placing) -> list[NodeState]:
    states = [
        NodeState(name, True, dict(node.total), dict(node.free), *placing.where[name])
        for name, node in placing.nodes.items()
    ]
    gone = [name for name in placing.known if name not in placing.nodes]
    return states + [NodeState(name, False, dict(placing.known[name]), {}, *placing.where[name]) for name in gone]


def group_states(placing: Placing) -> list[GroupState]:
    return [
        GroupState(
            group.id,
            group.name,
            group.strategy,
            group.state,
            [dict(bundle) for bundle in group.bundles],
            ["" if pool is None else pool.node.name for pool in group.pools],
        )
        for group in placing.groups.by_id.values()
    ]


def view(placing: Placing, actors: Mapping[str, ActorEntry]) -> dict[str, Any]:
    """Everything that `rlplat status` and `rlplat list` show of this."""
    return {
        "total": total(placing),
        "available": available(placing),
        "nodes": [
            {
                "node": state.node,
                "state": "alive" if state.is_alive else "dead",
                "machine": state.hostname,
                "address": state.address,
                "total": state.total,
                "available": state.available,
            }
            for state in node_states(placing)
        ],
        "workers": _view_workers(placing),
        "actors": [
            {
                "actor": id,
                "class": entry.info.class_name,
                "name": entry.name,
                "namespace": entry.namespace,
                "state": {"PENDING_CREATION": "pending"}.get(entry.state(), entry.state().lower()),
                "worker": entry.worker,
                "client": entry.client,
                "resources": dict(entry.shape.demand),
                "restarts": entry.num_restarts,
                "is_detached": entry.is_detached,
                "reason": "" if entry.error is None else entry.error.message,
            }
            for id, entry in actors.items()
        ],
        "demands": _view_demands(placing),
        "placement_groups": [
            {
                "group": group.group,
                "name": group.name,
                "state": {"CREATED": "ready"}.get(group.state, group.state.lower()),
                "strategy": group.strategy,
                "bundles": group.bundles,
                "nodes": group.nodes,
                "client": placing.groups.by_id[group.group].client,
            }
            for group in group_states(placing)
        ],
    }


def _view_workers(placing: Placing) -> list[dict[str, Any]]:
    rows = []
    for id, worker in placing.workers.items():
        placement = worker.placement
        actor = None if placement is None else placement.actor
        rows.append(
            {
                "worker": id,
                "node": worker.node.name,
                "state": worker.state,
                "client": "" if placement is None else placement.client,
                "actor": "" if actor is None else actor.id,
                "resources": {} if placement is None else dict(placement.shape.demand),
                "gpu_ids": list(worker.gpu_ids),
                "is_blocked": worker.is_blocked,
                "env": worker.env,
            }
        )
    return rows


def _view_demands(placing: Placing) -> list[dict[str, Any]]:
    """What waits, equal ones counted."""
    rows: dict[Any, dict[str, Any]] = {}

    def count(client: str, actor: str, demand: Any, num: int, reason: str) -> None:
        key = (client, actor, demand, reason)
        kind = "actor" if actor else "task"
        row = {
            "client": client,
            "kind": kind,
            "actor": actor,
            "resources": dict(demand),
            "count": 0,
            "reason": reason,
        }
        rows.setdefault(key, row)["count"] += num

    for queue in placing.queues.values():
        if queue.requests:
            reason = why_waiting(placing, queue)
            for request in queue.requests:
                actor = "" if request.actor is None else request.actor.id
                count(request.client, actor, queue.shape.demand, request.count, reason)
    for waiting in placing.placing.values():
        for placement in waiting:
            actor = "" if placement.actor is None else placement.actor.id
            count(placement.client, actor, placement.shape.demand, 1, "waits for a worker process to start")
    free = free_text(placing)
    groups = [
        {
            "client": group.client,
            "kind": "group",
            "actor": "",
            "resources": {},
            "count": 1,
            "reason": f"placement group {group.name or group.id} waits for {len(group.bundles)} bundles: {free}",
        }
        for group in placing.groups.pending
    ]
    return [*rows.values(), *groups]


# ---------------------------------------------------------------- in words


def why_waiting(placing: Placing, queue: Queue) -> str:
    """Which resource is short, and who has it."""
    shape = queue.shape
    group = placing.groups.by_id.get(shape.group)
    if group is not None and group.state != "CREATED":
        return f"placement group {group.id} itself waits for its resources"
    if not queue.is_feasible:
        return placing.infeasible(shape).message
    pools: list[Pool] = list(placing.nodes.values())
    if group is not None:
        pools = [p for number, p in enumerate(group.pools) if p is not None and shape.bundle in (-1, number)]
    short = sorted({name for name, amount in shape.demand for p in pools if p.free.get(name, 0) < amount})
    holders: dict[str, int] = {}
    for worker in placing.workers.values():
        placement = worker.placement
        if placement is not None and any(name in short for name, _ in placement.shape.demand):
            actor = placement.actor
            who = f"tasks of {placement.client}" if actor is None else actor.info.class_name
            holders[who] = holders.get(who, 0) + 1
    have = ", ".join(f"{who} x {num}" for who, num in sorted(holders.items(), key=lambda h: -h[1])[:5])
    reserved = sum(len(node.bundles) for node in placing.nodes.values())
    if reserved and group is None:
        have += f"{' and ' if have else ''}{reserved} bundles of placement groups"
    what = " and ".join(short) or "what it needs"
    return f"{what} is in use{f' by {have}' if have else ''}; {free_text(placing)}"


def free_text(placing: Placing) -> str:
    parts = []
    for node in list(placing.nodes.values())[:4]:
        free = [f"{node.free[name]:g} of {amount:g} {name}" for name, amount in node.total.items() if amount]
        parts.append(f"free on {node.name}: {', '.join(free) or 'nothing'}")
    return "; ".join(parts) or "there is no node"


def waiter(queue: Queue, requests: list[Request]) -> str:
    """Who waits in a queue, in words."""
    request = requests[0]
    num = sum(request.count for request in requests)
    who = f"a task of {request.client}" if request.actor is None else f"actor {request.actor.info.class_name}"
    return f"{who} that needs {dict(queue.shape.demand)}" + (f" (and {num - 1} like it)" if num > 1 else "")
