"""`OffPolicy`: what off-policy algorithms do alike beside `setup` and `step`; `DiscreteControl`: those that choose by
values of actions; `ContinuousControl`: those whose actions are bounded and continuous.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A round: all rollout workers make `rollout_length` steps, the learner the gradient steps that are due for them. Same
seed, same curve, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.algorithm_config import Config
from rlplat.rl.envs import check
from rlplat.rl.interfaces import MakePolicy, Weights
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan, look_at_env
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.off_policy.learner import OffPolicyConfig
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor, require_bounded
from rlplat.rl.policies.framework_check import require_framework, require_torch
from rlplat.rl.policies.make import q_policy_for
from rlplat.rl.policies.spec import PolicySpec, policy_spec, require_discrete
from rlplat.rl.replay.buffer import ReplayShape, require_room
from rlplat.rl.replay.hindsight import hindsight_of, record_of, require_goals
from rlplat.rl.run.algorithm import Algorithm
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.worker_group import RolloutWorkers
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread

if TYPE_CHECKING:
    from rlplat import ActorHandle

BoundedConfig = TypeVar("BoundedConfig", bound=OffPolicyConfig)


class OffPolicy(Algorithm[Config]):
    """A subclass writes what `Algorithm` asks for; its config has `save_replay` and `hindsight`."""

    def start_rollout_workers(
        self, settings: dict[str, Any], make_policy: MakePolicy | Sequence[MakePolicy]
    ) -> RolloutWorkers:
        """They record transitions; settings: the config as a dict; make_policy: of all, or one for each."""
        worker, record = spread(RolloutWorker, settings), record_of(self.config)

        def make_worker(index: int, incarnation: int) -> ActorHandle:
            own = make_policy if callable(make_policy) else make_policy[index]
            return worker.remote(settings, index, incarnation, own, record=record)

        return self.start_workers(make_worker)

    @property
    def not_saved(self) -> tuple[str, ...]:
        replay = "the contents of the replay (save_replay: true saves them): after a resume it fills again"
        saves_replay = self.config.model_dump()["save_replay"]
        return (*self.workers.not_saved(), *([] if saves_replay else [replay]))


class DiscreteControl(OffPolicy[Config]):
    """Of DQN, R2D2 and Ape-X."""

    config: Any
    make_policy = staticmethod(q_policy_for)

    def preflight(self) -> SpaceSpec | MultiAgentPlan:
        """In the driver, before any actor starts: environment and policies fit, and the replay fits into memory."""
        config, settings, B = self.config, self.config.model_dump(), self.config.num_envs_per_worker
        require_framework(self.computation.framework(config))
        spaces = look_at_env(settings)
        require_goals(config, spaces)
        if isinstance(spaces, MultiAgentPlan):
            for policy in spaces.policies.values():
                require_discrete(policy.spaces, config.env)
            specs = [(spec, spaces.num_columns(name, B)) for name, spec in spaces.specs(settings).items()]
        else:
            require_discrete(spaces, config.env)
            specs = [(policy_spec(settings["policy"], spaces), B)]
        low, high = config.value_range
        if config.distributional == "c51" and low >= high:
            raise ConfigError(f"value_range is [{low:g}, {high:g}]: the first number is the smaller one")
        for spec, num_columns in specs:
            if spec.core != "none" and not hasattr(config, "unroll_length"):
                raise ConfigError(
                    f"policy.core={spec.core}, but {self.name} replays single transitions: --algo r2d2 replays "
                    "sequences, with the same settings"
                )
            if config.normalize_observations:
                if config.framework != "torch":
                    raise ConfigError(
                        f"normalize_observations of {self.name} wants framework=torch: set it to false, or that"
                    )
                require_normalizable(spec.obs, images=True)
            require_room(q_replay_shape(config, spec, num_columns), spec.obs, config.rollout_length)
        return spaces


def q_replay_shape(config: Any, spec: PolicySpec, num_columns: int) -> ReplayShape:
    """The whole replay of a DQNConfig, with a lane for each of `num_columns` of a rollout worker (its environments, or
    with several agents the columns of one policy)."""
    has_core = spec.core != "none"
    return ReplayShape(
        capacity=config.replay_capacity,
        num_lanes=max(1, config.num_rollout_workers) * num_columns,
        n_step=config.n_step,
        discount=config.discount,
        alpha=config.priority_alpha if config.prioritized else 0.0,
        clip_rewards=config.clip_rewards,
        frame_stacks=config.frame_stacks,
        burn_in=config.burn_in if has_core else 0,
        unroll=config.unroll_length if has_core else 0,
        hindsight=hindsight_of(config),
    )


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
