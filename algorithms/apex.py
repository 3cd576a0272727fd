"""Ape-X (Horgan et al. 2018): DQN whose rollout workers, replay shards and learner never wait for each other.

    rollout workers ──TransitionBatch refs──▶ replay shards ──minibatches──▶ learner ──weights──▶ server ──▶ workers
                                                 ▲────────priorities──────────┘

Every environment has its own epsilon, 0.4^(1 + 7 i / (N - 1)); new transitions come with priorities by the weights that
acted. Losses and gradient step are DQN's (algorithms/dqn.py), with `--policy.core lstm` R2D2's (r2d2.py). The ratio of
env steps to gradient steps is kept within `ratio_slack`. Not reproducible: who is first differs from run to run.

Before this file, and after it (rlplat/rl/...; the others are named in algorithms/dqn.py):

    off_policy/apex_ring.py            ApexRing asks who is idle and keeps the ratio; ReplayShard: a part of the replay
    policies/exploration.py            env_epsilons, the epsilon of every environment
    learning/queue_ring.py InFlight    calls that are under way, and what is to be done when one is through
    replay/buffer.py, sum_tree.py      a shard's replay: priorities by the weights that acted, proportional draws

Different from the paper:

- importance weights are divided by the largest of the minibatch, not of the whole replay;
- with C51 and with sequences, new ones get the largest priority so far: errors of returns are of another scale.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import Field

import rlplat
from rlplat.algorithms.dqn import DQNConfig, DQNLearner
from rlplat.algorithms.r2d2 import R2D2, SequenceConfig
from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Result
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan
from rlplat.rl.off_policy.apex_ring import ApexRing, ReplayShard, shape_of_shard
from rlplat.rl.off_policy.ring import Require
from rlplat.rl.policies.exploration import env_epsilons
from rlplat.rl.policies.make import q_policy_for
from rlplat.rl.policies.spec import require_discrete
from rlplat.rl.replay.buffer import Minibatch, SequenceMinibatch
from rlplat.rl.spread import spread
from rlplat.section import Count

if TYPE_CHECKING:
    from rlplat.rl.run.typed_settings import ApexSettings


class ApexConfig(SequenceConfig):
    """Ape-X's settings: DQN's, double, dueling, three-step and prioritised, and those of the asynchronous ring."""

    fixed_on_resume = (*SequenceConfig.fixed_on_resume, "num_replay_shards")

    double: bool = True
    """The online network chooses the next action, the target network values it."""
    dueling: bool = True
    """Heads for V and A: Q = V + A - mean(A)."""
    n_step: int = Field(default=3, ge=1, le=10_000)
    """Rewards that are summed before the bootstrap."""
    prioritized: bool = True
    """Draw in proportion to the error."""
    num_replay_shards: int = Field(default=1, ge=1, le=1024)
    """Actors that share the replay."""
    updates_per_call: Count = 8
    """Gradient steps per message to the learner, after which it publishes its weights."""
    ratio_slack: float = Field(default=2_000.0, ge=0.0, le=1e12)
    """Env steps that rollout workers, or the learner, may be ahead of env_steps_per_update (never less than what is
    under way at any time)."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[ApexSettings]) -> None: ...


class ApexLearner(DQNLearner):
    """An actor: trains on what shards have drawn, publishes the weights."""

    @rlplat.method(num_returns=2)
    def learn_drawn(
        self, drawn: Minibatch | SequenceMinibatch, env_steps: int
    ) -> tuple[dict[str, float], tuple[Array, Array, Array]]:
        """Algorithm 2, `updates_per_call` times -> (metrics, what a shard's `update_priorities` takes).

        env_steps: how far the run is, for the schedules.
        """
        self.env_steps = env_steps
        started = perf_counter()
        trained, priorities = self.train(drawn)
        self.publish_next()
        metrics = self.metrics(trained) | {"time/train_s": perf_counter() - started}
        return metrics, (drawn.rows, drawn.stamps, priorities)


class Apex(R2D2):
    """with Apex(ApexConfig(env="Pong", num_rollout_workers=8)) as apex:
    while (result := apex.step()).env_steps < 1_000_000:
        print(result.env_steps, result.episode_return_mean)
    """

    name, learner_class = "apex", ApexLearner
    config_class: type[DQNConfig] = ApexConfig
    config: ApexConfig

    def setup(self) -> None:
        """Shards, learner, rollout workers and their driver; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        self.spaces = self.preflight(require_discrete)
        [(spec, B)] = self.policies(self.spaces)
        num_workers = max(1, config.num_rollout_workers)
        shape, shard = self.replay_shape(spec, B), spread(ReplayShard, settings)
        shards = [
            self.start(shard, settings, spec, shape_of_shard(shape, config, i), i)
            for i in range(config.num_replay_shards)
        ]
        self.learners = self.start_learners(settings, spec)
        epsilons = env_epsilons(num_workers * B).reshape(num_workers, B)
        self.workers = self.start_rollout_workers(settings, [partial(q_policy_for, epsilons=own) for own in epsilons])
        self.ring = self.add(ApexRing(config, shards, self.learners, self.workers, self.tally))
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """As many env steps as a round of all workers has; whoever does what meanwhile."""
        self.require_open()
        return self.result(self.ring.turn(), {})

    def preflight(self, require: Require) -> Any:
        config, spaces = self.config, super().preflight(require)
        if isinstance(spaces, MultiAgentPlan):
            raise ConfigError("the replay shards of apex are for one agent: --algo dqn")
        if config.normalize_observations:
            raise ConfigError(
                "normalize_observations of dqn and r2d2 wants who measures to see every observation, as the learner of "
                "apex does not: set it to false"
            )
        if config.num_replay_shards > max(1, config.num_rollout_workers):
            raise ConfigError(
                f"num_replay_shards={config.num_replay_shards}, but there are {max(1, config.num_rollout_workers)} "
                "rollout workers to fill them: lower it, or raise --num-rollout-workers"
            )
        return spaces

    @property
    def not_saved(self) -> tuple[str, ...]:
        return (*super().not_saved, "the order of events (actors do not wait): a resumed run is another one")

    def get_state(self) -> dict[str, Any]:
        ring = self.ring.get_state()  # first: nothing is under way after it
        return super().get_state() | ring

    def set_state(self, state: dict[str, Any]) -> None:
        self.ring.set_state(state)
        super().set_state(state)
