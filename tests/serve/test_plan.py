"""The controller's decisions: events in, actions out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplat import serve
from rlplat.serve.deployments import PartName, canary_of, parts_of
from rlplat.serve.http.sharing import Share, canary_replicas
from rlplat.serve.plan import (
    MAX_START_FAILURES,
    STABLE_S,
    Action,
    Deployed,
    DrainReplica,
    Plan,
    Removed,
    ReplicaDied,
    ReplicaDrained,
    ReplicaReady,
    RoutesChanged,
    Scaled,
    StartReplica,
    StopReplica,
    Tick,
    Updated,
    UpdateFailed,
    UpdateTaken,
)


def up(num_replicas: int = 2) -> Plan:
    plan = Plan()
    for action in plan.handle(Deployed("m", 1, num_replicas), 0.0):
        assert isinstance(action, StartReplica)
        plan.handle(ReplicaReady(action.replica), 1.0)
    return plan


def test_as_many_start_as_are_asked_for() -> None:
    plan = Plan()
    assert plan.handle(Deployed("m", 1, 2), 0.0) == [StartReplica("m", 1, "m-0"), StartReplica("m", 1, "m-1")]
    assert plan.handle(ReplicaReady("m-1"), 0.5) == [RoutesChanged("m"), UpdateTaken(("m",))]
    assert plan.ready("m") == ["m-1"] and not plan.is_settled("m")
    plan.handle(ReplicaReady("m-0"), 0.6)
    assert plan.is_settled("m")


def test_an_update_starts_one_and_then_drains_an_old_one() -> None:
    plan = up(2)
    assert plan.handle(Deployed("m", 2, 2), 2.0) == [StartReplica("m", 2, "m-2")]
    assert plan.handle(ReplicaReady("m-2"), 3.0) == [
        RoutesChanged("m"),
        DrainReplica("m-0"),
        RoutesChanged("m"),
        StartReplica("m", 2, "m-3"),
        UpdateTaken(("m",)),
    ]
    assert sorted(plan.ready("m")) == ["m-1", "m-2"]
    assert plan.handle(ReplicaDrained("m-0"), 3.5) == [StopReplica("m-0")]
    plan.handle(ReplicaReady("m-3"), 4.0)
    plan.handle(ReplicaDrained("m-1"), 4.5)
    assert plan.is_settled("m") and sorted(plan.ready("m")) == ["m-2", "m-3"]


def fail(plan: Plan, name: str, now: float) -> list[Action]:
    """What starts of a deployment dies until its update is given up."""
    actions: list[Action] = []
    for _ in range(MAX_START_FAILURES):
        replica = plan.starting(name)[0]
        actions += plan.handle(ReplicaDied(replica, "no GPU"), now)
        actions += plan.handle(Tick(), now + 20.0)
    return actions


@pytest.mark.parametrize(("before", "kept"), [(2, 1), (0, 0)])
def test_a_version_that_never_starts_is_given_up_and_the_old_one_stays(before: int, kept: int) -> None:
    plan = up(before) if before else Plan()
    plan.handle(Deployed("m", 2, 2 if before else 1), 2.0)
    actions = fail(plan, "m", 2.0)
    assert [each for each in actions if isinstance(each, UpdateFailed)] == [UpdateFailed("m", 2, "no GPU", kept)]
    assert not any(isinstance(action, DrainReplica) for action in actions)
    assert plan.ready("m") == [f"m-{number}" for number in range(before)] and plan.is_settled("m")
    assert ("m" in plan.describe()) == bool(before)


@pytest.mark.parametrize(("scaled", "kept"), [(None, 2), (3, 3)])
def test_a_failing_update_leaves_the_number_of_replicas(scaled: int | None, kept: int) -> None:
    plan, now = up(2), 2.0
    started = [each for each in plan.handle(Deployed("m", 2, 1), now) if isinstance(each, StartReplica)]
    if scaled:
        plan.handle(Scaled("m", scaled), now)
    for _ in range(2 * MAX_START_FAILURES):
        now += 10.0
        new = [plan.handle(ReplicaDied(each.replica, "no"), now) for each in started if each.version == 2]
        new.append(plan.handle(Tick(), now + 5.0))
        started = [each for actions in new for each in actions if isinstance(each, StartReplica)]
        for each in started:
            if each.version == 1:
                plan.handle(ReplicaReady(each.replica), now)
    assert plan.describe()["m"]["num_replicas"] == kept and plan.describe()["m"]["version"] == 1


def test_a_dead_replica_is_replaced_at_once_and_the_next_after_a_pause() -> None:
    plan = up(2)
    assert plan.handle(ReplicaDied("m-0", "SIGKILL"), 100.0) == [
        StopReplica("m-0"),
        RoutesChanged("m"),
        StartReplica("m", 1, "m-2"),
    ]
    assert plan.handle(ReplicaDied("m-2"), 100.1) == [StopReplica("m-2")]
    assert plan.next_tick() is not None and plan.handle(Tick(), 100.11) == []
    assert plan.handle(Tick(), 100.3) == [StartReplica("m", 1, "m-3")]


def test_a_replica_that_was_ready_for_long_ends_a_row_of_failures() -> None:
    plan = up(2)
    plan.handle(ReplicaDied("m-0"), 100.0)
    plan.handle(ReplicaDied("m-2"), 100.1)
    plan.handle(Tick(), 100.3)
    plan.handle(ReplicaReady("m-3"), 101.0)
    died = [StopReplica("m-3"), RoutesChanged("m"), StartReplica("m", 1, "m-4")]
    assert plan.handle(ReplicaDied("m-3"), 101.0 + STABLE_S) == died  # at once: a failure by itself
    plan.handle(ReplicaReady("m-4"), 200.0)
    assert plan.handle(ReplicaDied("m-4"), 199.9 + STABLE_S) == [StopReplica("m-4"), RoutesChanged("m")]


def test_scaling_down_drains_the_youngest_and_removal_all() -> None:
    plan = up(3)
    actions = plan.handle(Scaled("m", 1), 2.0)
    assert [type(action) for action in actions] == [DrainReplica, DrainReplica, RoutesChanged]
    assert len(plan.ready("m")) == 1
    (drain, _) = plan.handle(Removed("m"), 3.0)
    assert isinstance(drain, DrainReplica)
    for name in ("m-0", "m-1", "m-2"):
        plan.handle(ReplicaDrained(name), 4.0)
    assert plan.describe() == {}


def chain() -> Plan:
    """door calls middle, middle calls model."""
    plan = Plan()
    for name, calls in (("model", ()), ("middle", ("model",)), ("door", ("middle",))):
        plan.handle(Deployed(name, 1, 1, calls), 0.0)
        plan.handle(ReplicaReady(f"{name}-0"), 1.0)
    return plan


def test_what_is_called_is_drained_when_its_callers_have_ended() -> None:
    plan = chain()
    assert plan.handle(Removed("model"), 2.0) == [] and plan.handle(Removed("middle"), 2.0) == []
    assert plan.handle(Removed("door"), 2.0) == [DrainReplica("door-0"), RoutesChanged("door")]
    assert plan.handle(Scaled("model", 3), 2.1) == [] and not plan.is_settled("model")
    assert plan.handle(ReplicaDied("model-0"), 2.2)[2:] == [StartReplica("model", 1, "model-1")], "it is needed"
    plan.handle(ReplicaReady("model-1"), 2.3)
    drained = plan.handle(ReplicaDrained("door-0"), 3.0)
    assert drained == [StopReplica("door-0"), DrainReplica("middle-0"), RoutesChanged("middle")]
    died = plan.handle(ReplicaDied("middle-0"), 4.0)
    assert died == [StopReplica("middle-0"), DrainReplica("model-1"), RoutesChanged("model")]
    plan.handle(ReplicaDrained("model-1"), 5.0)
    assert plan.describe() == {}


def test_callers_that_only_start_are_waited_for_by_none() -> None:
    plan = chain()
    plan.handle(ReplicaDied("door-0"), 2.0)  # another one starts
    for name in ("model", "middle"):
        assert plan.handle(Removed(name), 3.0) == []
    assert plan.handle(Removed("door"), 3.0) == [
        StopReplica("door-1"),
        DrainReplica("middle-0"),
        RoutesChanged("middle"),
    ]


def renamed(plan: Plan) -> list[Action]:
    """The application of `chain` calls "other" in place of "model"."""
    parts = (
        Deployed("other", 2, 1),
        Deployed("middle", 3, 1, ("other",)),
        Deployed("door", 4, 1, ("middle",)),
    )
    return plan.handle(Updated(parts, ("model",)), 2.0)


def test_what_an_update_drops_stays_until_all_of_it_is_settled() -> None:
    plan = chain()
    assert [action.deployment for action in renamed(plan)] == ["other", "middle", "door"]  # type: ignore[union-attr]
    for replica in ("other-0", "middle-1"):
        plan.handle(ReplicaReady(replica), 3.0)
    taken = plan.handle(ReplicaReady("door-1"), 3.0)
    assert taken[-1] == UpdateTaken(("other", "middle", "door"))
    plan.handle(ReplicaDrained("door-0"), 4.0)
    assert plan.ready("model") == ["model-0"]
    drained = plan.handle(ReplicaDrained("middle-0"), 4.0)
    assert drained == [StopReplica("middle-0"), DrainReplica("model-0"), RoutesChanged("model")]


def test_an_update_that_is_given_up_goes_back_with_all_its_deployments() -> None:
    plan = chain()
    renamed(plan)
    plan.handle(ReplicaReady("other-0"), 3.0)
    plan.handle(ReplicaReady("middle-1"), 3.0)
    plan.handle(ReplicaDrained("middle-0"), 3.5)
    actions = fail(plan, "door", 4.0)
    assert UpdateFailed("door", 4, "no GPU", kept=1) in actions
    assert StartReplica("middle", 1, "middle-2") in actions and plan.ready("other") == ["other-0"]
    assert plan.handle(ReplicaReady("middle-2"), 70.0)[1:2] == [DrainReplica("middle-1")]
    drained = plan.handle(ReplicaDrained("middle-1"), 71.0)
    assert drained[1:] == [DrainReplica("other-0"), RoutesChanged("other")]
    plan.handle(ReplicaDrained("other-0"), 72.0)
    assert plan.versions() == {"model": 1, "middle": 1, "door": 1}
    assert all(map(plan.is_settled, plan.versions()))


def test_an_update_in_place_of_one_that_runs_goes_back_to_what_was_before_both() -> None:
    plan = chain()
    renamed(plan)
    for replica in ("other-0", "middle-1"):
        plan.handle(ReplicaReady(replica), 3.0)
    plan.handle(Updated((Deployed("alone", 5, 1),), ("model", "other", "middle", "door")), 4.0)
    assert plan.versions() == {"model": 1, "middle": 1, "door": 1, "alone": 5}
    fail(plan, "alone", 5.0)
    assert plan.versions() == {"model": 1, "middle": 1, "door": 1}


def test_callers_end_first_during_an_update_too() -> None:
    plan = chain()
    parts = (
        Deployed("model", 2, 1),
        Deployed("middle", 3, 1, ("model",)),
        Deployed("door", 4, 1, ("middle",)),
    )
    plan.handle(Updated(parts), 2.0)
    for name in ("model", "middle"):
        plan.handle(Removed(name), 3.0)
    assert DrainReplica("door-0") in plan.handle(Removed("door"), 3.0)
    assert plan.ready("middle") == ["middle-0"] and plan.ready("model") == ["model-0"]
    assert DrainReplica("middle-0") in plan.handle(ReplicaDrained("door-0"), 4.0)


def test_what_the_autoscaler_of_an_update_wants_is_forgotten_when_that_is_given_up() -> None:
    plan = up(2)
    plan.handle(Deployed("m", 2, 2), 2.0)
    plan.handle(Scaled("m", 6, version=2), 2.0)
    fail(plan, "m", 3.0)
    assert plan.versions() == {"m": 1} and plan.describe()["m"]["num_replicas"] == 2


def test_a_deployment_that_leaves_and_comes_again_is_new() -> None:
    plan = up(1)
    plan.handle(Removed("m"), 2.0)
    plan.handle(Deployed("m", 2, 1), 3.0)
    fail(plan, "m", 4.0)
    plan.handle(ReplicaDrained("m-0"), 70.0)
    assert plan.describe() == {}


def test_events_of_replicas_that_are_gone_change_nothing() -> None:
    plan = up(1)
    assert plan.handle(ReplicaDied("m-7"), 2.0) == [] and plan.handle(ReplicaReady("other-0"), 2.0) == []
    assert plan.handle(Scaled("other", 3), 2.0) == []


def test_any_history_ends_as_asked_for_and_never_drains_below_what_is_wanted() -> None:
    """Random histories: deaths, updates and scaling in any order; then calm."""
    for seed in range(200):
        rng = random.Random(seed)
        plan, now, version = Plan(), 0.0, 1
        starting: list[str] = []
        draining: list[str] = []
        wanted = rng.randint(1, 4)
        pending = list(plan.handle(Deployed("m", version, wanted), now))
        for step in range(120):
            for action in pending:
                if isinstance(action, StartReplica):
                    starting.append(action.replica)
                elif isinstance(action, DrainReplica):
                    draining.append(action.replica)
                    assert len(plan.ready("m")) >= wanted, (seed, step)
                elif isinstance(action, StopReplica):
                    starting = [name for name in starting if name != action.replica]
                    draining = [name for name in draining if name != action.replica]
            now += rng.random()
            is_calm = step >= 60
            choice = rng.random()
            if starting and choice < 0.5:
                pending = plan.handle(ReplicaReady(starting.pop(0)), now)
            elif draining and choice < 0.7:
                pending = plan.handle(ReplicaDrained(draining.pop(0)), now)
            elif is_calm or choice < 0.75:
                now += 20
                pending = plan.handle(Tick(), now)
            elif choice < 0.85 and (names := plan.ready("m")):
                pending = plan.handle(ReplicaDied(rng.choice(names)), now)
            elif choice < 0.95:
                wanted = rng.randint(1, 4)
                pending = plan.handle(Scaled("m", wanted), now)
            else:
                version += 1
                pending = plan.handle(Deployed("m", version, wanted), now)
        assert plan.is_settled("m"), seed
        assert len(plan.ready("m")) == wanted


@given(share=st.floats(0.0, 0.999), count=st.integers(0, 300))
def test_a_canarys_share_is_exact_to_half_a_connection_at_every_time(share: float, count: int) -> None:
    decide, given_ = Share(share), 0
    for seen in range(1, count + 1):
        given_ += decide.next_is_canarys()
        assert abs(given_ - seen * share) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("num", "share", "expected"), [(1, 0.1, 1), (10, 0.1, 1), (10, 0.11, 2), (30, 0.1, 3), (2, 0.9, 2)]
)
def test_a_canary_has_replicas_in_proportion_and_one_at_least(num: int, share: float, expected: int) -> None:
    assert canary_replicas(num, share) == expected


def test_the_deployments_of_a_canary_call_each_other() -> None:
    inner = serve.deployment(name="inner", num_replicas=4, autoscale={"max_replicas": 8})(lambda: 1)
    outer = serve.deployment(name="outer")(type("Outer", (), {}))
    first, last = canary_of(parts_of(outer.bind(inner.bind(), [inner.bind()], key={"k": 3})), 0.3)[::2]
    assert first.name == "inner.canary" and first.deployment.options_.autoscale is None
    assert first.deployment.options_.num_replicas == 2
    assert last.name == "outer.canary" and last.kwargs == {"key": {"k": 3}}
    assert last.args == (PartName("inner.canary"), [PartName("inner_2.canary")])
