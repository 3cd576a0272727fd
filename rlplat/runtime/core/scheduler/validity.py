"""What must hold of a `Scheduler` after every event (R23). For tests and the simulator: it looks at everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplat.runtime.core.scheduler.nodes import Node, Placement, Pool, Worker

if TYPE_CHECKING:
    from rlplat.runtime.core.scheduler.scheduler import Scheduler


def check_valid(scheduler: Scheduler) -> None:
    placements = _placements(scheduler)
    drawn: dict[Pool, list[Placement]] = {}
    for placement in placements:
        pool = placement.pool
        drawn.setdefault(pool.node if pool.is_closed else pool, []).append(placement)
    for name, node in scheduler.placing.nodes.items():
        assert node.name == name and not node.is_lost
        bundles = list(node.bundles)
        _check_pool(node, drawn.get(node, []), bundles)
        for bundle in bundles:
            mine = drawn.get(bundle, [])
            _check_pool(bundle, mine, [])
            assert set(bundle.users) == set(mine), f"who draws from a bundle of {bundle.group.id}"
            assert bundle in bundle.group.pools and not bundle.is_closed
        _check_workers(node)
    _check_placements(scheduler, placements)
    _check_queues(scheduler)
    scheduler._actors.check_valid()
    scheduler.placing.groups.check_valid()
    _check_actors(scheduler)


def _placements(scheduler: Scheduler) -> list[Placement]:
    nodes = scheduler.placing.nodes.values()
    queues = [queue for node in nodes for queue in (*node.waiting.values(), *node.waiting_actors.values())]
    waiting = [placement for queue in queues for placement in queue]
    having = [
        worker.placement for worker in scheduler.placing.workers.values() if worker.placement is not None
    ]
    assert len(set(map(id, [*waiting, *having]))) == len(waiting) + len(having), (
        "a placement is in two places"
    )
    return [*waiting, *having]


def _check_pool(pool: Pool, placements: list[Placement], bundles: list[Pool]) -> None:
    """used + free = total, for each resource and each GPU."""
    used = dict.fromkeys(pool.total, 0.0)
    shares = dict.fromkeys(pool.shares, 0.0)
    for placement in placements:
        is_blocked = placement.worker is not None and placement.worker.is_blocked
        for name, amount in placement.shape.demand:
            if not (name == "CPU" and is_blocked):
                used[name] += amount
        for gpu, share in placement.shares.items():
            shares[gpu] += share
    for bundle in bundles:
        for name, amount in bundle.total.items():
            used[name] += amount
        for gpu, share in bundle.shares.items():
            shares[gpu] += share
    for name, amount in pool.total.items():
        assert abs(used[name] + pool.free[name] - amount) < 1e-6, (name, used, pool.free, pool.total)
        assert name == "CPU" or pool.free[name] > -1e-6, f"{name} is overdrawn: {pool.free}"
    for gpu, share in pool.shares.items():
        left = pool.gpus.left[gpu]
        assert abs(shares[gpu] + left - share) < 1e-6 and left > -1e-6, (gpu, shares, pool.gpus.left)


def _check_workers(node: Node) -> None:
    by_state: dict[str, list[Worker]] = {}
    for id, worker in node.workers.items():
        assert worker.id == id and worker.node is node
        by_state.setdefault(worker.state, []).append(worker)
        assert (worker.state in ("leased", "actor")) <= (worker.placement is not None), worker.state
        assert worker.placement is None or worker.placement.worker is worker
    idle = [worker for workers in (*node.idle.values(), *node.fresh.values()) for worker in workers]
    assert len(idle) == len(set(idle)) == node.num_idle, "an idle worker is listed twice, or not counted"
    assert set(idle) == set(by_state.get("idle", ())), "the list of idle workers is not the idle workers"
    assert all(worker.placement is None for worker in idle)
    for kept, is_fresh in ((node.idle, False), (node.fresh, True)):
        for env, workers in kept.items():
            assert all(worker.env == env and worker.is_fresh == is_fresh for worker in workers)
            waiters = [*node.waiting.get(env, ()), *(node.waiting_actors.get(env, ()) if is_fresh else ())]
            assert not workers or not waiters, f"somebody waits for a worker with {env!r}, and one is idle"
    unbound = [worker.env for worker in by_state.get("starting", ()) if worker.placement is None]
    assert all(unbound.count(env) == num for env, num in node.starting.items()), (unbound, node.starting)


def _check_placements(scheduler: Scheduler, placements: list[Placement]) -> None:
    waiting = [p for mine in scheduler.placing.placing.values() for p in mine]
    for placement in placements:
        worker = placement.worker
        waits = worker is None or worker.state == "starting"
        assert waits == (placement in scheduler.placing.placing.get(placement.client, ())), (
            "who waits for a worker"
        )
    assert len(waiting) == sum(p.worker is None or p.worker.state == "starting" for p in placements)
    for client, leased in scheduler.placing.leases.items():
        assert leased, "an empty list of leases is kept"
        for worker in leased:
            assert worker.state == "leased" and worker.placement is not None
            assert worker.placement.client == client and scheduler.placing.workers.get(worker.id) is worker
    num_leased = sum(worker.state == "leased" for worker in scheduler.placing.workers.values())
    assert num_leased == sum(map(len, scheduler.placing.leases.values())), "a lease is nobody's"
    of_nodes = sum(len(node.workers) for node in scheduler.placing.nodes.values())
    assert of_nodes == len(scheduler.placing.workers), "a worker is on no node, or on two"


def _check_queues(scheduler: Scheduler) -> None:
    queued = []
    for shape, queue in scheduler.placing.queues.items():
        assert queue.shape == shape
        group = scheduler.placing.groups.by_id.get(shape.group)
        assert bool(queue.requests) == (
            queue in (scheduler.placing.waiting if group is None else group.waiting)
        )
        seqs = [request.seq for request in queue.requests]
        assert seqs == sorted(seqs), "a queue is out of order"
        for request in queue.requests:
            assert request.queue is queue and request.count > 0 and request.shape == shape
            assert request in scheduler.placing.asked[request.client]
            queued.append(request)
        if queue.requests and group is None:
            for node in scheduler.placing.nodes.values():
                assert not queue.fits(node), f"{shape} waits although {node.name} has room"
    assert len(queued) == sum(map(len, scheduler.placing.asked.values())), "a request is in no queue"
    assert all(scheduler.placing.asked.values()), "an empty list of requests is kept"


def _check_actors(scheduler: Scheduler) -> None:
    """One active incarnation of each actor, and it is where its entry says."""
    active = {}
    for id, worker in scheduler.placing.workers.items():
        if worker.state == "actor":
            assert worker.placement is not None and worker.placement.actor is not None
            actor = worker.placement.actor
            assert actor.id not in active, f"actor {actor.id} is active twice"
            active[actor.id] = id
            assert actor.worker == id and actor.error is None
    for actor in scheduler.actors.values():
        assert not actor.worker or active.get(actor.id) == actor.worker
