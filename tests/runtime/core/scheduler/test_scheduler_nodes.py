"""Many nodes: where demands go, what a lost node means, what waits and what is refused."""

from __future__ import annotations

from rlplat.runtime.core.scheduler.events import (
    EnvFailed,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    StartWorker,
    TellDied,
    Tick,
    WakeAt,
    Warn,
    WorkerBlocked,
    WorkerLost,
    WorkerReady,
)
from rlplat.runtime.core.scheduler.scheduler import Scheduler
from rlplat.runtime.wire.messages import ActorGone, Granted, LeasesRefused, Placed
from rlplat.runtime.wire.values import ErrorInfo
from tests.runtime.core.scheduler.scheduler_house import CPU, GPU, Cluster, of, shape
from tests.runtime.core.validity import check_scheduler


def test_a_demand_goes_to_the_clients_own_node_first() -> None:
    house = Cluster(2, 2, 2)
    (first,) = house.lease("driver")
    assert house.node_of[first] == "n0"
    (_, there) = house.lease("driver", count=2)
    mine = house.lease(there)
    assert house.node_of[mine[0]] == house.node_of[there] != "n0"


def test_nodes_fill_one_after_the_other() -> None:
    house = Cluster(1, 4, 4)
    workers = house.lease(count=6)
    used = [house.node_of[worker] for worker in workers]
    assert used[0] == "n0"
    assert len(set(used[1:5])) == 1
    assert sorted(map(used.count, set(used))) == [1, 1, 4]


def test_spread_takes_the_nodes_in_turn() -> None:
    house = Cluster(4, 4, 4)
    used = [house.node_of[worker] for worker in house.lease(what=shape(strategy="SPREAD", CPU=1.0), count=6)]
    assert sorted(used[:3]) == sorted(used[3:]) == ["n0", "n1", "n2"]


def test_a_node_can_be_demanded() -> None:
    house = Cluster(1, 1)
    hard, soft = shape(strategy="node:n1", CPU=1.0), shape(strategy="node?:n1", CPU=1.0)
    (worker,) = house.lease(what=hard)
    assert house.node_of[worker] == "n1"
    assert house.lease("other", hard) == []  # n0 has room, but it is not n1
    (elsewhere,) = house.lease(what=soft)
    assert house.node_of[elsewhere] == "n0"
    (granted,) = of(Granted, house.tell(LeaseReturned("driver", worker)))
    assert (granted.client, house.node_of[granted.worker]) == ("other", "n1")
    (refused,) = of(LeasesRefused, house.tell(LeasesRequested("driver", shape(strategy="node:n7", CPU=1.0), 1)))
    assert "n7" in refused.error.message


def test_a_demand_waits_for_whichever_node_has_room_first() -> None:
    house = Cluster(1, 2)
    workers = house.lease("a", count=3)
    assert house.lease("b", shape(CPU=2.0)) == []
    on_n1 = [worker for worker in workers if house.node_of[worker] == "n1"]
    assert of(Granted, house.tell(LeaseReturned("a", on_n1[0]))) == []
    (granted,) = of(Granted, house.tell(LeaseReturned("a", on_n1[1])))
    assert (granted.client, house.node_of[granted.worker]) == ("b", "n1")


def test_a_node_that_joins_is_used_at_once() -> None:
    house = Cluster(1)
    house.lease(count=3)
    granted = of(Granted, house.tell(NodeJoined("n9", {"CPU": 8.0}, 0)))
    assert len(granted) == 2
    assert {house.node_of[action.worker] for action in granted} == {"n9"}
    assert house.tell(NodeJoined("n9", {"CPU": 100.0}, 0)) == []  # told twice


def test_a_lost_node_is_the_death_of_all_its_workers() -> None:
    house = Cluster(1, 2)
    (_, leased, client) = house.lease("driver", count=3)
    (elsewhere,) = house.lease(client, shape())  # on the node that will be lost
    assert {house.node_of[worker] for worker in (leased, client, elsewhere)} == {"n1"}
    told = {action.worker for action in of(TellDied, house.lose_node("n1"))}
    assert told == {leased, client, elsewhere}
    assert house.scheduler.available["CPU"] == 0
    assert [state.is_alive for state in house.scheduler.node_states()] == [True, False]
    house.tell(NodeJoined("n1", {"CPU": 2.0}, 0))
    assert house.scheduler.available["CPU"] == 2


def test_what_only_a_lost_node_could_hold_waits_for_it() -> None:
    house = Cluster(1, 4)
    big = shape(CPU=4.0)
    house.lose_node("n1")
    assert house.tell(LeasesRequested("driver", big, 1)) == []
    assert len(of(Granted, house.tell(NodeJoined("n1", {"CPU": 4.0}, 0)))) == 1


def test_what_no_node_could_ever_hold_is_refused_although_all_together_could() -> None:
    house = Cluster(2, 2)
    (refused,) = of(LeasesRefused, house.tell(LeasesRequested("driver", shape(CPU=3.0), 2)))
    assert refused.error.kind == "InfeasibleResources"
    assert "n0 has" in refused.error.message
    (gone,) = of(ActorGone, house.actor("driver:1", what=shape(CPU=3.0)))
    assert gone.error.kind == "InfeasibleResources"


def test_in_a_cluster_that_may_grow_it_waits_and_is_explained() -> None:
    house = Cluster(2, is_fixed=False)
    assert house.tell(LeasesRequested("driver", shape(CPU=3.0), 2)) == []
    house.pass_time(60)
    (warning,) = house.warnings  # once
    assert "no node has room for {'CPU': 3.0}" in warning
    assert len(of(Granted, house.tell(NodeJoined("n1", {"CPU": 6.0}, 0)))) == 2


def test_what_waits_for_long_is_explained_once_with_who_holds_it() -> None:
    house = Cluster(2)
    house.placed("driver:1", what=shape(CPU=2.0))
    house.lease("a", count=3)
    house.pass_time(9)
    assert house.warnings == []
    house.pass_time(60)
    (warning,) = house.warnings
    assert "a task of a that needs {'CPU': 1.0} (and 2 like it)" in warning
    assert "CPU is in use by Class x 1" in warning
    assert "0 of 2 CPU" in warning


def test_a_queue_that_moves_is_not_complained_about() -> None:
    house = Cluster(1)
    (worker,) = house.lease("a", count=20)
    for _ in range(10):
        house.pass_time(5)
        (granted,) = of(Granted, house.tell(LeaseReturned("a", worker)))
        worker = granted.worker
    assert house.warnings == []


def test_tasks_that_stream_through_fewer_workers_than_they_would_like_cause_no_alarm() -> None:
    house = Cluster(2)
    house.placed("driver:1", what=CPU)
    assert len(house.lease("driver", count=2)) == 1
    house.pass_time(60)
    assert house.warnings == []
    assert house.lease("other") == []  # this one has none at all, and says so
    house.pass_time(25)
    (warning,) = house.warnings
    assert warning.startswith("a task of other that needs {'CPU': 1.0} has waited for ")
    assert "CPU is in use by " in warning and "tasks of driver x 1" in warning


# ---------------------------------------------------------------- workers


def test_workers_are_shared_within_an_environment_only() -> None:
    house = Cluster(4)
    (plain,) = house.lease("a")
    house.tell(LeaseReturned("a", plain))
    (other,) = house.lease("a", shape(env="e1", CPU=1.0))
    assert other != plain
    house.tell(LeaseReturned("a", other))
    assert house.lease("a", shape(env="e1", CPU=1.0)) == [other]
    assert house.lease("a") == [plain]


def test_a_worker_is_started_with_its_environment_and_memory_limit() -> None:
    scheduler = Scheduler()
    scheduler.handle(NodeJoined("n0", {"CPU": 1.0}, 0), 0.0)
    wanted = shape(env="e1", CPU=1.0)
    limited = type(wanted)(wanted.demand, 2**30, "e1")
    (start,) = of(StartWorker, scheduler.handle(LeasesRequested("a", limited, 1), 0.0))
    assert (start.env, start.memory, start.node) == ("e1", 2**30, "n0")
    scheduler.handle(WorkerReady(start.worker), 0.0)
    assert scheduler.in_use()[start.worker].memory == 2**30


def test_an_environment_that_cannot_be_made_fails_what_waits_for_it() -> None:
    scheduler = Scheduler()
    scheduler.handle(NodeJoined("n0", {"CPU": 2.0}, 0), 0.0)
    broken = shape(env="e1", CPU=1.0)
    scheduler.handle(LeasesRequested("a", broken, 5), 0.0)
    out = scheduler.handle(EnvFailed("e1", ErrorInfo("RuntimeEnvFailed", "no such package")), 0.0)
    assert [(action.client, action.error.kind) for action in of(LeasesRefused, out)] == [("a", "RuntimeEnvFailed")]
    check_scheduler(scheduler)
    assert scheduler.available["CPU"] == 2


def test_actors_get_workers_that_have_run_nothing() -> None:
    house = Cluster(2)
    (used,) = house.lease("a")
    house.tell(LeaseReturned("a", used))
    assert house.placed("driver:1") != used
    assert house.lease("a") == [used]


def test_workers_that_die_before_they_are_ready_are_started_ever_more_slowly() -> None:
    scheduler = Scheduler()
    out = scheduler.handle(NodeJoined("n0", {"CPU": 1.0}, 1), 0.0)
    starts, warnings, now = 0, 0, 0.0
    while now < 60:
        for action in out:
            if isinstance(action, WakeAt):
                wake_at = action.time
        started = of(StartWorker, out)
        starts, warnings = starts + len(started), warnings + len(of(Warn, out))
        if started:
            out = scheduler.handle(WorkerLost(started[0].worker, "no memory"), now)
        else:
            now = wake_at
            out = scheduler.handle(Tick(), now)
    assert 5 < starts < 30
    assert warnings == 1
    (last,) = of(StartWorker, out)
    scheduler.handle(WorkerReady(last.worker), now)
    assert of(Granted, scheduler.handle(LeasesRequested("a", CPU, 1), now))


def test_gpus_that_are_free_in_bits_are_not_a_free_gpu() -> None:
    house = Cluster(8, gpus=3)
    bits = [house.lease("a", shape(GPU=0.6))[0] for _ in range(3)]
    assert house.scheduler.available["GPU"] > 1
    assert house.lease("b", GPU) == []
    assert house.lease("c", shape(GPU=0.5)) == []
    granted = of(Granted, house.tell(LeaseReturned("a", bits[1])))
    assert [(action.client, house.gpus[action.worker]) for action in granted] == [("b", house.gpus[bits[1]])]


def test_a_blocked_worker_of_another_node_lends_its_cpu_there() -> None:
    house = Cluster(1, 1)
    workers = {house.node_of[worker]: worker for worker in house.lease(count=2)}
    house.lease("b")
    (granted,) = of(Granted, house.tell(WorkerBlocked(workers["n1"])))
    assert house.node_of[granted.worker] == "n1"


def test_a_thousand_waiting_clients_are_served_in_order_and_the_dead_are_skipped() -> None:
    house = Cluster(1)
    (client,) = house.lease()
    house.tell(LeasesRequested("d0", CPU, 1))
    house.tell(LeasesRequested(client, CPU, 700))
    for number in range(1, 1000):
        house.scheduler.handle(LeasesRequested(f"d{number}", CPU, 1), 0.0)
    granted = of(Granted, house.lose(client))
    served = []
    while granted:
        served += [action.client for action in granted]
        returned = LeaseReturned(granted[-1].client, granted[-1].worker)
        granted = of(Granted, house.scheduler.handle(returned, 0.0))
    assert served == [f"d{number}" for number in range(1000)]
    check_scheduler(house.scheduler)


def test_a_seeker_on_any_node_hears_where_an_actor_is() -> None:
    house = Cluster(1, 1)
    worker = house.placed("driver:1", what=CPU)
    assert house.scheduler.place_of(worker).actor == "driver:1"
    assert house.scheduler.place_of("driver").node == "n0"
    assert len(of(Placed, house.actor("driver:2", what=CPU))) == 1
    assert house.scheduler.view()["actors"][1]["state"] == "alive"
