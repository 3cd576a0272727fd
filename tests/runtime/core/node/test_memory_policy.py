"""Who goes when memory runs short: readings in, victims out."""

from __future__ import annotations

from rlplat.runtime.core.node.memory_policy import Holding, Machine, MachinePolicy, over_their_limits

MB, GB = 1 << 20, 1 << 30
FULL = Machine(used=95 * GB, total=100 * GB)


def task(worker: str, num_bytes: int, can_run_again: bool = True, limit: int = 0) -> Holding:
    return Holding(worker, worker, num_bytes, limit, False, can_run_again)


def actor(worker: str, num_bytes: int, can_run_again: bool = False) -> Holding:
    return Holding(worker, worker, num_bytes, 0, True, can_run_again)


def chosen(*holdings: Holding, machine: Machine = FULL) -> str | None:
    victim = MachinePolicy(0.9).look(holdings, machine, 0.0)
    return None if victim is None else victim.worker


def test_over_its_own_limit_with_both_sizes() -> None:
    small, none, over = task("a", 299 * MB, limit=300 * MB), task("b", 9 * GB), task("c", GB, limit=300 * MB)
    [victim] = over_their_limits([small, none, over])
    assert victim.worker == "c"
    assert "1.00 GiB" in victim.reason
    assert "300 MiB" in victim.reason


def test_nobody_goes_below_the_threshold() -> None:
    assert chosen(task("a", 80 * GB), machine=Machine(90 * GB, 100 * GB)) is None
    assert chosen(task("a", 80 * GB), machine=Machine(91 * GB, 100 * GB)) == "a"


def test_the_largest_task_that_may_run_again_goes_first() -> None:
    assert chosen(task("a", 2 * GB), task("b", 5 * GB), task("c", 9 * GB, False), actor("d", 50 * GB)) == "b"


def test_then_the_largest_actor_that_restarts_then_other_tasks_then_other_actors() -> None:
    rest = [actor("d", 50 * GB), actor("r", 3 * GB, True), actor("q", 2 * GB, True), task("c", 9 * GB, False)]
    assert chosen(*rest) == "r"
    assert chosen(rest[0], rest[3]) == "c"
    assert chosen(rest[0]) == "d"


def test_small_ones_are_spared_because_their_end_changes_nothing() -> None:
    assert chosen(task("a", 100 * MB), actor("learner", 90 * GB)) == "learner"
    assert chosen(task("a", 100 * MB), actor("b", 100 * MB)) is None


def test_one_at_a_time() -> None:
    policy = MachinePolicy(0.9)
    both = [task("a", 5 * GB), task("b", 4 * GB)]
    first = policy.look(both, FULL, 0.0)
    assert first is not None
    assert first.worker == "a"
    assert "95.00 GiB of the 100.00 GiB" in first.reason
    assert policy.look(both, FULL, 5.0) is None, "the first is dying still"
    assert policy.look(both[1:], FULL, 0.5) is None, "its memory may not be back yet"
    second = policy.look(both[1:], FULL, 1.5)
    assert second is not None
    assert second.worker == "b"
