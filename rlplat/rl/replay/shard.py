"""`ReplayShard`: an actor that holds part of the replay, for rings in which sampling and learning do not wait."""

from __future__ import annotations

from typing import Any

from rlplat.rl.interfaces import Array, UpdateReport
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, SequenceMinibatch, make_replay
from rlplat.rl.sampling.transition_batch import TransitionBatch
from rlplat.rl.seeding import seed_sequences


class ReplayShard:
    """Part of the replay, in a process of its own.

    num_drawable, report = get(shard.add.remote(batch_ref, first_lane))
    metrics, priorities = learner.learn.remote(shard.sample.remote(8 * 32, beta), env_steps)
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
