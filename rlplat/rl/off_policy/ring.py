"""`OffPolicy`: what off-policy algorithms do alike beside `setup` and `step`; `ContinuousControl`: those of them whose
actions are bounded and continuous.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A round: all rollout workers make `rollout_length` steps, the learner the gradient steps that are due for them. Same
seed, same curve, bit for bit.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from rlplat.rl.algorithm_config import Config
from rlplat.rl.envs import check
from rlplat.rl.interfaces import MakePolicy, Weights
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.off_policy.learner import OffPolicyConfig
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor, require_bounded
from rlplat.rl.policies.framework_check import require_torch
from rlplat.rl.policies.spec import policy_spec
from rlplat.rl.replay.buffer import ReplayShape, require_room
from rlplat.rl.replay.hindsight import hindsight_of, record_of, require_goals
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.worker_group import RolloutWorkers
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread

BoundedConfig = TypeVar("BoundedConfig", bound=OffPolicyConfig)


class OffPolicy(Algorithm[Config]):
    """A subclass writes what `Algorithm` asks for; its config has `save_replay` and `hindsight`."""

    def start_rollout_workers(self, settings: dict[str, Any], make_policy: MakePolicy) -> RolloutWorkers:
        """They record transitions; settings: the config as a dict."""
        worker, record = spread(RolloutWorker, settings), record_of(self.config)
        return self.start_workers(lambda *place: worker.remote(settings, *place, make_policy, record=record))

    @property
    def not_saved(self) -> tuple[str, ...]:
        replay = "the contents of the replay (save_replay: true saves them): after a resume it fills again"
        saves_replay = self.config.model_dump()["save_replay"]
        return (*self.workers.not_saved(), *([] if saves_replay else [replay]))


class ContinuousControl(OffPolicy[BoundedConfig]):
    """Of SAC and TD3."""

    spaces: SpaceSpec

    def preflight(self) -> SpaceSpec:
        """In the driver, before any actor starts: environment and networks fit, and the replay fits into memory."""
        config = self.config
        require_torch(config.framework, self.name)
        spaces = check.preflight(config)
        require_bounded(spaces, config.env, self.name)
        require_goals(config, spaces)
        if config.normalize_observations:
            require_normalizable(spaces.obs)
        require_room(replay_shape(config), spaces.obs, config.rollout_length)
        return spaces

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
        hindsight=hindsight_of(config),
    )
