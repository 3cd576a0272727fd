"""`QueueRing`: the driver of a ring in which rollouts wait in a queue for one learner, and nobody waits for a round.

    rollout workers ──rollout refs──▶ queue ──▶ learner ──weights──▶ parameter server ──▶ rollout workers

    ring = QueueRing(learners, workers, tally, batch_size=2)
    metrics = ring.turn(num_updates=20)                 # it goes on turning while the driver does other things

A worker begins its next rollout, with the newest weights, while fewer rollouts are being sampled or waiting than one of
every worker and one update's worth less one: so nobody is idle while a batch gathers, and a slow learner makes workers
pause instead of filling memory. The learner has two calls at most, one of which waits. Only refs pass through.

`InFlight`: the part of it that other rings share whose actors do not wait for each other: what is running, and what
follows from each.

    in_flight.ask(worker.sample.remote(weights), then=on_rollout)       # returns at once
    while not enough:
        in_flight.next()                                # waits for one answer; on_rollout(ref) asks for what follows
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import rlplat
from rlplat.errors import ActorDied, EnvError, RlplatError, WorkerCrashed
from rlplat.rl.interfaces import UpdateReport
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.sampling.tally import RunTally
from rlplat.rl.sampling.worker_group import RolloutWorkers

if TYPE_CHECKING:
    from rlplat import ObjectRef


class InFlight:
    def __init__(self) -> None:
        self._then: dict[ObjectRef, Callable[[ObjectRef], None]] = {}

    def ask(self, ref: ObjectRef, then: Callable[[ObjectRef], None]) -> None:
        """then(ref): called by `next` or `finish` when the value is there, or has failed; it may ask for more."""
        self._then[ref] = then

    def next(self) -> None:
        """Wait until something is there, and hand it on. Where several handlers raise, the first failure is raised when
        all were called: what has arrived is counted."""
        ready, _ = rlplat.wait(list(self._then), num_returns=1)
        self._hand_on(ready)

    def finish(self) -> None:
        """Hand on all that is running and what follows from it, until nothing is; raises as `next` does, at the end."""
        failures: list[RlplatError] = []
        while self._then:
            try:
                self.next()
            except RlplatError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _hand_on(self, ready: list[ObjectRef]) -> None:
        failures: list[RlplatError] = []
        for ref in ready:
            try:
                self._then.pop(ref)(ref)
            except RlplatError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Forget what is running."""
        self._then.clear()


CALLS = 2
"""Of the learner at a time: it finds the next batch there when it has trained on one."""
COUNTS = ("learner/dropped_rollouts", "learner/skipped_minibatches")
"""Metrics of updates that add up."""


class QueueRing:
    """workers: `sample(latest)` returns two values, the rollout and one that says that it is there (or raises why not);
    the learner: `update(*rollouts)` returns an `UpdateReport`."""

    def __init__(
        self,
        learners: LearnerGroup,
        workers: RolloutWorkers,
        tally: RunTally,
        *,
        batch_size: int,
        in_rounds: bool = False,
    ) -> None:
        """batch_size: rollouts per update; in_rounds: one rollout of every worker under the same weights, then the
        updates on them in the order of the workers, so that nothing depends on who is fast; the last may be smaller."""
        self._learners, self._workers, self._tally = learners, workers, tally
        self._batch_size, self._in_rounds = batch_size, in_rounds
        self._in_flight = InFlight()
        self._begin()

    def _begin(self) -> None:
        self._in_flight.close()
        self._idle = deque(range(len(self._workers.handles)))
        """Slots of workers that have no call; the one that waits longest is first."""
        self._queue: list[tuple[int, ObjectRef]] = []
        """(slot, rollout)"""
        self._calls = self._in_hand = 0
        """The learner's calls, and rollouts in them."""
        self._reports: list[dict[str, float]] = []

    def turn(self, num_updates: int) -> dict[str, float]:
        """Until so many updates are made: their metrics. Env steps and episodes are counted in the tally."""
        started = perf_counter()
        while len(self._reports) < num_updates or (self._in_rounds and not self._is_at_rest):
            self._ask()
            self._in_flight.next()
        if not self._in_rounds:
            self._ask()  # while the driver writes its metrics
        metrics = combined(self._reports)
        self._reports.clear()
        return metrics | {
            "rollout/worker_restarts": self._workers.restarts,
            "time/round_s": perf_counter() - started,
        }

    @property
    def _is_at_rest(self) -> bool:
        return len(self._idle) == len(self._workers.handles) and not self._queue and not self._calls

    def _ask(self) -> None:
        """Ask learner and workers for whatever there is room for."""
        while self._calls < CALLS and (batch := self._next_batch()):
            self._calls += 1
            self._in_hand += len(batch)
            update = self._learners.handles[0].update.remote(*batch)
            self._in_flight.ask(update, then=partial(self._on_learnt, len(batch)))
        for _ in range(self._room()):
            slot = self._idle.popleft()
            rollout, arrived = self._workers.start_fragment(slot, *self._learners.latest())
            self._in_flight.ask(arrived, then=partial(self._on_rollout, slot, rollout))

    def _next_batch(self) -> list[ObjectRef]:
        """The oldest rollouts, which leave the queue; none while they are too few."""
        if self._in_rounds:
            if len(self._idle) < len(self._workers.handles):
                return []
            self._queue.sort(key=lambda item: item[0])
        elif len(self._queue) < self._batch_size:
            return []
        batch, self._queue = self._queue[: self._batch_size], self._queue[self._batch_size :]
        return [rollout for _, rollout in batch]

    def _room(self) -> int:
        """How many idle workers may begin a rollout."""
        num_workers = len(self._workers.handles)
        if self._in_rounds:
            return num_workers if self._is_at_rest else 0
        sampling = num_workers - len(self._idle)
        return min(len(self._idle), num_workers + self._batch_size - 1 - sampling - len(self._queue))

    def _on_rollout(self, slot: int, rollout: ObjectRef, arrived: ObjectRef) -> None:
        """A worker has sampled; of one that was lost the rollout is lost, and its next incarnation begins another."""
        self._idle.append(slot)
        try:
            rlplat.get(arrived)
        except (ActorDied, WorkerCrashed, EnvError) as loss:
            self._workers.replace(slot, loss)
        else:
            self._queue.append((slot, rollout))

    def _on_learnt(self, num_rollouts: int, update: ObjectRef) -> None:
        self._calls -= 1
        self._in_hand -= num_rollouts
        report: UpdateReport = rlplat.get(update)
        self._tally.count(report.env_steps, report.episodes)
        depth = {"rollout/queue_depth": float(len(self._queue) + self._in_hand)}
        self._reports.append(report.metrics | depth)

    def finish(self) -> None:
        """Before a state is saved: nothing new is asked for, and what was learnt is counted. Rollouts that wait stay in
        the queue; in rounds there are none."""
        self._in_flight.finish()

    def reset(self) -> None:
        """Forget what is running and what waits: the workers and the learner were given another state."""
        self._begin()

    def close(self) -> None:
        """Forget what is running."""
        self._in_flight.close()


def combined(reports: list[dict[str, float]]) -> dict[str, float]:
    """Of several updates: seconds (`time/`) and COUNTS add up, of `..._max` and the version the largest, else means
    over those that have the metric."""
    metrics: dict[str, float] = {}
    for name in sorted({name for report in reports for name in report}):
        values = [report[name] for report in reports if name in report]
        if name.startswith("time/") or name in COUNTS:
            metrics[name] = sum(values)
        else:
            metrics[name] = max(values) if name.endswith(("_max", "_version")) else sum(values) / len(values)
    return metrics
