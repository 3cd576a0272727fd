"""`OffPolicy`: the ring of off-policy algorithms, which differ in what their learner does; `ContinuousControl`: that of
those whose actions are bounded and continuous.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

A round: all rollout workers make `rollout_length` steps, the learner the gradient steps that are due for them. Same
seed, same curve, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rlplat.errors import ConfigError
from rlplat.rl.class_path import load_class
from rlplat.rl.interfaces import MakePolicy, Result, Weights
from rlplat.rl.multi_agent.policy_map import MultiAgentPlan, look_at_env
from rlplat.rl.multi_agent.policy_rings import PolicyRings
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.off_policy.learner import ContinuousConfig, OffPolicyConfig
from rlplat.rl.policies.bounded_actor import ActorSpec, BoundedActor, require_bounded
from rlplat.rl.policies.framework_check import require_framework, require_torch
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

AnyConfig = TypeVar("AnyConfig", bound=OffPolicyConfig)
BoundedConfig = TypeVar("BoundedConfig", bound=ContinuousConfig)
Require = Callable[[SpaceSpec, str, str], None]
"""(spaces, the name of their environment, that of the algorithm): UsageError where it cannot take them."""


class OffPolicy(Algorithm[AnyConfig]):
    """A subclass writes `name`, `config_class`, `learner_class` (an `OffPolicyLearner`) and `make_policy`; the ring is
    this one, unless it has another `setup` and `step`."""

    spaces: Any
    require_spaces = staticmethod(require_discrete)
    """Refuses those that it cannot learn in."""
    takes_cores = False
    """Whether its replay holds sequences, for policies with a core."""

    def setup(self) -> None:
        """Learner with its replay (one for every policy, with several agents), rollout workers; returns when the first
        weights are published."""
        settings, self.spaces = self.config.model_dump(), self.preflight(self.require_spaces)
        policies = self.policies(self.spaces)
        shapes = [self.replay_shape(*each) for each in policies]
        if isinstance(self.spaces, MultiAgentPlan):
            replays = dict(zip(self.spaces.policies, shapes, strict=True))
            rings = PolicyRings(self.spaces, settings, lambda name, *its: self.learner_group(*its, replays[name]))
            self.learners = self.add(rings, saved_as="learner")
            make_worker = rings.worker_maker(self.make_policy, record="transitions")
            self.workers = self.start_workers(make_worker, len(self.spaces.trained))
        else:
            self.learners = self.start_learners(settings, policies[0][0], *shapes)
            self.workers = self.start_rollout_workers(settings, self.make_policy)
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One round: every worker samples, the learner learns and publishes."""
        self.require_open()
        batches = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())

    def preflight(self, require: Require) -> Any:
        """In the driver, before any actor starts: environment and networks fit, and the replay fits into memory -> the
        spaces, or a `MultiAgentPlan` where the config has `multi_agent`."""
        config, settings = self.config, self.config.model_dump()
        if self.nets:
            require_framework(self.computation.framework(config))
        else:
            require_torch(config.framework, self.name)
        spaces = look_at_env(settings)
        for each in spaces.policies.values() if isinstance(spaces, MultiAgentPlan) else ():
            require(each.spaces, config.env, self.name)
        if isinstance(spaces, SpaceSpec):
            require(spaces, config.env, self.name)
        require_goals(config, spaces)
        for spec, num_columns in self.policies(spaces):
            if spec.core != "none" and not self.takes_cores:
                raise ConfigError(
                    f"policy.core={spec.core}, but {self.name} replays single transitions: --algo r2d2 replays "
                    "sequences"
                )
            if config.normalize_observations:
                if config.framework != "torch":
                    raise ConfigError(
                        f"normalize_observations of {self.name} wants framework=torch: set it to false, or that"
                    )
                require_normalizable(spec.obs, images=bool(self.nets))
            require_room(self.replay_shape(spec, num_columns), spec.obs, config.rollout_length)
        return spaces

    def policies(self, spaces: SpaceSpec | MultiAgentPlan) -> list[tuple[PolicySpec, int]]:
        """Of each policy: its network, and how many columns a rollout worker's batches for it have."""
        settings, B = self.config.model_dump(), self.config.num_envs_per_worker
        if isinstance(spaces, MultiAgentPlan):
            return [(spec, spaces.num_columns(name, B)) for name, spec in spaces.specs(settings).items()]
        return [(policy_spec(settings["policy"], spaces), B)]

    def replay_shape(self, spec: PolicySpec, num_columns: int) -> ReplayShape:
        """The whole replay of a policy, with a lane for each of the columns of all rollout workers."""
        config = self.config
        return ReplayShape(
            capacity=config.replay_capacity,
            num_lanes=max(1, config.num_rollout_workers) * num_columns,
            n_step=config.n_step,
            discount=config.discount,
            hindsight=hindsight_of(config),
        )

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
        return (*self.workers.not_saved(), *([] if self.config.save_replay else [replay]))


class ContinuousControl(OffPolicy[BoundedConfig]):
    """Of SAC and TD3."""

    require_spaces = staticmethod(require_bounded)

    def preflight(self, require: Require) -> Any:
        spaces = super().preflight(require)
        for spec, _ in self.policies(spaces):
            for path in spec.encoders:
                if path not in spec.actor.encoders.keys() & spec.critic.encoders.keys():
                    raise ConfigError(
                        f"policy.obs_groups: {self.name}'s actor and critics share the CNN of the image '{path}', "
                        "which the critics train: name it in both groups"
                    )
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
    """The policy of a config (as a dict) in these spaces; in numpy, unless there are images: num_threads is torch's."""
    spec = policy_spec(settings["policy"], spaces)
    if not spec.has_images:
        return BoundedActor(spec, actor, seed)
    made: BoundedActor = load_class("rlplat.rl.torch.policy:TorchBoundedActor")(spec, actor, seed, num_threads)
    return made
