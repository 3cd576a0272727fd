"""Recorded transitions in the place of a replay: what CQL and TD3+BC put before SAC's and TD3's classes.

class CQLConfig(RecordedConfig, SACConfig)
class CQLLearner(RecordedLearner, SACLearner)
class CQL(RecordedControl[CQLConfig])
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from rlplat.rl.interfaces import UpdateReport
from rlplat.rl.learning.backend import Computation
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.off_policy.learner import ContinuousConfig, ContinuousLearner, ContinuousPolicyConfig
from rlplat.rl.offline.dataset import read_episodes
from rlplat.rl.offline.episodes import RecordedTransitions
from rlplat.rl.offline.ring import NOT_SAMPLED, DataConfig, DataRing, Epochs
from rlplat.rl.policies.bounded_actor import require_bounded
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.unused_settings import Unused


class RecordedConfig(DataConfig, ContinuousConfig):
    """The settings that have to do with learning, and where the data is."""

    unused = {
        **ContinuousConfig.unused,
        **NOT_SAMPLED,
        **{
            name: Unused("transitions are recorded ones")
            for name in (
                "rollout_length",
                "learning_starts",
                "env_steps_per_update",
                "replay_capacity",
                "save_replay",
            )
        },
        "n_step": Unused("recorded steps are learnt from one by one", is_error=True),
        "hindsight.goal_selection_strategy": Unused("recorded steps keep their goals", is_error=True),
    }

    shapes_replay = ()

    policy: ContinuousPolicyConfig = Field(default_factory=ContinuousPolicyConfig)


class RecordedLearner(ContinuousLearner[Any]):
    """An actor: reads the data, makes `updates_per_round` gradient steps at a time, publishes the weights. Networks,
    optimizers and gradient steps are those of the class behind it."""

    acts_from_start = True

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        super().__init__(computation, *arguments)
        episodes = read_episodes(self.config.data)
        self._data = RecordedTransitions(episodes, self.config.discount)
        self._epochs = Epochs(len(self._data), self.seeds[1])
        self._num_drawn = 0
        if self.config.normalize_observations:
            obs = take_obs(episodes.obs, episodes.obs_rows())
            self.obs_statistics.update(obs, np.ones(len(self._data), np.bool_))

    def update(self, *batches: Any) -> UpdateReport:
        """One round; publishes version + 1."""
        started, self._num_drawn = perf_counter(), self.env_steps
        trained = self.learn(self.config.updates_per_round)
        env_steps = self.config.updates_per_round * self.config.batch_size
        self.env_steps += env_steps
        learnt = perf_counter()
        self.publish_next()
        metrics = self.metrics(trained) | {
            "learner/epochs": self.env_steps / len(self._data),
            "time/train_s": learnt - started,
            "time/publish_s": perf_counter() - learnt,
        }
        return UpdateReport(env_steps, [], metrics)

    def draw(self, size: int) -> Minibatch:
        """Of the data, in the order of the epochs."""
        rows = self._epochs.rows(self._num_drawn, size)
        self._num_drawn += size
        return self._data.take(rows)


AnyConfig = TypeVar("AnyConfig", bound=RecordedConfig)


class RecordedControl(DataRing[AnyConfig]):
    """The ring; a subclass writes `name`, `config_class`, `learner_class`, `losses` and `make_policy`."""

    def check_spaces(self) -> None:
        require_bounded(self.spaces, self.config.env, self.name, "iql")
        if self.config.normalize_observations:
            require_normalizable(self.spaces.obs)
