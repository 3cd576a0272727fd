"""`RecordedTransitions`: single steps of recorded episodes as the minibatches that a replay gives."""

from __future__ import annotations

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.replay.buffer import Minibatch


class RecordedTransitions:
    """drawn = transitions.take(epochs.rows(env_steps, 256))"""

    def __init__(self, episodes: Episodes, discount: float) -> None:
        self.episodes = episodes
        self._obs_rows = episodes.obs_rows()
        self._discounts = np.where(episodes.ends(), 0.0, discount).astype(np.float32)

    def __len__(self) -> int:
        return self.episodes.num_steps

    def take(self, rows: Array) -> Minibatch:
        """rows: int64[M] of steps. The last one of an episode that was cut off bootstraps from its last observation."""
        episodes, obs_rows = self.episodes, self._obs_rows[rows]
        return Minibatch(
            obs=take_obs(episodes.obs, obs_rows),
            actions=episodes.actions[rows],
            returns=episodes.rewards[rows],
            discounts=self._discounts[rows],
            next_obs=take_obs(episodes.obs, obs_rows + 1),
            weights=np.ones(len(rows), np.float32),
            rows=rows,
            stamps=np.zeros(len(rows), np.int64),
        )
