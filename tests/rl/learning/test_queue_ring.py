"""The queue before a learner, with actors that only count: who waits, what is bounded, in which order, what is lost."""

from __future__ import annotations

from typing import Any

import pytest

import rlplat
from rlplat.errors import ActorDied
from rlplat.rl.interfaces import Episode, UpdateReport
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.parameter_server import ParameterServer
from rlplat.rl.learning.queue_ring import QueueRing, combined
from rlplat.rl.sampling.tally import RunTally
from rlplat.rl.sampling.worker_group import RolloutWorkers


class Worker:
    """A rollout is (slot, incarnation, its number, version)."""

    def __init__(self, slot: int, incarnation: int) -> None:
        self.place, self.number = (slot, incarnation), 0

    def sample(self, latest: tuple[int, Any]) -> tuple[tuple[int, ...], None]:
        self.number += 1
        return (*self.place, self.number, latest[0]), None


class CountingLearner:
    def __init__(self, server: Any) -> None:
        self.server, self.version, self.batches = server, 0, []
        rlplat.get(server.set_weights.remote(0, {}))

    def ready(self) -> None:
        pass

    def update(self, *rollouts: tuple[int, ...]) -> UpdateReport:
        self.batches.append(rollouts)
        ages = [self.version - rollout[3] for rollout in rollouts]
        self.version += 1
        rlplat.get(self.server.set_weights.remote(self.version, {}))
        metrics = {"learner/staleness_max": max(ages), "time/train_s": 0.5, "learner/dropped_rollouts": 1}
        return UpdateReport(10 * len(rollouts), [Episode(1.0, 5)], metrics)

    def seen(self) -> list[Any]:
        return self.batches


def make(num_workers: int, batch_size: int, *, in_rounds: bool = False, **options: Any) -> tuple[QueueRing, Any]:
    server = rlplat.remote(ParameterServer).remote()
    learners = LearnerGroup(server, lambda _: rlplat.remote(CountingLearner).remote(server))
    learners.wait_until_ready()
    workers = RolloutWorkers(rlplat.remote(Worker).remote, num_workers, num_batches=2, **options)
    ring = QueueRing(learners, workers, RunTally(), batch_size=batch_size, in_rounds=in_rounds)
    return ring, learners.handles[0]


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
@pytest.mark.parametrize("in_rounds", [False, True])
def test_every_rollout_is_learnt_from_once_and_what_waits_is_bounded(
    runtime: None, num_workers: int, batch_size: int, in_rounds: bool
) -> None:
    ring, learner = make(num_workers, batch_size, in_rounds=in_rounds)
    for updates in (1, 6):
        metrics = ring.turn(updates)
        assert metrics["rollout/queue_depth"] <= num_workers + 2 * batch_size - 1
        # By equal workers: what waits before it, and what the learner has.
        assert metrics["learner/staleness_max"] <= (num_workers + batch_size - 1) / batch_size + 2
    ring.finish()
    batches = rlplat.get(learner.seen.remote())
    rollouts = [rollout for batch in batches for rollout in batch]
    numbers = {slot: [each[2] for each in rollouts if each[0] == slot] for slot in range(num_workers)}
    for slot, own in numbers.items():
        assert own == list(range(1, len(own) + 1)), slot
    spread = [len(own) for own in numbers.values()]
    assert max(spread) - min(spread) <= batch_size + 1, "nobody is silenced"
    assert ring._tally.env_steps == 10 * len(rollouts)
    if in_rounds:
        assert [each[0] for each in rollouts] == list(range(num_workers)) * (len(rollouts) // num_workers)
        by_round = [rollouts[i : i + num_workers] for i in range(0, len(rollouts), num_workers)]
        assert all(len({each[3] for each in each_round}) == 1 for each_round in by_round)
    else:
        assert {len(batch) for batch in batches} == {batch_size}


def test_a_slow_learner_makes_the_workers_pause(runtime: None) -> None:
    """Nothing of the learner's is handed on: rollouts come until there is no room, then none is asked for."""
    ring, _ = make(3, 2)
    ring._on_learnt = lambda *_: None  # type: ignore[method-assign]
    for _ in range(20):
        ring._ask()
        if not ring._in_flight._then:
            break
        ring._in_flight.next()
    assert (ring._calls, ring._in_hand, len(ring._queue), len(ring._idle)) == (2, 4, 4, 3)
    assert ring._room() == 0


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_dead_worker_costs_its_rollout_and_nothing_else(runtime: None, in_rounds: bool) -> None:
    ring, learner = make(2, 1, in_rounds=in_rounds)
    ring.turn(2)
    rlplat.kill(ring._workers.handles[1])
    ring.turn(6)
    assert ring.turn(4)["rollout/worker_restarts"] == 1
    rollouts = [batch[0] for batch in rlplat.get(learner.seen.remote())]
    assert {each[1] for each in rollouts if each[0] == 1} == {0, 1}
    assert {each[1] for each in rollouts if each[0] == 0} == {0}


def test_a_worker_that_keeps_dying_and_a_dead_learner_end_it(runtime: None) -> None:
    ring, learner = make(1, 1, max_restarts=1)
    with pytest.raises(ActorDied, match="more than 1 times"):
        for _ in range(3):
            rlplat.kill(ring._workers.handles[0])
            ring.turn(3)
    ring, learner = make(1, 1)
    rlplat.kill(learner)
    with pytest.raises(ActorDied):
        ring.turn(1)


def test_before_a_state_is_saved_everything_that_runs_ends_and_is_counted(runtime: None) -> None:
    ring, learner = make(2, 1)
    ring.turn(3)
    ring.finish()
    assert len(ring._idle) == 2 and not ring._calls
    learnt = sum(len(batch) for batch in rlplat.get(learner.seen.remote()))
    assert ring._tally.env_steps == 10 * learnt
    waiting = len(ring._queue)
    ring.turn(2)  # and what waited is learnt from
    assert waiting <= 2 and ring._tally.env_steps > 10 * learnt
    ring.finish()
    ring.reset()
    assert ring._is_at_rest


def test_metrics_of_several_updates_are_means_sums_and_maxima() -> None:
    reports = [
        {
            "learner/entropy": 1.0,
            "time/train_s": 1.0,
            "learner/staleness_max": 3,
            "learner/dropped_rollouts": 1,
        },
        {"time/train_s": 2.0, "learner/staleness_max": 5, "learner/dropped_rollouts": 1},
        {
            "learner/entropy": 2.0,
            "time/train_s": 3.0,
            "learner/staleness_max": 4,
            "learner/dropped_rollouts": 0,
        },
    ]
    assert combined(reports) == {
        "learner/entropy": 1.5,
        "time/train_s": 6.0,
        "learner/staleness_max": 5,
        "learner/dropped_rollouts": 2,
    }
