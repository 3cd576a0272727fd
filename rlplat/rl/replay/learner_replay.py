"""`LearnerReplay`: a replay within its learner, and the gradient steps that are due for what came into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.replay.buffer import ReplayShape, make_replay
from rlplat.rl.sampling.sample_batch import TransitionBatch


class LearnerReplay:
    """The classic ratio: one gradient step per `env_steps_per_update`, none before `learning_starts`.

    env_steps = replay.add(batches)                     # one round of all rollout workers
    for _ in range(replay.due(env_steps)):
        minibatch = replay.buffer.sample(32)
    """

    def __init__(
        self, config: Any, spec: PolicySpec, shape: ReplayShape, seed: np.random.SeedSequence
    ) -> None:
        """config: of an algorithm with env_steps_per_update, learning_starts and save_replay."""
        self.buffer = make_replay(shape, spec.obs, spec.action, seed)
        self._env_steps_per_update, self._starts = config.env_steps_per_update, config.learning_starts
        self._saves = config.save_replay
        self.env_steps = 0
        """That this replay has been given."""
        self._credit = 0.0  # env steps for which no gradient step has been made yet

    def add(self, batches: Sequence[TransitionBatch]) -> int:
        """The batches of one round, each into its worker's lanes -> their env steps."""
        for batch in batches:
            self.buffer.add(batch, batch.worker_index * batch.shape[1])
        env_steps = sum(batch.env_steps for batch in batches)
        self.env_steps += env_steps
        return env_steps

    def due(self, env_steps: int) -> int:
        """Gradient steps that these further env steps bring, with what was left over before."""
        if self.env_steps < self._starts or not len(self.buffer):
            return 0
        self._credit += env_steps
        due = int(self._credit // self._env_steps_per_update)
        self._credit -= due * self._env_steps_per_update
        return due

    def get_state(self) -> dict[str, Any]:
        return {
            "replay_steps": self.env_steps if self._saves else 0,
            "credit": self._credit,
            "replay": self.buffer.get_state() if self._saves else None,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """state: may hold more. Without the contents, or with save_replay false, the replay fills anew."""
        self._credit = float(state["credit"])
        if self._saves and state["replay"] is not None:
            self.buffer.set_state(state["replay"])
            self.env_steps = int(state["replay_steps"])
