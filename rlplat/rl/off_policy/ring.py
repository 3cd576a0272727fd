"""`ReplayRing`: the ring of off-policy algorithms with continuous actions, and everything of it but the learning.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A round: all rollout workers make `rollout_length` steps, the learner the gradient steps that are due for them. Same
seed, same curve, bit for bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlplat.rl.envs import check
from rlplat.rl.interfaces import Policy, Result, Weights
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.off_policy.learner import OffPolicyConfig, ReplayLearner
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor, require_bounded
from rlplat.rl.policies.framework_check import require_torch
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.replay.buffer import ReplayShape, require_room
from rlplat.rl.replay.hindsight import hindsight_of, record_of, require_goals
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread

RingConfig = TypeVar("RingConfig", bound=OffPolicyConfig)


class ReplayRing(Algorithm[RingConfig]):
    """A subclass writes `name`, `config_class`, `nets` and `actor_spec`."""

    learner_class: type[ReplayLearner] = ReplayLearner
    """Made with (computation, settings, spec, parameter_server, replay_shape)."""
    spaces: SpaceSpec

    @staticmethod
    def actor_spec(settings: dict[str, Any]) -> ActorSpec:
        """How the actor of a config (as a dict) acts."""
        raise NotImplementedError

    def setup(self) -> None:
        """Parameter server, learner, rollout workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        self.spaces = preflight(config, self.name)
        self.check_spaces()
        spec, shape = policy_spec(settings["policy"], self.spaces), replay_shape(config)
        worker = spread(RolloutWorker, settings)
        self.learners = self.start_learners(settings, spec, shape)
        make, record = partial(bounded_actor, actor=self.actor_spec(settings)), record_of(config)
        self.workers = self.start_workers(lambda *place: worker.remote(settings, *place, make, record=record))
        self.learners.wait_until_ready()

    def check_spaces(self) -> None:
        """Raises UsageError where this algorithm cannot take `self.spaces`, though its actor could."""

    def step(self) -> Result:
        """One round: sample, update, publish."""
        self.require_open()
        batches = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())

    @property
    def not_saved(self) -> tuple[str, ...]:
        replay = "the contents of the replay (save_replay: true saves them): after a resume it fills again"
        return (*self.workers.not_saved(), *([] if self.config.save_replay else [replay]))

    @classmethod
    def make_policy(cls, settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """The policy that acts with this algorithm's weights; settings: the config as a dict."""
        return bounded_actor(settings, spaces, seed, actor=cls.actor_spec(settings))

    def set_weights(self, weights: Weights) -> None:
        super().set_weights(weights)
        self.notes += ("these weights act from the first step on: no uniform actions before learning_starts",)


def bounded_actor(
    settings: dict[str, Any],
    spaces: SpaceSpec,
    seed: np.random.SeedSequence,
    *,
    actor: ActorSpec,
    num_threads: int = 0,
) -> BoundedActor:
    """The policy of a config (as a dict) in these spaces; num_threads: of a framework, of which there is none here."""
    return BoundedActor(policy_spec(settings["policy"], spaces), actor, seed)


def replay_shape(config: OffPolicyConfig) -> ReplayShape:
    return ReplayShape(
        capacity=config.replay_capacity,
        num_lanes=max(1, config.num_rollout_workers) * config.num_envs_per_worker,
        n_step=config.n_step,
        discount=config.discount,
        alpha=0.0,
        clip_rewards=False,
        frame_stacks=False,
        hindsight=hindsight_of(config),
    )


def preflight(config: OffPolicyConfig, algo: str) -> SpaceSpec:
    """In the driver, before any actor starts: environment and networks fit, and the replay fits into memory."""
    require_torch(config.framework, algo)
    spaces = check.preflight(config)
    require_bounded(spaces, config.env, algo)
    require_goals(config, spaces)
    if config.normalize_observations:
        require_normalizable(spaces.obs)
    require_room(replay_shape(config), spaces.obs, config.rollout_length)
    return spaces
