"""The settings that every algorithm has; an algorithm's own config extends `AlgorithmConfig` with its hyper-parameters.

config = PPOConfig(env="CartPole-v1", seed=1, stop={"env_steps": 100_000})
config = config.model_copy(update={"seed": 2})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from rlplat.errors import ConfigError
from rlplat.rl.argument_values import as_given, as_plain
from rlplat.rl.env_objects import EnvObject, env_name
from rlplat.rl.info_metrics import as_spelled
from rlplat.rl.interfaces import Activation
from rlplat.rl.names_elsewhere import NOT_NEEDED, VALUES_ELSEWHERE, Ours, ours_of
from rlplat.rl.schedules import LearningRate
from rlplat.rl.unused_settings import Unused, refusal
from rlplat.rl.user_code import located, renamed
from rlplat.section import Coefficient, Count, CountOrZero, Epsilon, Norm, Seconds, Section, Share
from rlplat.setting_types import Words

ClassPath = Annotated[
    str,
    Field(pattern=r"^[^:]+:[^:]+$"),
    AfterValidator(located),
    Words("the name of a class, pkg.mod:Class or ./file.py:Class"),
]
"""pkg.mod:Class or ./file.py:Class; a file's path is absolute from here on"""
Arguments = Annotated[
    dict[str, Any],
    BeforeValidator(as_given),
    PlainSerializer(lambda values: as_plain(values, "arguments"), when_used="json"),
]
"""By keyword, of the user's code: any value that a config file can hold, Python's and numpy's own included."""
NamedClasses = Annotated[
    list[ClassPath | dict[ClassPath, Arguments]],
    Words("a list of ./file.py:Class and {./file.py:Class: {argument: value}}"),
]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
"""Numbers side by side in a layer."""


def _of_actor_and_critic(groups: dict[str, list[str]]) -> dict[str, list[str]]:
    if other := [name for name in groups if name not in ("actor", "critic")]:
        raise ValueError(f"the groups are actor and critic, not {other[0]}")
    return groups


ObsGroups = Annotated[dict[str, Annotated[list[str], Field(min_length=1)]], AfterValidator(_of_actor_and_critic)]
"""{actor: [names], critic: [names]}"""


class PolicyConfig(Section):
    """The network."""

    example = {"hidden_sizes": [64, 64]}

    encoder: Literal["auto", "mlp", "nature_cnn", "small_cnn", "grid_cnn", "impala_cnn"] | ClassPath = "auto"
    """What turns observations into features, or pkg.mod:Class; auto: nature_cnn for images from 36 pixels on, grid_cnn
    for smaller ones from 5 on, else mlp. The first lines of a run say what each observation gets."""
    hidden_sizes: list[Width] = Field(default=[64, 64], min_length=1)
    """Widths of the MLP's layers."""
    critic_hidden_sizes: list[Width] | None = Field(default=None, min_length=1)
    """The same for the critic, where it has a network of its own; null: as hidden_sizes."""
    activation: Activation = "tanh"
    """Non-linearity of the MLP."""
    layer_norm: bool = False
    """Normalise every layer before its activation (Ba et al. 2016); convolutions over the channels of each pixel."""
    share_encoder: Literal["auto"] | bool = "auto"
    """One encoder for policy and value; auto: shared for images, separate for MLPs."""
    orthogonal_init: bool = True
    """Orthogonal initialisation with small policy head; false: the framework's own."""
    initial_log_std: float = Field(default=0.0, ge=-20.0, le=10.0)
    """Box actions: log of the standard deviation at the start, one parameter per dimension."""
    use_sde: bool = False
    """Box actions: noise that is a function of the features (gSDE, Raffin et al. 2021), the same one for several steps:
    smooth where independent noise jerks."""
    sde_sample_freq: int = Field(default=-1, ge=-1, le=1_000_000)
    """use_sde: steps after which another function is drawn; -1: with every rollout."""
    rescale_actions: bool = False
    """Box actions: the bounds are -1 and 1 to the policy; false: it acts in the environment's own units, with a first
    deviation of 1 (or e^initial_log_std)."""
    squash_actions: bool = False
    """Box actions: squash the Gaussian into the bounds by tanh; false: actions beyond them are clipped."""
    obs_groups: ObsGroups = Field(default_factory=dict)
    """Dict observations: {actor: [names], critic: [names]}, what each of them sees (rsl_rl's obs_groups). A group left
    out sees all; who acts with the trained policy needs the actor's alone."""
    core: Literal["none", "lstm", "gru", "attention"] = "none"
    """What remembers earlier steps of the episode, between encoder and heads."""
    core_size: Width = 128
    """Width of the core."""
    attention_window: Width = 32
    """Steps back that the attention core sees."""
    attention_heads: Width = 4
    """Heads of the attention core; they divide core_size."""
    custom: Literal[""] | ClassPath = ""
    """pkg.mod:Class or ./file.py:Class of a network of your own (docs/custom-policy.md); --policy sets this."""

    @model_validator(mode="after")
    def _refuse_what_explores_nothing(self) -> Self:
        if self.sde_sample_freq == 0:
            raise ValueError("sde_sample_freq=0: give a number of steps, or -1 for once a rollout")
        if self.sde_sample_freq != -1 and not self.use_sde:
            raise ValueError(f"sde_sample_freq={self.sde_sample_freq} is of use_sde: set that to true, or omit it")
        return self


class LearnerConfig(Section):
    """Where and how the update computes."""

    example = {"device": "cuda"}

    backend: Literal["auto", "torch", "numpy"] = "auto"
    """PPO and A3C on framework torch: what computes the update. numpy is for plain MLPs on the CPU, two to three times
    faster there, and never imports torch; auto: numpy where it can, else torch. The first lines of a run say which."""
    num_gpus: Literal["auto"] | Annotated[float, Field(ge=0.0, le=1024.0)] = "auto"
    """GPUs that the learner is given; auto: one for an image encoder if the cluster has one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU for an image encoder if the learner has one, else the CPU (faster for an MLP)."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of image encoders; auto: bfloat16 where the hardware has it. Weights are float32 always."""
    num_threads: int = Field(default=0, ge=0, le=4096)
    """CPU threads of an update; 0: one for an MLP, all for images."""
    num_learners: int = Field(default=1, ge=1, le=1024)
    """PPO: processes that share every minibatch and sum their gradients (torch.distributed). With a core they compute
    what one learner would only while every minibatch has a fragment for each."""


class EvaluationConfig(Section):
    """Episodes played between updates with frozen weights, on raw rewards, in environments of their own."""

    example = {"period": 10_000}

    period: CountOrZero = 0
    """Env steps between evaluations; 0: only at the end."""
    episodes: CountOrZero = 20
    """Episodes per evaluation; 0: no evaluation."""
    max_episode_steps: Count = 30_000
    """An episode that lasts longer is cut off: it is counted (eval/cut_episodes), and left out of the mean."""
    num_envs: int = Field(default=8, ge=1, le=100_000)
    """Environments side by side."""
    deterministic: bool = True
    """Take the most likely action; false: sample as in training."""
    video_period: CountOrZero = 0
    """Every how many evaluations an episode is filmed to videos/ (extra: video), the last one always; 0: never."""


class StopConfig(Section):
    """The run ends when the first of these is reached."""

    example = {"env_steps": 100_000}

    env_steps: Count = 1_000_000
    """Agent decisions over all environments; schedules without a horizon of their own run from 0 to here."""
    episode_return_mean: float | None = Field(
        default=None, validation_alias=AliasChoices("episode_return_mean", "episode_return")
    )
    """Mean raw return of the last 100 training episodes (needs 100 of them)."""
    wall_s: Seconds | None = None
    """Seconds."""


class ExpectConfig(Section):
    """What a learning test asks of the run when it has stopped."""

    episode_return_mean: float | None = None
    """At least this mean return over the last 100 training episodes."""
    evaluation_return_mean: float | None = None
    """At least this mean return in the evaluation at the end."""


def _env_name(env: Any) -> str:
    try:
        name = env_name(env)
        return name if isinstance(name, EnvObject) else located(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _with_wrappers_located(env_kwargs: dict[str, Any]) -> dict[str, Any]:
    located_in: dict[str, Any] = renamed({"env_kwargs": env_kwargs}, located)["env_kwargs"]
    return located_in


if TYPE_CHECKING:
    EnvName = Any
else:
    EnvName = Annotated[str, PlainValidator(_env_name)]
"""A text always; made of a class, a function or an environment where Python gives one."""


if TYPE_CHECKING:
    EnvMetrics = list[str]
else:
    EnvMetrics = Annotated[
        list[str],
        BeforeValidator(as_spelled),
        Words("a list of keys of info, each NAME or NAME:sum"),
    ]


class AlgorithmConfig(Section):
    """Common to all algorithms."""

    name_elsewhere: ClassVar[Callable[[str], Ours]] = staticmethod(ours_of)
    not_needed: ClassVar[Mapping[str, str]] = NOT_NEEDED
    values_elsewhere: ClassVar[Mapping[str, str]] = VALUES_ELSEWHERE
    unused: ClassVar[Mapping[str, Unused]] = {}
    fixed_on_resume: ClassVar[tuple[str, ...]] = (
        "env", "env_kwargs", "policy", "normalize_observations",
    )  # fmt: skip
    """Settings ("policy", "model.ensemble_size") that the state of a checkpoint is shaped by: a resumed run has the
    same."""
    needs_figures: ClassVar[Mapping[str, str]] = {}
    """Settings -> the number among those of the loss that they look at: a loss of the user's own has to give it."""
    removed: ClassVar[Mapping[str, Any]] = {}
    """Settings of earlier versions that a run's own config.yaml may have -> with which value; None: with any."""
    shapes_replay: ClassVar[tuple[str, ...]] = ()
    """What the replay in a checkpoint is shaped by: the same, or save_replay=false, and it begins empty."""

    env: EnvName
    """Pong, CartPole-v1, pkg.module:Env, ./file.py:Env; in Python also a class, or a function that makes one."""
    env_kwargs: Annotated[Arguments, AfterValidator(_with_wrappers_located)] = Field(default_factory=dict)
    """Arguments for the environment's constructor; the key wrappers lists gymnasium wrappers around it, image
    says size, grey, stack and range of its images (docs/custom-env.md)."""
    env_metrics: EnvMetrics = Field(default_factory=list)
    """Numbers of the environment's infos that become env/<name>_mean, one per episode: the last value, or with
    <name>:sum the sum. All numbers in info["metrics"] do without being named."""
    seed: int = Field(default=0, ge=0, le=2**64 - 1)
    """Root of all random numbers of the run: same seed, same config, same curve."""
    framework: Literal["torch", "tf"] = "torch"
    """Deep-learning framework of the learner."""
    deterministic: bool = False
    """Ask the framework for bit-reproducible kernels (on a CPU they are anyway, at a given number of threads)."""

    vectorization: Literal["auto", "native", "sync", "async", "envpool"] = "auto"
    """How the environments of a worker are stepped: native, by their own vector implementation (of gymnasium, C++);
    sync, one after the other; async, each in a process of its own, for slow ones; envpool, by EnvPool's threads in C++,
    where that package is installed; auto: native if there is one, else sync."""
    num_rollout_workers: int = Field(default=1, ge=0, le=10_000)
    """Processes that step environments; 0: everything in this process, for debuggers."""
    num_envs_per_worker: int = Field(default=8, ge=1, le=100_000)
    """Environments side by side in each rollout worker."""
    random_start_steps: CountOrZero = 0
    """Before its first rollout each environment takes a random number of random actions, up to this many, so that the
    copies are not all at the same time of their episodes. They count for nothing; nor do the episodes they began."""
    max_worker_restarts: CountOrZero = 3
    """Replacements of one rollout worker within 60 s, lost rollouts not counted, before the run gives up."""
    on_env_error: Literal["fail", "restart"] = "fail"
    """When an environment raises: end the run, or replace the rollout worker and go on."""
    env_step_timeout_s: Seconds = Field(
        default=60.0, validation_alias=AliasChoices("env_step_timeout_s", "step_timeout_s")
    )
    """A step of one environment that takes longer hangs: the run ends, or the worker is replaced (on_env_error)."""
    env_reset_timeout_s: Seconds | None = Field(
        default=None, validation_alias=AliasChoices("env_reset_timeout_s", "reset_timeout_s")
    )
    """The same for a reset; null: as env_step_timeout_s."""
    non_finite: Literal["stop", "skip"] = "stop"
    """NaN or infinity in an update: end the run, or leave that minibatch out."""

    learning_rate: LearningRate = 3e-4
    """Adam's step size."""
    discount: Share = 0.99
    """gamma: what a reward one step later is worth."""

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint_period: CountOrZero = 0
    """Env steps between checkpoints; 0: only by the clock and at the end."""
    checkpoint_period_s: float = Field(default=600.0, ge=0.0, le=1e9)
    """Seconds between checkpoints; 0: not by the clock. A failure and the end of a run save one in any case."""
    callbacks: NamedClasses = Field(default_factory=list)
    """Code of your own that hears of every step, evaluation and checkpoint: ./file.py:Class (docs/callbacks.md)."""
    stop: StopConfig = Field(default_factory=StopConfig)
    expect: ExpectConfig = Field(default_factory=ExpectConfig)

    @classmethod
    def among(cls, settings: Mapping[str, Any]) -> Self:
        """This class's settings among those (as a dict) of a subclass, which may have more."""
        return cls.model_validate({key: settings[key] for key in cls.model_fields if key in settings})

    @model_validator(mode="after")
    def _refuse_what_cannot_be(self) -> Self:
        if text := refusal(self):
            raise ValueError(text)
        if str(self.env) == "external" and self.num_rollout_workers > 1:
            text = "one process listens for simulators: give 0 (in this process) or 1"
            raise ValueError(f"num_rollout_workers={self.num_rollout_workers} with env external: {text}")
        return self


class AdamWConfig(AlgorithmConfig):
    """Of algorithms whose optimizer can be AdamW."""

    weight_decay: Coefficient = 0.0
    """AdamW's: of every parameter each step takes learning_rate times this away; 0: Adam."""


class OnPolicyConfig(AlgorithmConfig):
    """Common to algorithms that learn from what their rollout workers have just seen (PPO, A3C, IMPALA)."""

    value_coef: Coefficient = 0.5
    """Weight of the value loss, which is half the mean squared error, as in CleanRL (Stable-Baselines3's vf_coef weighs
    all of it: its 0.5 is 1.0 here)."""
    max_gradient_norm: Norm | None = 0.5
    """Gradients are scaled down to this global norm; null: they are not."""
    clip_rewards: bool = False
    """Learn from the sign of rewards (Atari); metrics stay raw."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, clip to +-10."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the running deviation, clip to +-10; of an image, each pixel's."""


class RMSPropConfig(OnPolicyConfig, AdamWConfig):
    """Of algorithms with RMSProp or Adam (A3C, IMPALA)."""

    fixed_on_resume = (*AlgorithmConfig.fixed_on_resume, "optimizer")

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """RMSProp, as in the papers, or Adam."""
    optimizer_epsilon: Epsilon = 1e-5
    """RMSProp's, or Adam's."""
    rmsprop_decay: float = Field(default=0.99, ge=0.0, lt=1.0)
    """alpha of RMSProp."""
    epsilon_inside_root: bool = False
    """RMSProp divides by sqrt(g) + epsilon (PyTorch; what Stable-Baselines3's A2C values were tuned with); true: by
    sqrt(g + epsilon) (the papers, TensorFlow), where 1e-5 is a floor of 3e-3 under small gradients (docs/a3c.md)."""

    @model_validator(mode="after")
    def _refuse_decay_of_rmsprop(self) -> Self:
        if self.weight_decay and self.optimizer != "adam":
            raise ValueError(f"weight_decay={self.weight_decay:g} is AdamW's: set optimizer=adam, or omit it")
        return self


def weight_decay_of(config: Any) -> float:
    """config: of any algorithm; one whose own setting is called so means something else."""
    return config.weight_decay if isinstance(config, AdamWConfig) else 0.0


Config = TypeVar("Config", bound=AlgorithmConfig)
Rolling = TypeVar("Rolling", bound=OnPolicyConfig)


def settings_of(config: Any, config_class: type[Config], algorithm: str) -> Config:
    """The config that an algorithm's constructor was given, or a ConfigError that shows the call."""
    if isinstance(config, config_class):
        return config
    name, given = config_class.__name__, type(config).__name__
    call = f"{name}(**settings)" if isinstance(config, Mapping) else f'{name}(env="CartPole-v1")'
    raise ConfigError(f"{algorithm} takes a {name}, not a {given}: {algorithm}({call})")
