"""What must hold of the runtime's pure parts after every event: it looks at everything."""

from __future__ import annotations

from rlplat.runtime.core.owner.actor_calls import WINDOW, ActorCalls, seq_of
from rlplat.runtime.core.owner.book import Book
from rlplat.runtime.core.owner.lineage import Lineage
from rlplat.runtime.core.scheduler.actors import Actors
from rlplat.runtime.core.scheduler.groups import Groups
from rlplat.runtime.core.scheduler.nodes import Node, Placement, Pool, Worker
from rlplat.runtime.core.scheduler.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
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
    _check_entries(scheduler._actors)
    _check_groups(scheduler.placing.groups)
    _check_actors(scheduler)


def _placements(scheduler: Scheduler) -> list[Placement]:
    nodes = (*scheduler.placing.nodes.values(), *scheduler.placing.leaving.values())
    queues = [queue for node in nodes for queue in (*node.waiting.values(), *node.waiting_actors.values())]
    waiting = [placement for queue in queues for placement in queue]
    having = [worker.placement for worker in scheduler.placing.workers.values() if worker.placement is not None]
    assert len(set(map(id, [*waiting, *having]))) == len(waiting) + len(having), "a placement is in two places"
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
    on_gpus = node.idle_on_gpus
    assert all(worker.gpu_ids == ids and not worker.is_fresh for ids, worker in on_gpus.items())
    assert len({gpu for ids in on_gpus for gpu in ids}) == sum(map(len, on_gpus)), "two idle workers hold one GPU"
    assert {*idle, *on_gpus.values()} == set(by_state.get("idle", ())), "the lists of idle workers are not they"
    assert all(worker.placement is None for worker in by_state.get("idle", ()))
    assert not any(worker.gpu_ids for worker in idle)
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
        assert waits == (placement in scheduler.placing.placing.get(placement.client, ())), "who waits for a worker"
    assert len(waiting) == sum(p.worker is None or p.worker.state == "starting" for p in placements)
    for client, leased in scheduler.placing.leases.items():
        assert leased, "an empty list of leases is kept"
        for worker in leased:
            assert worker.state == "leased" and worker.placement is not None
            assert worker.placement.client == client and scheduler.placing.workers.get(worker.id) is worker
    num_leased = sum(worker.state == "leased" for worker in scheduler.placing.workers.values())
    assert num_leased == sum(map(len, scheduler.placing.leases.values())), "a lease is nobody's"
    nodes = (*scheduler.placing.nodes.values(), *scheduler.placing.leaving.values())
    of_nodes = sum(len(node.workers) for node in nodes)
    assert of_nodes == len(scheduler.placing.workers), "a worker is on no node, or on two"


def _check_queues(scheduler: Scheduler) -> None:
    queued = []
    for shape, queue in scheduler.placing.queues.items():
        assert queue.shape == shape
        group = scheduler.placing.groups.by_id.get(shape.group)
        assert bool(queue.requests) == (queue in (scheduler.placing.waiting if group is None else group.waiting))
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


def _check_entries(actors: Actors) -> None:
    for id, entry in actors.entries.items():
        assert entry.id == id
        places = (bool(entry.worker), entry.request is not None, entry.placement is not None)
        assert sum(places) <= 1, f"actor {id} is in several places: {places}"
        if entry.error is not None:
            assert not sum(places) and not entry.seekers, f"actor {id} is gone and yet somewhere"
        assert 0 <= entry.num_restarts <= max(entry.max_restarts, 0) or entry.max_restarts < 0
        assert entry.incarnation == entry.num_restarts + 1
        for client in entry.seekers:
            assert id in actors._sought_by[client]
        if entry.error is None and not entry.is_detached:
            assert id in actors._by_creator[entry.client]
    for (namespace, name), id in actors.by_name.items():
        entry = actors.entries[id]
        assert (entry.namespace, entry.name) == (namespace, name) and entry.error is None
    for client, sought in actors._sought_by.items():
        assert all(client in actors.entries[id].seekers for id in sought)


def _check_groups(groups: Groups) -> None:
    for id, group in groups.by_id.items():
        assert group.id == id
        has_all = bool(group.pools) and all(pool is not None for pool in group.pools)
        assert (group.state == "CREATED") == has_all and (group in groups.pending) == (
            group.state in ("PENDING", "RESCHEDULING")
        ), (id, group.state)
        nodes = [pool.node for pool in group.pools if pool is not None]
        if group.strategy == "STRICT_PACK":
            assert len(set(nodes)) <= 1, f"{id} is on several nodes"
        elif group.strategy == "STRICT_SPREAD":
            assert len(set(nodes)) == len(nodes), f"{id} has two bundles on one node"
        assert group.error is None or group.state == "REMOVED"
        for queue in group.waiting:
            assert queue.requests
            head = next(iter(queue.requests))
            assert group.find(head.shape) is None, f"{head.shape} waits although {id} has room"


def check_book(book: Book) -> None:
    for id, entry in book.entries.items():
        assert entry.id == id
        assert entry.num_refs >= 0
        is_needed = entry.num_refs or entry.borrowers or entry.value is None or entry.call is not None
        assert is_needed, f"object {id} is needed by nobody"


def check_lineage(lineage: Lineage) -> None:
    assert lineage.num_bytes == sum(recipe.num_bytes for recipe in lineage.recipes.values())
    assert lineage._by_output == {id: recipe for recipe in lineage.recipes.values() for id in recipe.ids}
    for recipe in lineage.recipes.values():
        dependents = sum(recipe in other.producers for other in lineage.recipes.values())
        assert recipe.num_dependents == dependents
        assert recipe.live or dependents, f"{recipe.name} is kept for nobody"


def check_calls(calls: ActorCalls) -> None:
    assert calls.worker is None or calls.gone is None
    in_flight = [] if calls.lease is None else list(calls.lease.in_flight.values())
    assert calls.gone is None or not (calls.queue or in_flight)
    assert all(record.lease is calls.lease for record in in_flight), "calls are running to nowhere"
    numbers = [seq_of(record) for record in (*in_flight, *calls.queue) if seq_of(record)]
    assert numbers == sorted(numbers), "calls have overtaken each other"
    assert sum(map(bool, map(seq_of, in_flight))) <= WINDOW
