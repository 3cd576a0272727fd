"""`OffPolicyLearner`: an actor that keeps the replay, makes the gradient steps that are due, and publishes the weights;
`ContinuousLearner`: with what SAC and TD3 share beside their gradient steps. Their settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from rlplat.rl.algorithm_config import AdamWConfig, EvaluationConfig, PolicyConfig, Width
from rlplat.rl.interfaces import Activation, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import Learner
from rlplat.rl.normalization import ObsStatistics
from rlplat.rl.obs_tree import flat_features
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.replay.buffer import Minibatch, ReplayShape, make_replay
from rlplat.rl.replay.hindsight import HindsightConfig
from rlplat.rl.sampling.sample_batch import TransitionBatch, rollout_times
from rlplat.rl.schedules import LearningRate
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.unused_settings import NO_SDE, Unused
from rlplat.section import Count, Epsilon, Norm

if TYPE_CHECKING:
    from rlplat import ActorHandle
    from rlplat.rl.torch.continuous_control import ActorAndCritics, Transitions


class LearnerReplay:
    """The classic ratio: one gradient step per `env_steps_per_update`, none before `learning_starts`.

    env_steps = replay.add(batches)                     # one round of all rollout workers
    for _ in range(replay.due(env_steps)):
        minibatch = replay.buffer.sample(32)
    """

    def __init__(self, config: Any, spec: PolicySpec, shape: ReplayShape, seed: np.random.SeedSequence) -> None:
        """config: of an algorithm with env_steps_per_update, learning_starts and save_replay."""
        self.buffer = make_replay(shape, spec.obs, spec.action, seed)
        self._env_steps_per_update, self._starts = config.env_steps_per_update, config.learning_starts
        self._saves = config.save_replay
        self.env_steps = 0
        """That this replay has been given."""
        self._credit = 0.0  # env steps for which no gradient step has been made yet

    def add(self, batches: Sequence[TransitionBatch]) -> int:
        """The batches of one round, each into its worker's lanes -> their env steps."""
        for batch in batches:
            self.buffer.add(batch, batch.worker_index * batch.shape[1])
        env_steps = sum(batch.env_steps for batch in batches)
        self.env_steps += env_steps
        return env_steps

    def due(self, env_steps: int) -> int:
        """Gradient steps that these further env steps bring, with what was left over before."""
        if self.env_steps < self._starts or not len(self.buffer):
            return 0
        self._credit += env_steps
        due = int(self._credit // self._env_steps_per_update)
        self._credit -= due * self._env_steps_per_update
        return due

    def get_state(self) -> dict[str, Any]:
        return {
            "replay_steps": self.env_steps if self._saves else 0,
            "credit": self._credit,
            "replay": self.buffer.get_state() if self._saves else None,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """state: may hold more. Without the contents, or with save_replay false, the replay fills anew."""
        self._credit = float(state["credit"])
        if self._saves and state["replay"] is not None:
            self.buffer.set_state(state["replay"])
            self.env_steps = int(state["replay_steps"])


class OffPolicyConfig(AdamWConfig):
    """Settings of every algorithm with a replay."""

    unused: ClassVar[Mapping[str, Unused]] = {
        "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("there is one learner", is_error=True),
        "policy.use_sde": NO_SDE,
        "policy.obs_groups": Unused("critics of ppo, a3c, impala, sac and td3 may see more", is_error=True),
    }
    shapes_replay: ClassVar[tuple[str, ...]] = (
        "replay_capacity", "num_rollout_workers", "num_envs_per_worker", "n_step", "discount",
    )  # fmt: skip
    """Of any replay of transitions."""

    num_envs_per_worker: int = Field(default=1, ge=1, le=100_000)
    """Environments side by side in each rollout worker."""
    rollout_length: Count = 16
    """T: steps of every environment per round; then come the gradient steps that are due."""
    env_steps_per_update: float = Field(default=4.0, gt=0.0, le=1e9)
    """Env steps for each gradient step; 0.5: two gradient steps per env step."""
    batch_size: Count = 32
    """Transitions per gradient step."""
    learning_starts: Count = 1_000
    """Env steps before the first gradient step."""
    n_step: int = Field(default=1, ge=1, le=10_000)
    """Rewards that are summed before the bootstrap."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon."""
    max_gradient_norm: Norm | None = 10.0
    """Gradients are scaled down to this global norm; null: they are not."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the deviation, clip to +-10."""
    replay_capacity: Count = 100_000
    """Steps that the replay holds."""
    save_replay: bool = True
    """Checkpoints hold the replay (its filled part); false: after a resume it fills again, by the policy."""
    hindsight: HindsightConfig = Field(default_factory=HindsightConfig)
    """Other goals for what was seen, where the environment has goals (docs/hindsight.md)."""


class QPolicyConfig(PolicyConfig):
    """The network of Q-values or of a discrete actor; defaults as in Mnih et al. 2015."""

    activation: Activation = "relu"
    """Non-linearity of the MLP."""
    orthogonal_init: bool = False
    """Orthogonal initialisation; false: the framework's own."""


class QEvaluationConfig(EvaluationConfig):
    """Episodes played between updates; greedy but for `epsilon`."""

    epsilon: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of random actions in a deterministic evaluation, from the evaluation's own seed: 0.05 in Mnih et al. 2015,
    0.001 in Rainbow. A greedy policy can wait for ever where only another action goes on."""


class ContinuousPolicyConfig(PolicyConfig):
    """The networks of the actor and of each critic."""

    encoder: Literal["auto", "mlp", "nature_cnn", "small_cnn", "grid_cnn", "impala_cnn"] = "auto"
    """Of images, which actor and critics share and the critics' loss trains; auto: by size, mlp: none. All else is
    taken as numbers side by side."""
    hidden_sizes: list[Width] = Field(default=[256, 256], min_length=1)
    """Widths of the layers."""
    share_encoder: Literal["auto"] | bool = False
    """They share that of images alone, always."""
    activation: Activation = "relu"
    """Non-linearity of the layers."""
    orthogonal_init: bool = False
    """The framework's own initialisation is used always."""


class ContinuousConfig(OffPolicyConfig):
    """Common to SAC and TD3."""

    unused = {
        **{key: unused for key, unused in OffPolicyConfig.unused.items() if key != "policy.obs_groups"},
        "learner.precision": Unused("networks are computed in float32", is_error=True, harmless=("float32",)),
        "policy.core": Unused("transitions are replayed one by one", is_error=True),
        "policy.custom": Unused("the networks are MLPs", is_error=True),
        "policy.share_encoder": Unused("actor and critics have networks of their own", harmless=("auto",)),
        "policy.squash_actions": Unused("actions are within their bounds always"),
        "policy.rescale_actions": Unused("actions are scaled to their bounds always"),
        "policy.initial_log_std": Unused("the network gives the deviation"),
        "policy.orthogonal_init": Unused("the framework's own initialisation is used"),
    }

    policy: ContinuousPolicyConfig = Field(default_factory=ContinuousPolicyConfig)
    num_rollout_workers: int = Field(default=0, ge=0, le=10_000)
    """Processes that step environments; 0: everything in this process, which is faster unless environments are slow."""
    rollout_length: Count = 32
    """T: steps of every environment per round; then come the gradient steps that are due."""
    env_steps_per_update: float = Field(default=1.0, gt=0.0, le=1e9)
    """Env steps for each gradient step; 0.5: two gradient steps per env step."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    learning_starts: Count = 1_000
    """Env steps before the first gradient step, with actions drawn uniformly between the bounds."""
    random_shift: int = Field(default=4, ge=0, le=1_000)
    """Images: pixels by which each is moved at random before a gradient step (DrQ, Kostrikov et al. 2020); 0: none."""
    critic_learning_rate: LearningRate | None = None
    """Adam's step size for the critics; null: learning_rate."""
    target_tau: float = Field(default=0.005, gt=0.0, le=1.0)
    """Polyak averaging of target networks: what they take over of the online ones."""
    max_gradient_norm: Norm | None = None
    """Gradients of actor and critics are scaled down to this global norm each; null: they are not."""
    replay_capacity: Count = 1_000_000
    """Steps that the replay holds."""


AnyConfig = TypeVar("AnyConfig", bound=OffPolicyConfig)
BoundedConfig = TypeVar("BoundedConfig", bound=ContinuousConfig)
CHUNK = 64
"""Minibatches that are drawn at once."""


class OffPolicyLearner(Learner[AnyConfig]):
    """An actor. A subclass makes `trainee` and writes `learn`; its first weights are published when it is asked whether
    it is ready."""

    saved = {"**replay": "replay", "obs_statistics": "obs_statistics", "updates": "updates"}

    def __init__(
        self,
        computation: Computation,
        settings: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
        replay: ReplayShape | None = None,
    ) -> None:
        """settings: the config as a dict; replay: None where the transitions are elsewhere."""
        super().__init__(computation.config_class.model_validate(settings), parameter_server)
        config, self.spec = self.config, spec
        self.network_seed, replay_seed = self.seeds = seed_sequences(config.seed, "learner")
        self.replay = LearnerReplay(config, spec, replay, replay_seed) if replay is not None else None
        self.obs_statistics = ObsStatistics(spec.obs if config.normalize_observations else None)
        self.updates = 0
        """Gradient steps so far."""

    @property
    def critic_learning_rate(self) -> float:
        """Of an algorithm with that setting, now."""
        own = self.config.critic_learning_rate  # type: ignore[attr-defined]
        return self.value(self.config.learning_rate if own is None else own)

    def ready(self) -> None:
        self.publish()

    def update(self, *batches: TransitionBatch) -> UpdateReport:
        """One round into the replay, the gradient steps that are due for it, publish version + 1."""
        assert self.replay is not None
        started = perf_counter()
        env_steps = self.replay.add(batches)
        self.env_steps += env_steps
        is_first = self.obs_statistics.is_empty
        for batch in batches:
            self.obs_statistics.update(batch.obs, batch.valid)
        if is_first:
            self.obs_statistics.weights()  # used from now on: nothing is learnt from raw observations
        added = perf_counter()
        trained = self.learn(self.replay.due(env_steps))
        learnt = perf_counter()
        self.publish_next()
        metrics = self.metrics(trained) | rollout_times(batches)
        metrics |= {
            "learner/replay_size": len(self.replay.buffer),
            "time/replay_add_s": added - started,
            "time/train_s": learnt - added,
            "time/publish_s": perf_counter() - learnt,
        }
        return UpdateReport(env_steps, [e for batch in batches for e in batch.episodes], metrics)

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """The gradient steps of a round -> the figures of each by name, `gradient_norm` among them."""
        raise NotImplementedError

    def metrics(self, trained: list[dict[str, float]]) -> dict[str, float]:
        """Of a round: means over its gradient steps."""
        return {"learner/updates": self.updates} | self.step_metrics(trained)

    def beside(self) -> Weights:
        """What travels with the weights: statistics of observations."""
        return self.obs_statistics.weights()


class ContinuousLearner(OffPolicyLearner[BoundedConfig]):
    """An actor: minibatches as tensors, the warm-up with uniform actions."""

    saved = {"**": "trainee", "acts_from_start": "acts_from_start"}
    trainee: ActorAndCritics
    acts_from_start = False
    """Whether it began with the weights of another run: these act, also before `learning_starts`."""

    def minibatches(self, num_updates: int) -> Iterator[Transitions]:
        """One for each gradient step, as tensors; without images many of them are drawn at once."""
        size, chunk = self.config.batch_size, 1 if self.spec.has_images else CHUNK
        for start in range(0, num_updates, chunk):
            drawn = self.draw(min(chunk, num_updates - start) * size).with_obs(self.obs_statistics.normalize)
            if not self.spec.has_images:
                drawn = drawn.with_obs(partial(flat_features, spec=self.spec.obs))
            yield from self.trainee.minibatches(
                drawn.obs, drawn.actions, drawn.returns, drawn.discounts, drawn.next_obs
            )

    def draw(self, size: int) -> Minibatch:
        """Transitions to train on, `batch_size` for each gradient step."""
        assert self.replay is not None
        drawn = self.replay.buffer.sample(size)
        assert isinstance(drawn, Minibatch)
        return drawn

    def count(self, batch: Transitions, figures: dict[str, float]) -> dict[str, float]:
        """A gradient step that was made -> its figures. What is not finite ends the run, if the config says so."""
        if not math.isfinite(figures["gradient_norm"]) and self.config.non_finite == "stop":
            losses = {name: value for name, value in figures.items() if name != "gradient_norm"}
            inputs = {"obs": batch.features, "actions": batch.actions, "returns": batch.returns}
            columns = {name: tensor.numpy(force=True) for name, tensor in inputs.items()}
            raise self.non_finite(losses, columns, "scale the rewards in the environment")
        self.updates += 1
        return figures

    def beside(self) -> Weights:
        """The share of uniform actions as well: by the run's env steps, not the replay's. A trained policy fills a new
        replay itself (a resumed run without its replay, `--init-from`)."""
        warms_up = self.env_steps < self.config.learning_starts and not self.acts_from_start
        return {EPSILON: np.array([float(warms_up)], np.float32)} | super().beside()
