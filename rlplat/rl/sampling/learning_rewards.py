"""`LearningRewards`: from the raw rewards of a fragment to those that are learnt from; metrics stay raw."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.errors import ConfigError, NonFiniteError
from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import RewardNormalizer
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.saved import Saved


class LearningRewards(Saved):
    """Raw, by sign (`clip_rewards`), or divided by the running deviation of the return (`normalize_rewards`).

    rewards = LearningRewards(config)(batch)            # float32[T, B]
    """

    saved = {"**": "_normalizer"}

    def __init__(self, config: Any) -> None:
        """config: of an algorithm that has these two switches."""
        if config.clip_rewards and config.normalize_rewards:
            raise ConfigError(
                "clip_rewards and normalize_rewards exclude each other: set one of them to false"
            )
        self._env = config.env
        self._clips, self._normalizes = config.clip_rewards, config.normalize_rewards
        self._normalizer = RewardNormalizer(config.discount)

    def __call__(self, batch: SampleBatch) -> Array:
        """NonFiniteError names environment, step and action of the first reward that is NaN or infinite."""
        rewards = batch.rewards
        if not np.isfinite(rewards).all():
            t, b = np.argwhere(~np.isfinite(rewards))[0]
            raise NonFiniteError(
                f"reward {rewards[t, b]} from environment {b} of rollout worker {batch.worker_index} (step {t} of the "
                f"fragment, action {batch.actions[t, b]}); fix {self._env}'s reward"
            )
        if self._clips:
            return np.sign(rewards)
        if self._normalizes:
            return self._normalizer.normalize(
                rewards,
                batch.terminated | batch.truncated,
                batch.valid,
                worker_index=batch.worker_index,
                incarnation=batch.incarnation,
            )
        return rewards
