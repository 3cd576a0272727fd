"""`ApexRing`: the driver of a ring whose actors never wait for each other (Ape-X, Horgan et al. 2018).

    rollout workers ──TransitionBatch refs──▶ replay shards ──minibatches──▶ learner ──weights──▶ server ──▶ workers
                                                 ▲────────priorities──────────┘

    ring = ApexRing(config, shards, learners, workers, tally)
    report = ring.turn()                                # until one more round of env steps is in the replay

Env steps and gradient steps are kept in their ratio within `ratio_slack`. Worker w fills shard w % S; its lanes are the
environments of its workers, and it is drawn from as often as it has workers: every environment counts alike, whether or
not S divides their number. Only refs pass through the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import rlplat
from rlplat.errors import ActorDied, EnvError, RlplatError, WorkerCrashed
from rlplat.rl.interfaces import Array, UpdateReport
from rlplat.rl.learning.learner_group import LearnerGroup
from rlplat.rl.learning.queue_ring import InFlight
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch, make_replay
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.sampling.tally import RunTally
from rlplat.rl.sampling.worker_group import RolloutWorkers
from rlplat.rl.schedules import schedule_value
from rlplat.rl.seeding import seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef


class ApexRing:
    """Has the shards (`ReplayShard`), asks them, the workers and the learner (`learn_drawn`) for what comes next."""

    def __init__(
        self,
        config: Any,
        shards: Sequence[ActorHandle],
        learners: LearnerGroup,
        workers: RolloutWorkers,
        tally: RunTally,
    ) -> None:
        """config: of an algorithm with rollout_length, batch_size, learning_starts, env_steps_per_update, prioritized,
        importance_beta, updates_per_call and ratio_slack. tally: env steps are counted there as they come."""
        self._config, self._learners, self._workers, self._tally = config, learners, workers, tally
        self.shards = list(shards)
        self.shard_sizes = [0] * len(self.shards)
        self.updates = 0
        """Gradient steps so far."""
        self._in_flight = InFlight()
        self._sampling: set[int] = set()  # slots of the workers that have a call
        self._learning = 0  # calls of the learner, and of shards that draw for it
        self._next_drawn = self._next_slot = 0
        self._reports: list[UpdateReport] = []
        self._learner_metrics: list[dict[str, float]] = []
        self._fragment_steps = config.rollout_length * config.num_envs_per_worker  # env steps of one worker's call
        running = float(len(workers.handles) * self._fragment_steps)
        running += 2 * config.updates_per_call * config.env_steps_per_update
        self._slack = max(config.ratio_slack, running)
        self._fill_from(0, 0)

    def turn(self) -> UpdateReport:
        """Until one more round of env steps is in the replay. The report's own env steps are 0: they were counted."""
        started, num_workers = perf_counter(), len(self._workers.handles)
        reports, trained = self._reports, self._learner_metrics
        reports.clear()
        trained.clear()
        while sum(report.env_steps for report in reports) < self._fragment_steps * num_workers:
            self._ask()
            self._in_flight.next()
        metrics = _means([report.metrics for report in reports]) | _means(trained)
        metrics |= {
            # What a worker and the learner were busy with in this round; they do not wait for each other.
            "time/worker_busy_s": sum(each.metrics["rollout/sample_s"] for each in reports) / num_workers,
            "time/learner_busy_s": sum(each["time/train_s"] for each in trained),
            "time/round_s": perf_counter() - started,
            "learner/updates": self.updates,
            "learner/env_steps_per_update": self._limiter.ahead(self._tally.env_steps, 0) / max(1, self.updates),
            "learner/replay_size": sum(self.shard_sizes),
            "rollout/worker_restarts": self._workers.restarts,
        }
        return UpdateReport(0, [episode for report in reports for episode in report.episodes], metrics)

    def _ask(self) -> None:
        """Ask for whatever may be asked for: fragments of idle workers, and gradient steps, two messages at a time."""
        config, first, num_workers = self._config, self._next_slot, len(self._workers.handles)
        for slot in (*range(first, num_workers), *range(first)):  # in turn: the limit must not silence any
            promised = self._tally.env_steps + len(self._sampling) * self._fragment_steps
            is_allowed = self._limiter.may_sample(promised, self.updates) or not self._is_filled()
            if slot not in self._sampling and is_allowed:
                self._sampling.add(slot)
                self._next_slot = (slot + 1) % num_workers
                fragment = self._workers.start_fragment(slot, *self._learners.latest())
                self._in_flight.ask(fragment, then=partial(self._on_fragment, slot))
        while self._learning < 2 and self._is_filled():
            promised = self.updates + self._learning * config.updates_per_call
            if not self._limiter.may_update(self._tally.env_steps, promised):
                break
            self._learning += 1
            shard = self.shards[self._next_drawn % len(self.shards)]  # of each worker in turn
            self._next_drawn = (self._next_drawn + 1) % num_workers
            beta = schedule_value(config.importance_beta, self._tally.env_steps, config.stop.env_steps)
            drawn = shard.sample.remote(config.batch_size * config.updates_per_call, beta)
            self._in_flight.ask(drawn, then=partial(self._on_drawn, shard))

    def _fill_from(self, env_steps: int, updates: int) -> None:
        """The replay is empty at these: as at the start of a run, what fills it brings no gradient steps."""
        self._empty_at = env_steps, updates
        ratio = self._config.env_steps_per_update
        starts = env_steps + self._config.learning_starts - updates * ratio
        self._limiter = RatioLimiter(ratio, starts, self._slack)

    def _is_filled(self) -> bool:
        """Whether the replay has what the first gradient step waits for; anew after a resume without its contents."""
        steps = self._tally.env_steps - self._empty_at[0]
        return min(self.shard_sizes) > 0 and steps >= self._config.learning_starts

    def _on_fragment(self, slot: int, fragment: ObjectRef) -> None:
        """A worker has sampled: its shard takes the fragment."""
        S = len(self.shards)
        lane = slot // S * self._config.num_envs_per_worker
        added = self.shards[slot % S].add.remote(fragment, lane)
        self._in_flight.ask(added, then=partial(self._on_added, slot, fragment))

    def _on_added(self, slot: int, fragment: ObjectRef, added: ObjectRef) -> None:
        """A shard has taken a fragment: count it; a lost one is sampled anew by the worker's next incarnation."""
        self._sampling.discard(slot)
        try:
            self.shard_sizes[slot % len(self.shards)], report = rlplat.get(added)
        except RlplatError:
            try:
                rlplat.get(fragment)
            except (ActorDied, WorkerCrashed, EnvError) as loss:
                return self._workers.replace(slot, loss)
            raise
        self._tally.env_steps += report.env_steps
        self._reports.append(report)

    def _on_drawn(self, shard: ActorHandle, drawn: ObjectRef) -> None:
        """A shard has drawn minibatches: the learner trains on them."""
        metrics, priorities = self._learners.handles[0].learn_drawn.remote(drawn, self._tally.env_steps)
        self._in_flight.ask(metrics, then=partial(self._on_learnt, shard, priorities))

    def _on_learnt(self, shard: ActorHandle, priorities: ObjectRef, metrics: ObjectRef) -> None:
        """The learner has trained: the priorities go back to the shard."""
        self._learning -= 1
        self._learner_metrics.append(rlplat.get(metrics))
        self.updates += self._config.updates_per_call
        if self._config.prioritized:
            shard.update_priorities.remote(priorities)

    def get_state(self) -> dict[str, Any]:
        """Nothing new is asked for; what still comes is counted first."""
        self._reports.clear()
        try:
            self._in_flight.finish()
        finally:
            for report in self._reports:
                self._tally.count(0, report.episodes)
        return {
            "updates": self.updates,
            "empty_at": list(self._empty_at),
            "shards": rlplat.get([shard.get_state.remote() for shard in self.shards]),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """state: the run's, with the same number of shards."""
        states = zip(self.shards, state["shards"], strict=True)
        self.shard_sizes = rlplat.get([shard.set_state.remote(each) for shard, each in states])
        self.updates = int(state["updates"])
        if not self._config.save_replay or None in state["shards"]:
            self._fill_from(int(state["env_steps"]), self.updates)
        else:
            self._fill_from(*state.get("empty_at", (0, 0)))

    def close(self) -> None:
        """Forget what is running."""
        self._in_flight.close()


def shape_of_shard(shape: ReplayShape, config: Any, index: int) -> ReplayShape:
    """The part of a replay that is in one of `config.num_replay_shards`: lanes for the workers that fill it."""
    workers = range(index, max(1, config.num_rollout_workers), config.num_replay_shards)
    return shape.part(len(workers) * config.num_envs_per_worker)


def _means(metrics: list[dict[str, float]]) -> dict[str, float]:
    """The mean of every metric over the reports that have it."""
    names = {name for each in metrics for name in each}
    return {name: float(np.mean([each[name] for each in metrics if name in each])) for name in sorted(names)}


class RatioLimiter:
    """Keeps env steps and gradient steps of the asynchronous ring together, as Reverb's rate limiter does.

        ahead = env steps beyond learning_starts - updates * env_steps_per_update

    stays within +-slack: rollout workers pause above, the learner below. What is under way counts as done.
    """

    def __init__(self, env_steps_per_update: float, learning_starts: float, slack: float) -> None:
        self._ratio, self._starts, self._slack = env_steps_per_update, learning_starts, slack

    def ahead(self, env_steps: int, updates: int) -> float:
        return env_steps - self._starts - updates * self._ratio

    def may_sample(self, env_steps: int, updates: int) -> bool:
        """Whether one more fragment may be asked for."""
        return self.ahead(env_steps, updates) <= self._slack

    def may_update(self, env_steps: int, updates: int) -> bool:
        """Whether one more message may go to the learner."""
        return env_steps >= self._starts and self.ahead(env_steps, updates) >= -self._slack


class ReplayShard:
    """Part of the replay, in a process of its own.

    num_drawable, report = get(shard.add.remote(batch_ref, first_lane))
    metrics, priorities = learner.learn_drawn.remote(shard.sample.remote(8 * 32, beta), env_steps)
    shard.update_priorities.remote(priorities)
    """

    def __init__(self, config: dict[str, Any], spec: PolicySpec, shape: ReplayShape, index: int) -> None:
        self._replay = make_replay(
            shape, spec.obs, spec.action, seed_sequences(config["seed"], "learner", 1 + index)[1]
        )
        self._saves = config["save_replay"]
        # The error of the Q-values, in units of returns. C51's priority is a divergence in nats: beside it new
        # transitions get the largest so far, as in Rainbow.
        self._priorities_by_actor = config.get("distributional") != "c51"

    def add(self, batch: TransitionBatch, first_lane: int) -> tuple[int, UpdateReport]:
        """-> (what can be drawn now, env steps, episodes and times of the batch)."""
        self._replay.add(batch, first_lane, priorities_by_actor=self._priorities_by_actor)
        metrics = {f"rollout/{name}": seconds for name, seconds in batch.timing.items()}
        metrics["rollout/weights_version"] = batch.weights_version
        return len(self._replay), UpdateReport(batch.env_steps, batch.episodes, metrics)

    def sample(self, size: int, beta: float) -> Minibatch | SequenceMinibatch:
        return self._replay.sample(size, beta)

    def update_priorities(self, rows_stamps_priorities: tuple[Array, Array, Array]) -> None:
        self._replay.update_priorities(*rows_stamps_priorities)

    def get_state(self) -> dict[str, Any] | None:
        return self._replay.get_state() if self._saves else None

    def set_state(self, state: dict[str, Any] | None) -> int:
        if self._saves and state is not None:
            self._replay.set_state(state)
        return len(self._replay)
