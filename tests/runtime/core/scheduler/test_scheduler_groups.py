"""Placement groups: which nodes, all or none, what draws from them, removal, and lost nodes."""

from __future__ import annotations

from rlplat.runtime.core.scheduler.events import (
    GroupRemoved,
    GroupSought,
    LeaseReturned,
    LeasesRequested,
    NodeJoined,
    StopWorker,
    Tell,
    WorkerBlocked,
    WorkerUnblocked,
)
from rlplat.runtime.wire.messages import ActorGone, ActorRestarting, Granted, GroupNews, LeasesRefused, Placed
from tests.runtime.core.scheduler.scheduler_house import CPU, Cluster, bundle, kinds, of, shape
from tests.runtime.core.validity import check_scheduler

ONE, TWO = bundle(CPU=1.0), bundle(CPU=2.0)


def test_strict_pack_takes_one_node_for_all() -> None:
    house = Cluster(2, 4, 2)
    assert house.group("g", ONE, TWO, strategy="STRICT_PACK") == [Tell("driver", GroupNews("g"))]
    assert house.nodes_of("g") == ["n1", "n1"]
    assert house.free("n1") == {"CPU": 1.0}


def test_pack_takes_one_node_when_it_can_and_few_when_it_must() -> None:
    house = Cluster(2, 4, 4)
    house.group("g", TWO, TWO)
    assert len(set(house.nodes_of("g"))) == 1
    house.group("h", TWO, TWO, ONE)
    assert "" not in house.nodes_of("h")
    assert len(set(house.nodes_of("h"))) == 2


def test_strict_spread_never_takes_a_node_twice() -> None:
    house = Cluster(4, 4, 4)
    house.group("g", ONE, ONE, ONE, strategy="STRICT_SPREAD")
    assert sorted(house.nodes_of("g")) == ["n0", "n1", "n2"]
    (news,) = of(GroupNews, house.group("h", ONE, ONE, ONE, ONE, strategy="STRICT_SPREAD"))
    assert "4 bundles need as many nodes, and there are 3" in news.error.message


def test_spread_takes_different_nodes_as_far_as_there_are_any() -> None:
    house = Cluster(4, 4)
    house.group("g", ONE, ONE, ONE, strategy="SPREAD")
    assert set(house.nodes_of("g")) == {"n0", "n1"}


def test_a_group_is_reserved_all_or_not_at_all() -> None:
    house = Cluster(2, 2)
    (worker,) = house.lease()
    assert house.group("g", TWO, TWO, strategy="SPREAD") == []
    assert house.nodes_of("g") == ["", ""]
    assert house.scheduler.available["CPU"] == 3
    assert house.tell(LeaseReturned("driver", worker)) == [Tell("driver", GroupNews("g"))]
    assert sorted(house.nodes_of("g")) == ["n0", "n1"]


def test_waiting_groups_come_in_order_but_a_large_one_lets_others_pass() -> None:
    house = Cluster(3)
    workers = house.lease(count=3)
    for name, what in (("large", bundle(CPU=3.0)), ("first", ONE), ("second", ONE)):
        assert house.group(name, what) == []
    told = [house.tell(LeaseReturned("driver", worker)) for worker in workers]
    assert [[action.group for action in of(GroupNews, out)] for out in told] == [["first"], ["second"], []]
    house.tell(GroupRemoved("first"))
    assert Tell("driver", GroupNews("large")) in house.tell(GroupRemoved("second"))


def test_groups_that_can_never_be_are_refused_with_the_reason() -> None:
    house = Cluster(2, 2)
    for strategy, bundles, why in (
        ("PACK", (bundle(CPU=3.0),), "no node has room for bundle 0"),
        ("STRICT_PACK", (TWO, ONE), "no node has room for all its bundles together"),
        ("PACK", (TWO, TWO, ONE), "need {'CPU': 5.0} in all"),
        ("SIDEWAYS", (ONE,), "no strategy 'SIDEWAYS'"),
        ("PACK", (), "no bundles"),
    ):
        (news,) = of(GroupNews, house.group(f"{strategy}{bundles}", *bundles, strategy=strategy))
        assert news.error.kind == "InfeasibleResources"
        assert why in news.error.message
        assert of(GroupNews, house.tell(GroupSought("driver", f"{strategy}{bundles}"))) == [news]


def test_tasks_and_actors_draw_from_their_bundle() -> None:
    house = Cluster(4)
    house.group("g", ONE, TWO)
    assert len(house.lease(what=shape("g", 0, CPU=1.0), count=2)) == 1
    assert of(Placed, house.actor("driver:1", what=shape("g", 1, CPU=2.0)))
    assert house.actor("driver:2", what=shape("g", 1, CPU=1.0)) == []
    assert house.scheduler.available["CPU"] == 1  # outside of the group


def test_any_bundle_with_room_will_do_when_none_is_named() -> None:
    house = Cluster(4)
    house.group("g", ONE, TWO)
    workers = house.lease(what=shape("g", CPU=1.0), count=4)
    assert len(workers) == 3
    assert sorted(house.scheduler.place_of(worker).bundle for worker in workers) == [0, 1, 1]
    assert len(of(Granted, house.tell(LeaseReturned("driver", workers[0])))) == 1


def test_what_belongs_to_a_group_that_waits_waits_with_it() -> None:
    house = Cluster(2)
    workers = house.lease(count=2)
    house.group("g", TWO)
    assert house.lease("a", shape("g", CPU=1.0), count=2) == []
    house.tell(LeaseReturned("driver", workers[0]))
    out = house.tell(LeaseReturned("driver", workers[1]))
    assert kinds(out) == [GroupNews, Granted, Granted]


def test_what_no_bundle_could_hold_is_refused() -> None:
    house = Cluster(4)
    house.group("g", ONE, TWO)
    for what in (shape("g", 0, CPU=2.0), shape("g", CPU=3.0), shape("g", 7, CPU=1.0), shape("g", GPU=1.0)):
        (refused,) = of(LeasesRefused, house.tell(LeasesRequested("driver", what, 1)))
        assert refused.error.kind == "InfeasibleResources"
    (refused,) = of(LeasesRefused, house.tell(LeasesRequested("driver", shape("other", CPU=1.0), 1)))
    assert refused.error.kind == "PlacementGroupRemoved"


def test_removal_kills_what_runs_in_it_fails_what_waits_and_frees_all() -> None:
    house = Cluster(4)
    house.group("g", ONE, TWO)
    (leased,) = house.lease("a", shape("g", 0, CPU=1.0), count=3)
    (placed,) = of(Placed, house.actor("driver:1", what=shape("g", 1, CPU=2.0), max_restarts=-1))
    house.actor("driver:2", what=shape("g", 1, CPU=2.0))
    out = house.tell(GroupRemoved("g"))
    assert {action.worker for action in of(StopWorker, out)} == {leased, placed.worker}
    assert [(action.client, action.error.kind) for action in of(LeasesRefused, out)] == [("a", "PlacementGroupRemoved")]
    assert {action.actor for action in of(ActorGone, out)} == {"driver:1", "driver:2"}
    assert not of(ActorRestarting, out)
    assert house.scheduler.available["CPU"] == 4
    assert house.tell(GroupRemoved("g")) == []
    (news,) = of(GroupNews, house.tell(GroupSought("driver", "g")))
    assert "remove_placement_group" in news.error.message


def test_a_group_that_waits_can_be_removed() -> None:
    house = Cluster(2)
    house.lease(count=2)
    house.group("g", TWO)
    house.lease("a", shape("g", CPU=1.0))
    out = house.tell(GroupRemoved("g"))
    assert kinds(out) == [GroupNews, LeasesRefused]


def test_the_resources_of_those_that_are_killed_come_when_they_are_gone() -> None:
    from rlplat.runtime.core.scheduler.events import GroupRequested, StartWorker, WorkerLost, WorkerReady
    from rlplat.runtime.core.scheduler.scheduler import Scheduler

    scheduler = Scheduler()
    scheduler.handle(NodeJoined("n0", {"CPU": 2.0}, 0), 0.0)
    scheduler.handle(GroupRequested("driver", "g", (ONE, ONE), "PACK"), 0.0)
    (start,) = of(StartWorker, scheduler.handle(LeasesRequested("driver", shape("g", CPU=1.0), 1), 0.0))
    scheduler.handle(WorkerReady(start.worker), 0.0)
    scheduler.handle(WorkerBlocked(start.worker), 0.0)
    scheduler.handle(GroupRemoved("g"), 0.0)
    check_scheduler(scheduler)
    assert scheduler.available["CPU"] == 2  # it had lent its own
    scheduler.handle(WorkerUnblocked(start.worker), 0.0)
    check_scheduler(scheduler)
    scheduler.handle(WorkerLost(start.worker, "killed"), 0.0)
    check_scheduler(scheduler)
    assert scheduler.available["CPU"] == 2


def test_fractions_of_gpus_within_a_group() -> None:
    house = Cluster(4, gpus=2)
    house.group("g", bundle(GPU=1.0), bundle(GPU=0.5))
    whole, half = house.lease(what=shape("g", 0, GPU=1.0)), house.lease(what=shape("g", 1, GPU=0.5))
    assert house.gpus[whole[0]] != house.gpus[half[0]]
    (outside,) = house.lease(what=shape(GPU=0.5))
    assert house.gpus[outside] == house.gpus[half[0]]
    assert house.lease(what=shape(GPU=0.5)) == []
    house.tell(GroupRemoved("g"))
    assert house.scheduler.available["GPU"] == 1  # 2 less the one outside and the one that waited
    check_scheduler(house.scheduler)


def test_two_quarters_are_taken_from_the_half_that_was_reserved() -> None:
    house = Cluster(4, gpus=1)
    house.group("g", bundle(GPU=0.5))
    workers = house.lease(what=shape("g", GPU=0.25), count=3)
    assert [house.gpus[worker] for worker in workers] == [(0,), (0,)]


def test_a_blocked_worker_lends_its_cpu_to_its_group_only() -> None:
    house = Cluster(2)
    house.group("g", ONE)
    house.lease("other", count=1)
    (worker,) = house.lease(what=shape("g", CPU=1.0))
    house.lease("other")
    assert house.lease(worker, shape("g", CPU=1.0)) == []
    (granted,) = of(Granted, house.tell(WorkerBlocked(worker)))
    assert granted.client == worker


def test_a_lost_node_takes_its_bundles_along_and_they_are_reserved_again() -> None:
    house = Cluster(2, 2, 2)
    house.group("g", TWO, TWO, strategy="STRICT_SPREAD")
    first, second = house.nodes_of("g")
    (placed,) = of(Placed, house.actor("driver:1", what=shape("g", 0, CPU=1.0), max_restarts=1))
    (kept,) = house.lease(what=shape("g", 1, CPU=1.0))
    assert house.node_of[placed.worker] == first
    out = house.lose_node(first)
    third = house.nodes_of("g")[0]
    assert house.nodes_of("g") == [third, second]
    assert third not in (first, second)
    assert house.node_of[of(Placed, out)[0].worker] == third
    assert kept in house.node_of
    house.lose_node(third)
    assert house.nodes_of("g") == ["", second]
    out = house.tell(NodeJoined("n9", {"CPU": 2.0}, 0))
    assert house.nodes_of("g") == ["n9", second]


def test_a_group_ends_with_the_actor_that_made_it_unless_it_is_detached() -> None:
    house = Cluster(4)
    worker = house.placed("driver:1")
    (task,) = house.lease("driver", shape())
    for client, name, is_detached in (
        (worker, "mine", False),
        (worker, "kept", True),
        (task, "the job's", False),
    ):
        house.group(name, ONE, client=client, is_detached=is_detached)
    house.lose(worker)
    house.lose(task)
    states = {state.group: state.state for state in house.scheduler.group_states()}
    assert states == {"mine": "REMOVED", "kept": "CREATED", "the job's": "CREATED"}


def test_seekers_hear_when_it_is_there() -> None:
    house = Cluster(1)
    (worker,) = house.lease()
    house.group("g", ONE)
    assert house.tell(GroupSought("other", "g")) == []
    told = of(GroupNews, house.tell(LeaseReturned("driver", worker)))
    assert {action.client for action in told} == {"driver", "other"}
    assert house.tell(GroupSought("third", "g")) == [Tell("third", GroupNews("g"))]
    (unknown,) = of(GroupNews, house.tell(GroupSought("third", "h")))
    assert unknown.error.kind == "PlacementGroupRemoved"


def test_a_group_that_waits_for_long_is_explained() -> None:
    house = Cluster(2)
    house.lease(count=1)
    house.group("g", TWO, name="training")
    house.pass_time(30)
    (warning,) = house.warnings
    assert "training" in warning and "1 of 2 CPU" in warning


def test_a_hundred_bundles_on_twenty_nodes() -> None:
    house = Cluster(*[5] * 20)
    assert len(house.group("g", *[ONE] * 100)) == 1
    assert house.scheduler.available["CPU"] == 0
    assert len(house.lease(what=shape("g", CPU=1.0), count=150)) == 100
    house.tell(GroupRemoved("g"))
    assert house.scheduler.available["CPU"] == 100
    assert house.lease(what=CPU)
