"""Settings as type checkers and editors know them. Written by `python -m tests.house.typed_settings`: do not edit.

A group of settings is a dict or an object of its config class; keys without a default (`env`, `data`) are parameters of
their own where a config is made. `AnySettings` are those of all algorithms together, for `rlplat.train`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from rlplat.rl.algorithm_config import EvaluationConfig, ExpectConfig, LearnerConfig, PolicyConfig, StopConfig
from rlplat.rl.multi_agent.policy_map import AgentPolicyConfig, MultiAgentConfig, SelfPlayConfig
from rlplat.rl.replay.hindsight import HindsightConfig
from rlplat.rl.schedules import CosineSchedule, LinearSchedule, PiecewiseSchedule
from rlplat.section import Section


class LinearScheduleSettings(TypedDict, total=False):
    schedule: Required[Literal["linear"]]
    start: Required[float]
    end: Required[float]
    until: float
    horizon: int | None


class CosineScheduleSettings(TypedDict, total=False):
    schedule: Required[Literal["cosine"]]
    start: Required[float]
    end: Required[float]
    until: float
    horizon: int | None


class PiecewiseScheduleSettings(TypedDict, total=False):
    schedule: Required[Literal["piecewise"]]
    points: Required[Sequence[tuple[float, float] | list[float]]]
    horizon: int | None


ScheduleSetting = (
    float
    | LinearScheduleSettings
    | LinearSchedule
    | CosineScheduleSettings
    | CosineSchedule
    | PiecewiseScheduleSettings
    | PiecewiseSchedule
)


class PolicySettings(TypedDict, total=False):
    encoder: Literal["auto", "mlp", "nature_cnn", "small_cnn", "grid_cnn", "impala_cnn"] | str
    hidden_sizes: Sequence[int]
    critic_hidden_sizes: Sequence[int] | None
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "selu", "silu", "gelu", "mish"]
    layer_norm: bool
    share_encoder: Literal["auto"] | bool
    orthogonal_init: bool
    initial_log_std: float
    use_sde: bool
    sde_sample_freq: int
    rescale_actions: bool
    squash_actions: bool
    obs_groups: Mapping[str, Sequence[str]]
    core: Literal["none", "lstm", "gru", "attention"]
    core_size: int
    attention_window: int
    attention_heads: int
    custom: Literal[""] | str


class LearnerSettings(TypedDict, total=False):
    backend: Literal["auto", "torch", "numpy"]
    num_gpus: Literal["auto"] | float
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["auto", "float32", "bfloat16"]
    num_threads: int
    num_learners: int


class EvaluationSettings(TypedDict, total=False):
    period: int
    episodes: int
    max_episode_steps: int
    num_envs: int
    deterministic: bool
    video_period: int


class StopSettings(TypedDict, total=False):
    env_steps: int
    episode_return_mean: float | None
    episode_return: float | None
    wall_s: float | None


class ExpectSettings(TypedDict, total=False):
    episode_return_mean: float | None
    evaluation_return_mean: float | None


class QEvaluationSettings(EvaluationSettings, total=False):
    epsilon: float


class HindsightSettings(TypedDict, total=False):
    goal_selection_strategy: Literal["none", "future", "final", "episode"]
    n_sampled_goal: int


class AgentPolicySettings(TypedDict, total=False):
    policy: Mapping[str, Any]
    trained: bool


class SelfPlaySettings(TypedDict, total=False):
    opponent: Required[str]
    learner: str
    snapshot_period: int
    pool: int
    sampling: Literal["latest", "uniform"]
    swap_sides: bool


class MultiAgentSettings(TypedDict, total=False):
    policies: Mapping[str, AgentPolicySettings | AgentPolicyConfig]
    mapping: Mapping[str, str]
    self_play: SelfPlaySettings | SelfPlayConfig | None
    centralized_critic: bool
    episode_return: Literal["mean", "sum"]


class ContinuousPolicySettings(TypedDict, total=False):
    encoder: Literal["auto", "mlp", "nature_cnn", "small_cnn", "grid_cnn", "impala_cnn"]
    hidden_sizes: Sequence[int]
    critic_hidden_sizes: Sequence[int] | None
    activation: Literal["tanh", "relu", "leaky_relu", "elu", "selu", "silu", "gelu", "mish"]
    layer_norm: bool
    share_encoder: Literal["auto"] | bool
    orthogonal_init: bool
    initial_log_std: float
    use_sde: bool
    sde_sample_freq: int
    rescale_actions: bool
    squash_actions: bool
    obs_groups: Mapping[str, Sequence[str]]
    core: Literal["none", "lstm", "gru", "attention"]
    core_size: int
    attention_window: int
    attention_heads: int
    custom: Literal[""] | str


class ModelSettings(TypedDict, total=False):
    hidden_sizes: Sequence[int]
    ensemble_size: int
    num_elites: int
    learning_rate: float
    batch_size: int
    weight_decay: float
    validation_share: float
    patience: int
    max_epochs: int


class EvaluatedSettings(TypedDict, total=False):
    evaluation: EvaluationSettings | EvaluationConfig
    callbacks: Sequence[str | Mapping[str, Mapping[str, Any]]]


class CommonSettings(TypedDict, total=False):
    env_kwargs: Mapping[str, Any]
    env_metrics: Sequence[str]
    seed: int
    framework: Literal["torch", "tf"]
    deterministic: bool
    vectorization: Literal["auto", "native", "sync", "async", "envpool"]
    num_rollout_workers: int
    num_envs_per_worker: int
    random_start_steps: int
    max_worker_restarts: int
    on_env_error: Literal["fail", "restart"]
    env_step_timeout_s: float
    env_reset_timeout_s: float | None
    non_finite: Literal["stop", "skip"]
    learning_rate: ScheduleSetting
    discount: float
    learner: LearnerSettings | LearnerConfig
    checkpoint_period: int
    checkpoint_period_s: float
    stop: StopSettings | StopConfig
    expect: ExpectSettings | ExpectConfig


class AdamWSettings(CommonSettings, total=False):
    weight_decay: float
    max_gradient_norm: float | None
    normalize_observations: bool


class DataSettings(AdamWSettings, total=False):
    updates_per_round: int
    batch_size: int
    adam_epsilon: float


class OnPolicySettings(CommonSettings, total=False):
    policy: PolicySettings | PolicyConfig
    value_coef: float
    max_gradient_norm: float | None
    clip_rewards: bool
    normalize_rewards: bool
    normalize_observations: bool
    rollout_length: int


class AnyBCSettings(DataSettings, total=False):
    policy: PolicySettings | PolicyConfig


class BCSettings(AnyBCSettings, EvaluatedSettings, total=False):
    pass


class RMSPropSettings(OnPolicySettings, total=False):
    weight_decay: float
    optimizer_epsilon: float
    rmsprop_decay: float
    epsilon_inside_root: bool
    max_staleness: int
    updates_per_report: int


class OffPolicySettings(AdamWSettings, total=False):
    rollout_length: int
    env_steps_per_update: float
    batch_size: int
    learning_starts: int
    n_step: int
    adam_epsilon: float
    replay_capacity: int
    save_replay: bool
    hindsight: HindsightSettings | HindsightConfig
    target_tau: float


class ESSettings(CommonSettings, EvaluatedSettings, total=False):
    policy: PolicySettings | PolicyConfig
    population_size: int
    episodes_per_perturbation: int
    noise_std: float
    noise_table_size: int
    optimizer: Literal["adam", "sgd"]
    momentum: float
    adam_epsilon: float
    weight_decay: float
    normalize_observations: bool
    obs_gathering_probability: float
    linear_policy: bool


class IQLSettings(BCSettings, total=False):
    critic_learning_rate: ScheduleSetting | None
    expectile: float
    temperature: float
    max_advantage_weight: float
    target_tau: float


class ContinuousSettings(OffPolicySettings, total=False):
    random_shift: int
    critic_learning_rate: ScheduleSetting | None


class PQNSettings(OnPolicySettings, total=False):
    evaluation: QEvaluationSettings | EvaluationConfig
    callbacks: Sequence[str | Mapping[str, Mapping[str, Any]]]
    num_epochs: int
    minibatch_size: int
    q_lambda: float
    epsilon: ScheduleSetting
    adam_epsilon: float
    multi_agent: MultiAgentSettings | MultiAgentConfig


class RecordedSettings(ContinuousSettings, total=False):
    updates_per_round: int


class AnySACSettings(ContinuousSettings, total=False):
    initial_entropy_coef: float
    target_entropy: Literal["auto"] | float


class AlphaZeroSettings(CommonSettings, EvaluatedSettings, total=False):
    policy: PolicySettings | PolicyConfig
    num_simulations: int
    rollout_length: int
    sampling_moves: int
    dirichlet_alpha: float
    noise_share: float
    c_init: float
    play_simulations: int | None
    batch_size: int
    env_steps_per_update: float
    learning_starts: int
    replay_capacity: int
    use_symmetries: bool
    weight_decay: float
    adam_epsilon: float
    max_gradient_norm: float | None


class AnyTD3Settings(ContinuousSettings, total=False):
    exploration_noise: float
    policy_delay: int
    target_noise: float
    target_noise_clip: float


class A3CSettings(RMSPropSettings, EvaluatedSettings, total=False):
    optimizer: Literal["rmsprop", "adam"]
    gae_lambda: float
    entropy_coef: ScheduleSetting
    normalize_advantages: bool


class DiscreteSACSettings(OffPolicySettings, EvaluatedSettings, total=False):
    policy: PolicySettings | PolicyConfig
    critic_learning_rate: ScheduleSetting | None
    entropy_coef: Literal["auto"] | float
    initial_entropy_coef: float
    target_entropy: Literal["auto"] | float


class SACSettings(AnySACSettings, EvaluatedSettings, total=False):
    policy: ContinuousPolicySettings | PolicyConfig
    entropy_coef: Literal["auto"] | float


class TD3Settings(AnyTD3Settings, EvaluatedSettings, total=False):
    policy: ContinuousPolicySettings | PolicyConfig


class ImpalaSettings(RMSPropSettings, EvaluatedSettings, total=False):
    optimizer: Literal["rmsprop", "adam"]
    rollouts_per_update: int
    num_epochs: int
    rho_bar: float
    c_bar: float
    trace_lambda: float
    clip_range: ScheduleSetting | None
    entropy_coef: ScheduleSetting


class CQLSettings(SACSettings, total=False):
    updates_per_round: int
    conservative_coef: float
    num_sampled_actions: int


class TD3BCSettings(TD3Settings, total=False):
    updates_per_round: int
    alpha: float


class TQCSettings(SACSettings, total=False):
    num_critics: int
    num_quantiles: int
    dropped_quantiles: int


class CrossQSettings(SACSettings, total=False):
    adam_beta1: float
    policy_delay: int
    renorm_momentum: float
    renorm_warmup: int


class MBPOSettings(SACSettings, total=False):
    model: ModelSettings | Section
    model_period: int
    model_rollout_length: ScheduleSetting
    model_rollouts_per_update: int
    model_replay_capacity: int
    real_share: float


class PPOSettings(OnPolicySettings, EvaluatedSettings, total=False):
    weight_decay: float
    num_epochs: int
    minibatch_size: int
    gae_lambda: float
    time_limits: Literal["bootstrap", "end"]
    clip_range: ScheduleSetting
    clip_value_loss: bool
    entropy_coef: ScheduleSetting
    normalize_value: bool
    normalize_advantages: bool
    adam_epsilon: float
    critic_learning_rate: ScheduleSetting | None
    target_kl: float | None
    desired_kl: float | None
    dual_clip: float | None
    exploration_bonus: Literal["rnd"] | None
    bonus_coef: float
    bonus_discount: float
    overlap_sampling: Literal["auto"] | bool
    multi_agent: MultiAgentSettings | MultiAgentConfig


class AnyDQNSettings(OffPolicySettings, total=False):
    policy: PolicySettings | PolicyConfig
    evaluation: QEvaluationSettings | EvaluationConfig
    target_period: int
    loss: Literal["huber", "mse"]
    epsilon: ScheduleSetting
    clip_rewards: bool
    double: bool
    dueling: bool
    distributional: Literal["none", "c51", "qr"]
    num_atoms: int
    value_range: tuple[float, float] | list[float]
    noisy: bool
    head_hidden_size: int
    prioritized: bool
    priority_alpha: float
    importance_beta: ScheduleSetting
    multi_agent: MultiAgentSettings | MultiAgentConfig


class DQNSettings(AnyDQNSettings, total=False):
    callbacks: Sequence[str | Mapping[str, Mapping[str, Any]]]


class R2D2Settings(DQNSettings, total=False):
    burn_in: int
    unroll_length: int


class ApexSettings(R2D2Settings, total=False):
    num_replay_shards: int
    updates_per_call: int
    ratio_slack: float


class AnySettings(AnyDQNSettings, AnyTD3Settings, AnySACSettings, RecordedSettings, RMSPropSettings, total=False):
    optimizer: Literal["rmsprop", "adam"] | Literal["adam", "sgd"]
    gae_lambda: float
    entropy_coef: ScheduleSetting | Literal["auto"] | float
    normalize_advantages: bool
    num_simulations: int
    sampling_moves: int
    dirichlet_alpha: float
    noise_share: float
    c_init: float
    play_simulations: int | None
    use_symmetries: bool
    burn_in: int
    unroll_length: int
    num_replay_shards: int
    updates_per_call: int
    ratio_slack: float
    conservative_coef: float
    num_sampled_actions: int
    adam_beta1: float
    renorm_momentum: float
    renorm_warmup: int
    population_size: int
    episodes_per_perturbation: int
    noise_std: float
    noise_table_size: int
    momentum: float
    obs_gathering_probability: float
    linear_policy: bool
    rollouts_per_update: int
    num_epochs: int
    rho_bar: float
    c_bar: float
    trace_lambda: float
    clip_range: ScheduleSetting | None
    expectile: float
    temperature: float
    max_advantage_weight: float
    model: ModelSettings | Section
    model_period: int
    model_rollout_length: ScheduleSetting
    model_rollouts_per_update: int
    model_replay_capacity: int
    real_share: float
    minibatch_size: int
    time_limits: Literal["bootstrap", "end"]
    clip_value_loss: bool
    normalize_value: bool
    target_kl: float | None
    desired_kl: float | None
    dual_clip: float | None
    exploration_bonus: Literal["rnd"] | None
    bonus_coef: float
    bonus_discount: float
    overlap_sampling: Literal["auto"] | bool
    q_lambda: float
    alpha: float
    num_critics: int
    num_quantiles: int
    dropped_quantiles: int
    data: str
