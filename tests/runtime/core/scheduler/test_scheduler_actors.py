"""Actors' lives: restarts and their limits, names, detachment, and news that comes before the creation."""

from __future__ import annotations

import pytest

from rlplat.runtime.core.scheduler.actors import Intensity
from rlplat.runtime.core.scheduler.events import (
    ActorEnded,
    ActorRequested,
    ActorSought,
    CreateDetached,
    StopWorker,
    Tell,
    WorkerLost,
)
from rlplat.runtime.wire.messages import ActorGone, ActorRestarting, NameTaken, Placed
from rlplat.runtime.wire.values import ActorInfo, CallOptions
from tests.runtime.core.scheduler.scheduler_house import CPU, INFO, Cluster, kinds, of, shape
from tests.runtime.core.validity import check_scheduler


def test_an_actor_restarts_as_often_as_it_may() -> None:
    house = Cluster(2)
    worker = house.placed("driver:1", max_restarts=2)
    house.tell(ActorSought("other", "driver:1"))
    for incarnation in (2, 3):
        out = house.lose(worker)
        assert {action.client for action in of(ActorRestarting, out)} == {"driver", "other"}
        assert "SIGKILL" in of(ActorRestarting, out)[0].reason
        out += house.pass_time(1)
        placed = of(Placed, out)
        assert {(action.client, action.incarnation) for action in placed} == {
            ("driver", incarnation),
            ("other", incarnation),
        }
        worker = placed[0].worker
    gone = of(ActorGone, house.lose(worker, "SIGSEGV"))
    assert {action.client for action in gone} == {"driver", "other"}
    assert "SIGSEGV" in gone[0].error.message
    assert "restarted 2 times already (max_restarts=2)" in gone[0].error.message


def test_restarts_come_at_once_and_then_after_growing_delays_until_the_intensity_is_reached() -> None:
    house = Cluster(2)
    worker = house.placed("driver:1", max_restarts=-1)
    delays = []
    for _ in range(3):
        out, waited = house.lose(worker), 0.0
        while not of(Placed, out):
            waited += 0.1
            out = house.pass_time(0.1)
        delays.append(round(waited, 1))
        worker = of(Placed, out)[0].worker
    assert delays == [0.0, 0.1, 0.2]
    (gone,) = of(ActorGone, house.lose(worker, "SIGABRT"))
    assert "it crashed 4 times within 60 s" in gone.error.message
    assert "SIGABRT" in gone.error.message


def test_crashes_that_are_far_apart_are_put_up_with() -> None:
    house = Cluster(2)
    worker = house.placed("driver:1", max_restarts=-1)
    for _ in range(20):
        out = house.lose(worker) + house.pass_time(25)
        worker = of(Placed, out)[0].worker
    assert house.scheduler.actors["driver:1"].incarnation == 21


def test_the_delay_has_a_cap_and_the_intensity_can_be_set() -> None:
    house = Cluster(2, intensity=Intensity(most=30, period_s=1000, most_delay_s=1.0))
    worker = house.placed("driver:1", max_restarts=-1)
    for _ in range(30):
        worker = of(Placed, house.lose(worker) + house.pass_time(1.0))[0].worker
    assert of(ActorGone, house.lose(worker))


def test_a_restart_that_was_asked_for_is_no_crash_but_counts() -> None:
    house = Cluster(2)
    house.placed("driver:1", max_restarts=10)
    for _ in range(10):
        out = house.tell(ActorEnded("driver:1", "rlplat.kill was called", at_once=True, no_restart=False))
        assert [action.reason for action in of(ActorRestarting, out)] == ["rlplat.kill was called"]
        assert len(of(Placed, out)) == 1
        assert not house.scheduler.actors["driver:1"].stop_reason  # the next loss is a crash again
    out = house.tell(ActorEnded("driver:1", "rlplat.kill was called", at_once=True, no_restart=False))
    assert "rlplat.kill was called" in of(ActorGone, out)[0].error.message


@pytest.mark.parametrize("at_once", [True, False])
def test_an_actor_that_is_to_end_does_not_restart(at_once: bool) -> None:
    house = Cluster(2)
    house.placed("driver:1", max_restarts=-1)
    out = house.tell(ActorEnded("driver:1", "exit_actor was called", at_once))
    assert kinds(out)[:2] == [StopWorker, ActorGone]
    assert not of(ActorRestarting, out)


def test_an_actor_can_end_while_it_waits_for_its_restart() -> None:
    house = Cluster(2)
    worker = house.placed("driver:1", max_restarts=-1)
    worker = of(Placed, house.lose(worker))[0].worker
    assert of(ActorRestarting, house.lose(worker))
    assert house.scheduler.actors["driver:1"].state() == "RESTARTING"
    (gone,) = of(ActorGone, house.tell(ActorEnded("driver:1", "its last handle is gone", False)))
    assert "while it was restarted" in gone.error.message
    assert house.pass_time(5) == []


def test_actors_of_a_lost_node_restart_elsewhere_and_that_is_no_crash_of_theirs() -> None:
    house = Cluster(1, 1, 1)
    house.lease("keeps n0 busy")
    worker = house.placed("driver:1", what=CPU, max_restarts=-1)
    for _ in range(2):
        node = house.node_of[worker]
        out = house.lose_node(node)
        assert f"node {node} was lost" in of(ActorRestarting, out)[0].reason
        placed = of(Placed, out)
        if placed:
            worker = placed[0].worker
            assert house.node_of[worker] != node
    assert not house.scheduler.actors["driver:1"].crashes


def test_one_that_may_not_restart_dies_with_its_node() -> None:
    house = Cluster(1, 1)
    house.placed("driver:1", what=CPU)
    house.placed("driver:2", what=CPU)
    (gone,) = of(ActorGone, house.lose_node("n1"))
    assert "node n1 was lost: power" in gone.error.message


def test_names_count_in_their_namespace() -> None:
    house = Cluster(2)
    house.placed("driver:1", name="n", namespace="a")
    house.placed("driver:2", name="n", namespace="b")
    assert house.scheduler.actor_by_name == {("a", "n"): "driver:1", ("b", "n"): "driver:2"}
    (refused,) = of(ActorGone, house.actor("driver:3", name="n", namespace="b"))
    assert refused.error.kind == "OptionError"


def test_a_name_is_kept_through_restarts() -> None:
    house = Cluster(2)
    worker = house.placed("driver:1", name="n", max_restarts=1)
    house.lose(worker)
    assert house.scheduler.actor_by_name == {("", "n"): "driver:1"}


def test_get_if_exists_gives_the_actor_that_has_the_name() -> None:
    house = Cluster(2)
    house.placed("driver:1", name="n", get_if_exists=True)
    assert house.actor("w9:1", client="driver2", name="n", get_if_exists=True) == [
        Tell("driver2", NameTaken("w9:1", "driver:1", INFO, False))
    ]


def test_a_detached_actor_outlives_its_creator_and_is_created_by_the_node() -> None:
    house = Cluster(2)
    (creator,) = house.lease()
    out = house.actor(f"{creator}:1", client=creator, is_detached=True, name="n", max_restarts=1)
    (created,) = of(CreateDetached, out)
    assert created.incarnation == 1
    out = house.lose(creator)
    assert not of(ActorGone, out) and not of(StopWorker, out)
    (created,) = of(CreateDetached, house.lose(created.worker))
    assert created.incarnation == 2
    house.tell(ActorEnded(f"{creator}:1", "rlplat.kill was called", True))
    assert house.scheduler.actor_by_name == {}


def test_an_actor_that_depends_on_its_creator_ends_with_it_whatever_it_may_restart() -> None:
    house = Cluster(2)
    (creator,) = house.lease()
    house.actor(f"{creator}:1", client=creator, max_restarts=-1)
    house.tell(ActorSought("driver", f"{creator}:1"))
    out = house.lose(creator)
    assert "its creator" in of(ActorGone, out)[0].error.message
    assert not of(ActorRestarting, out)


def test_news_of_an_actor_may_come_ahead_of_its_creation() -> None:
    house = Cluster(2)
    assert house.tell(ActorSought("other", "driver:5")) == []
    assert {action.client for action in of(Placed, house.actor("driver:5"))} == {"driver", "other"}
    assert house.tell(ActorEnded("driver:7", "rlplat.kill was called", True)) == []
    assert of(ActorGone, house.actor("driver:7"))
    (late,) = of(ActorGone, house.tell(ActorSought("other", "driver:6")))  # numbers rise, so this one never comes
    assert "long ago" in late.error.message


def test_who_seeks_what_its_creator_never_made_hears_of_the_creators_death() -> None:
    house = Cluster(2)
    (creator,) = house.lease()
    assert house.tell(ActorSought("driver", f"{creator}:1")) == []
    (gone,) = of(ActorGone, house.lose(creator))
    assert (gone.client, gone.actor) == ("driver", f"{creator}:1")
    (gone,) = of(ActorGone, house.tell(ActorSought("driver", f"{creator}:2")))
    assert "long ago" in gone.error.message


def test_a_creation_that_is_told_twice_counts_once() -> None:
    house = Cluster(2)
    house.placed("driver:1", what=CPU)
    assert house.tell(ActorRequested("driver", "driver:1", INFO, CPU)) == []
    assert house.scheduler.available["CPU"] == 1


def test_the_last_words_of_the_dead_change_nothing() -> None:
    house = Cluster(2)
    (client,) = house.lease()
    house.lose(client)
    assert house.lease(client) == []
    assert house.actor(f"{client}:1", client=client) == []
    assert house.group("g", (("CPU", 1.0),), client=client) == []
    assert house.scheduler.available["CPU"] == 2


def test_a_thousand_gone_actors_are_remembered_and_no_more() -> None:
    house = Cluster(1)
    info = ActorInfo("Class", {"method": CallOptions()})
    for number in range(1, 1101):
        house.scheduler.handle(ActorRequested("driver", f"driver:{number}", info, shape(CPU=9.0)), 0.0)
    check_scheduler(house.scheduler)
    assert len(house.scheduler.actors) == 1000
    assert all(not entry.info.methods for entry in house.scheduler.actors.values()), "of the gone a line is kept"
    assert house.tell(WorkerLost("w0", "x")) == []


def test_digits_of_other_kinds_make_no_actors_number() -> None:
    (gone,) = of(ActorGone, Cluster(1).tell(ActorSought("driver", "w1:²")))
    assert gone.actor == "w1:²"
