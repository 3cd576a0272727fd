"""Placement groups, scheduling strategies and the runtime context, as Ray documents them."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rlplat
from rlplat.errors import (
    ActorDied,
    ConfigError,
    GetTimeout,
    InfeasibleResources,
    PlacementGroupRemoved,
    RlplatError,
)
from tests.patience import soon


def free_cpus() -> float:
    return rlplat.available_resources()["CPU"]


@rlplat.remote
def where() -> tuple[Any, ...]:
    context = rlplat.get_runtime_context()
    return context.get_placement_group_id(), context.get_assigned_resources(), context.get_node_id()


@pytest.mark.beside("resources")
def test_a_group_reserves_its_resources_until_it_is_removed(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 0.5}], strategy="PACK", name="g")
    assert rlplat.get(group.ready(), timeout=60) == group
    assert group.wait(timeout_seconds=60)
    assert group.bundle_specs == [{"CPU": 1}, {"CPU": 0.5}]
    assert group.bundle_count == 2
    assert free_cpus() == 0.5
    rlplat.remove_placement_group(group)
    assert soon(lambda: free_cpus() == 2)


@pytest.mark.beside("resources")
def test_tasks_and_actors_use_what_was_reserved(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 2}])
    in_it = where.options(placement_group=group, placement_group_bundle_index=0)
    assert rlplat.get(in_it.remote(), timeout=60)[:2] == (group.id, {"CPU": 1})
    strategy = rlplat.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    assert rlplat.get(where.options(scheduling_strategy=strategy, num_cpus=2).remote(), timeout=60)[1] == {"CPU": 2}

    class Local:
        def where(self) -> Any:
            context = rlplat.get_runtime_context()
            return (
                context.get_placement_group_id(),
                context.get_actor_id(),
                rlplat.get_current_placement_group(),
            )

    actor = rlplat.remote(Local).options(num_cpus=1, placement_group=group).remote()
    assert rlplat.get(actor.where.remote(), timeout=60) == (group.id, actor._actor_id, group)
    assert free_cpus() == 0


def test_a_group_travels_to_tasks(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}])

    def use(group: Any) -> Any:
        rlplat.get(group.ready())
        return rlplat.get(where.options(placement_group=group).remote())[0]

    assert rlplat.get(rlplat.remote(use).remote(group), timeout=60) == group.id


def test_a_demand_that_no_bundle_could_hold_is_refused_at_once(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 0.5}])
    with pytest.raises(InfeasibleResources, match="none of its bundles"):
        where.options(placement_group=group, num_cpus=1.5).remote()
    with pytest.raises(InfeasibleResources, match="its bundle 1 has not"):
        where.options(placement_group=group, placement_group_bundle_index=1).remote()
    with pytest.raises(ConfigError, match="one of its 2 bundles"):
        where.options(placement_group=group, placement_group_bundle_index=2).remote()


@pytest.mark.parametrize(("bundles", "strategy"), [([{"CPU": 3}], "PACK"), ([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD")])
def test_a_group_that_can_never_be_says_so(backend: str, bundles: Any, strategy: str) -> None:
    group = rlplat.placement_group(bundles, strategy=strategy)
    with pytest.raises(InfeasibleResources, match=strategy):
        rlplat.get(group.ready(), timeout=60)
    with pytest.raises(InfeasibleResources, match=strategy):
        group.wait(10)


@pytest.mark.parametrize("bundles", [[], [{}], [{"CPU": 0}], [{"CPU": -1}], [{"CPU": "1"}], [1]])
def test_bad_bundles_are_refused(backend: str, bundles: Any) -> None:
    with pytest.raises(ConfigError, match="placement_group"):
        rlplat.placement_group(bundles)
    with pytest.raises(ConfigError, match="strategy must be one of PACK"):
        rlplat.placement_group([{"CPU": 1}], strategy="SIDEWAYS")


def test_the_table_and_the_name(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}], name="g", strategy="STRICT_PACK")
    group.wait(10)
    row = rlplat.placement_group_table(group)
    assert (row["name"], row["strategy"], row["state"]) == ("g", "STRICT_PACK", "CREATED")
    assert row["bundles"] == {0: {"CPU": 1}}
    assert row["bundles_to_node_id"] == {0: rlplat.nodes()[0]["NodeID"]}
    assert rlplat.placement_group_table() == {group.id: row}
    assert rlplat.get_placement_group("g") == group
    rlplat.remove_placement_group(group)
    assert soon(lambda: rlplat.placement_group_table(group)["state"] == "REMOVED")
    with pytest.raises(ConfigError, match="no placement group named 'g'"):
        rlplat.get_placement_group("g")


def test_what_was_to_run_in_a_removed_group_fails(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    group.wait(10)
    rlplat.remove_placement_group(group)
    with pytest.raises(PlacementGroupRemoved, match="removed"):
        rlplat.get(where.options(placement_group=group).remote(), timeout=60)
    with pytest.raises(PlacementGroupRemoved, match="removed"):
        rlplat.get(group.ready(), timeout=60)


def test_strategies_without_a_group(backend: str) -> None:
    assert rlplat.get(where.options(scheduling_strategy="SPREAD").remote(), timeout=60)[0] is None
    assert rlplat.get(where.options(scheduling_strategy="DEFAULT").remote(), timeout=60)[0] is None
    (node,) = rlplat.nodes()
    here = rlplat.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    assert rlplat.get(where.options(scheduling_strategy=here).remote(), timeout=60)[2] == node["NodeID"]
    with pytest.raises(ConfigError, match="scheduling_strategy must be"):
        where.options(scheduling_strategy="SIDEWAYS").remote()


def test_nodes_and_the_context_of_the_driver(backend: str) -> None:
    (node,) = rlplat.nodes()
    assert node["Alive"] is True
    assert node["Resources"]["CPU"] == 2
    context = rlplat.get_runtime_context()
    assert context.get_node_id() == node["NodeID"]
    assert context.get_actor_id() is None
    assert context.get_placement_group_id() is None
    assert context.get_assigned_resources() == {}
    assert context.get_accelerator_ids() == {"GPU": []}
    assert not context.was_current_actor_reconstructed


# ---------------------------------------------------------------- what takes processes to show


def test_a_group_waits_for_what_others_hold(cluster: None) -> None:
    class Holder:
        pass

    holder = rlplat.remote(Holder).options(num_cpus=2).remote()
    assert soon(lambda: free_cpus() == 0)
    group = rlplat.placement_group([{"CPU": 2}])
    ref = where.options(placement_group=group).remote()
    assert not group.wait(timeout_seconds=0.05)
    with pytest.raises(GetTimeout):
        rlplat.get(ref, timeout=0.05)
    rlplat.kill(holder)
    assert group.wait(timeout_seconds=60)
    assert rlplat.get(ref, timeout=60)[0] == group.id


def test_removal_kills_the_actors_and_tasks_that_run_in_it(cluster: None) -> None:
    group = rlplat.placement_group([{"CPU": 1}, {"CPU": 1}])

    class Local:
        def ping(self) -> bool:
            return True

        def sleep(self) -> None:
            time.sleep(1000)

    actor = rlplat.remote(Local).options(num_cpus=1, placement_group=group, max_restarts=-1).remote()
    assert rlplat.get(actor.ping.remote(), timeout=60)
    call = actor.sleep.remote()
    task = rlplat.remote(lambda: time.sleep(1000)).options(placement_group=group).remote()
    waiting = where.options(placement_group=group).remote()
    assert soon(lambda: len(rlplat.placement_group_table()) == 1 and free_cpus() == 0)
    rlplat.remove_placement_group(group)
    with pytest.raises(ActorDied, match="remove_placement_group was called"):
        rlplat.get(call, timeout=60)
    for ref in (task, waiting):
        with pytest.raises(RlplatError, match="was removed"):
            rlplat.get(ref, timeout=60)
    assert soon(lambda: free_cpus() == 2)


def test_more_tasks_than_a_bundle_holds_take_turns(cluster: None) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    refs = [where.options(placement_group=group).remote() for _ in range(50)]
    assert {id for id, _, _ in rlplat.get(refs, timeout=30)} == {group.id}


# ---------------------------------------------------------------- groups that capture the children of their tasks


def capturing(group: Any) -> Any:
    return rlplat.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)


@rlplat.remote(num_cpus=0)
def family(depth: int) -> list[Any]:
    """The groups of this task and of its children, and theirs."""
    here = rlplat.get_runtime_context().get_placement_group_id()
    return [here, *(rlplat.get(family.remote(depth - 1)) if depth else [])]


@rlplat.remote
class Parent:
    """Says where it runs, and where a task and an actor that it submits do."""

    def where(self) -> Any:
        return rlplat.get_runtime_context().get_placement_group_id()

    def children(self) -> list[Any]:
        child = Parent.options(num_cpus=1).remote()
        return [rlplat.get(where.options(num_cpus=0).remote())[0], rlplat.get(child.where.remote())]

    def grandchildren(self) -> list[Any]:
        child = Parent.remote()
        return rlplat.get(child.children.remote())  # type: ignore[no-any-return]

    def elsewhere(self, other: Any) -> list[Any]:
        small = where.options(num_cpus=0)
        named = rlplat.PlacementGroupSchedulingStrategy(other)
        ways = [
            small.options(scheduling_strategy="DEFAULT"),
            small.options(placement_group=None),
            small.options(placement_group=other),
            small.options(scheduling_strategy=named),
            small.options(placement_group="default"),
        ]
        return [group for group, *_ in rlplat.get([way.remote() for way in ways])]


def test_children_and_grandchildren_of_a_task_are_captured(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    in_it = family.options(scheduling_strategy=capturing(group))
    assert rlplat.get(in_it.remote(2), timeout=60) == [group.id] * 3
    # The same remote functions, in the same worker, submitted by a task that is not captured: nothing stays behind.
    assert rlplat.get(family.remote(2), timeout=60) == [None] * 3
    not_on = rlplat.PlacementGroupSchedulingStrategy(group)
    assert rlplat.get(family.options(scheduling_strategy=not_on).remote(1), timeout=60) == [group.id, None]
    by_option = family.options(placement_group=group, placement_group_capture_child_tasks=True)
    assert rlplat.get(by_option.remote(1), timeout=60) == [group.id] * 2


def test_what_an_actor_submits_is_captured(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    actor = Parent.options(num_cpus=0, scheduling_strategy=capturing(group)).remote()
    assert rlplat.get(actor.where.remote(), timeout=60) == group.id
    assert rlplat.get(actor.children.remote(), timeout=60) == [group.id] * 2
    assert rlplat.get(actor.grandchildren.remote(), timeout=60) == [group.id] * 2


def test_explicit_options_lead_out_of_the_group(backend: str) -> None:
    group, other = rlplat.placement_group([{"CPU": 1}]), rlplat.placement_group([{"CPU": 0.5}])
    rlplat.get([group.ready(), other.ready()], timeout=60)
    actor = Parent.options(scheduling_strategy=capturing(group)).remote()
    groups = rlplat.get(actor.elsewhere.remote(other), timeout=60)
    assert groups == [None, None, other.id, other.id, group.id]


def test_a_child_that_the_group_could_never_hold_is_refused_by_name(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 1}], name="small")

    def submit(num_cpus: float) -> Any:
        return rlplat.get(where.options(num_cpus=num_cpus).remote())

    task = rlplat.remote(submit).options(num_cpus=0, scheduling_strategy=capturing(group))
    assert rlplat.get(task.remote(1), timeout=60)[:2] == (group.id, {"CPU": 1})
    with pytest.raises(InfeasibleResources, match=r"task where needs \{'CPU': 2\} of PlacementGroup\(small.*leads out"):
        rlplat.get(task.remote(2), timeout=60)


def test_a_task_that_waits_for_its_captured_child_lends_it_its_cpu(cluster: None) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    task = family.options(num_cpus=1, scheduling_strategy=capturing(group))

    def submit() -> Any:
        return rlplat.get(where.remote())

    assert rlplat.get(task.remote(0), timeout=60) == [group.id]
    nested = rlplat.remote(submit).options(scheduling_strategy=capturing(group))
    assert rlplat.get(nested.remote(), timeout=60)[:2] == (group.id, {"CPU": 1})


def test_a_restarted_actor_captures_as_before(cluster: None) -> None:
    group = rlplat.placement_group([{"CPU": 1}])
    actor = Parent.options(
        num_cpus=0, max_restarts=1, max_task_retries=1, scheduling_strategy=capturing(group)
    ).remote()
    assert rlplat.get(actor.children.remote(), timeout=60) == [group.id] * 2
    rlplat.kill(actor, no_restart=False)
    assert rlplat.get(actor.children.remote(), timeout=60) == [group.id] * 2
