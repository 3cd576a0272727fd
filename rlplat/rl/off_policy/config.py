"""The settings of off-policy actor-critic algorithms (SAC, TD3)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from rlplat.rl.algorithm_config import AlgorithmConfig, PolicyConfig, Width
from rlplat.rl.replay.hindsight import HindsightConfig
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, Epsilon, Norm

REPLAY = ("replay_capacity", "num_rollout_workers", "num_envs_per_worker", "n_step", "discount")
"""Settings that shape any replay of transitions."""


class ContinuousPolicyConfig(PolicyConfig):
    """The networks, the same sizes for the actor and each critic."""

    encoder: Annotated[Literal["auto", "mlp"], AfterValidator(lambda _: "mlp")] = "mlp"
    """Observations are taken as numbers side by side."""
    hidden_sizes: list[Width] = Field(default=[256, 256], min_length=1)
    """Widths of the layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """Non-linearity of the layers."""
    orthogonal_init: bool = False
    """The framework's own initialisation is used always."""


class OffPolicyConfig(AlgorithmConfig):
    """Common to SAC and TD3."""

    shapes_replay: ClassVar[tuple[str, ...]] = REPLAY

    unused = {
        "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("there is one learner", is_error=True),
        "learner.precision": Unused("MLPs are computed in float32", is_error=True, harmless=("float32",)),
        "policy.core": Unused("transitions are replayed one by one", is_error=True),
        "policy.custom": Unused("the networks are MLPs", is_error=True),
        "policy.share_encoder": Unused("actor and critics have networks of their own"),
        "policy.squash_actions": Unused("actions are within their bounds always"),
        "policy.rescale_actions": Unused("actions are scaled to their bounds always"),
        "policy.initial_log_std": Unused("the network gives the deviation"),
        "policy.orthogonal_init": Unused("the framework's own initialisation is used"),
    }

    policy: ContinuousPolicyConfig = Field(default_factory=ContinuousPolicyConfig)
    num_rollout_workers: int = Field(default=0, ge=0, le=10_000)
    """Processes that step environments; 0: everything in this process, which is faster unless environments are slow."""
    num_envs_per_worker: int = Field(default=1, ge=1, le=100_000)
    """Environments side by side in each rollout worker."""
    rollout_length: Count = 32
    """T: steps of every environment per round; then come the gradient steps that are due."""

    env_steps_per_update: float = Field(default=1.0, gt=0.0, le=1e9)
    """Env steps for each gradient step; 0.5: two gradient steps per env step."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    learning_starts: Count = 1_000
    """Env steps before the first gradient step, with actions drawn uniformly between the bounds."""
    target_tau: float = Field(default=0.005, gt=0.0, le=1.0)
    """Polyak averaging of target networks: what they take over of the online ones."""
    n_step: int = Field(default=1, ge=1, le=10_000)
    """Rewards that are summed before the bootstrap."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon."""
    max_gradient_norm: Norm | None = None
    """Gradients of actor and critics are scaled down to this global norm; null: they are not."""
    normalize_observations: bool = False
    """Scale observations by running mean and deviation (one vector only)."""

    replay_capacity: Count = 1_000_000
    """Steps that the replay holds."""
    save_replay: bool = True
    """Checkpoints hold the replay (its filled part); false: after a resume it fills anew, by the policy."""
    hindsight: HindsightConfig = Field(default_factory=HindsightConfig)
    """Other goals for what was seen, where the environment has goals (docs/hindsight.md)."""
