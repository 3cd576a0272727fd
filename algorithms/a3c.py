"""Asynchronous Advantage Actor-Critic (Mnih et al. 2016, arXiv:1602.01783).

    worker ──gradient──▶ parameter server (or several) ──fresh weights──▶ that worker only

Each worker rolls out `rollout_length` steps in its environments, computes the gradient itself, on the weights it has,
and sends it to the parameter server, which applies it at once under statistics that all workers share, whatever others
did meanwhile, and answers with fresh weights. Nobody waits for anybody; the driver moves no arrays and only asks the
server what has been reported. What differs from the paper, each with a switch where there is something to choose:

- workers are processes, the shared parameters an actor (or `num_parameter_servers` of them), so a gradient is as many
  versions old as others were applied meanwhile: measured, and dropped beyond `max_staleness`. In the paper threads
  write into shared memory without locks (Hogwild!), and staleness is unknown;
- a worker has `num_envs_per_worker` environments side by side, and its loss is the mean over their steps, not the sum;
  1, as in the paper, uses a CPU badly. A fragment goes on over the end of an episode, where the paper's ends with it;
- n-step returns bootstrap at the fragment's end (`gae_lambda` 1, the paper); less than 1 is GAE (Schulman et al. 2016);
- the gradient's global norm is clipped; RMSProp has shared statistics (its epsilon outside the root, or as in the paper
  inside: `epsilon_inside_root`), or Adam;
- the network is that of Mnih et al. 2015 for images, 64 x 64 tanh else (the paper's is of 2013), heads orthogonal.

With `num_rollout_workers` 0 or 1 gradients are never stale: the synchronous A2C, and the same seed gives the same run.
With more, the order in which gradients arrive is the machine's own: runs are alike in distribution only (docs/a3c.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

import rlplat
from rlplat.errors import ActorDied, EnvError, NonFiniteError, WorkerCrashed
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Array, Obs, Result, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import non_finite_error
from rlplat.rl.learning.numpy_learning import Adam, Optimizer, RMSProp, clip_by_global_norm
from rlplat.rl.learning.parameter_server import (
    ObsMoments,
    ParameterServer,
    Shapes,
    ShardedParameterServer,
    Versions,
)
from rlplat.rl.learning.queue_ring import InFlight
from rlplat.rl.learning.weights import given_to
from rlplat.rl.normalization import (
    LEAST_PIXEL_VAR,
    OBS_MEAN,
    ObsNormalizer,
    measured,
    moments,
    vector_leaves,
)
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.policies.spec import PolicySpec, cpu_share, policy_spec
from rlplat.rl.run.algorithm import OnPolicy, require_learnable
from rlplat.rl.sampling.returns import LearningRewards, explained_variance, gae
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts
from rlplat.rl.schedules import EntropyCoef, LearningRate, schedule_value
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread
from rlplat.rl.unused_settings import Unused
from rlplat.section import Coefficient, Count, CountOrZero, Epsilon, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle, ObjectRef
    from rlplat.rl.run.typed_settings import A3CSettings


_ON_CPU = "a3c's workers compute gradients on the CPU; the learner of --algo ppo takes a GPU"


class A3CConfig(AlgorithmConfig):
    """A3C's settings. Of the defaults, t_max, RMSProp's decay and the entropy bonus are the paper's for Atari; rewards
    are not clipped, the learning rate is constant. For Atari: configs/a3c/_atari.yaml."""

    unused = {
        "learner.num_learners": Unused(
            "every rollout worker computes gradients; raise num_rollout_workers", is_error=True
        ),
        "learner.device": Unused(_ON_CPU, is_error=True, harmless=("cpu",)),
        "learner.num_gpus": Unused(_ON_CPU, is_error=True, harmless=(0,)),
    }
    fixed_on_resume = (*AlgorithmConfig.fixed_on_resume, "optimizer")

    num_rollout_workers: int = Field(default=2, ge=0, le=10_000)
    """Processes that roll out and compute gradients; 0 (all in this process) and 1 are the synchronous A2C."""
    rollout_length: Count = 5
    """t_max: steps of every environment per gradient."""
    gae_lambda: Share = 1.0
    """1: n-step returns up to the fragment's end (the paper); less: generalised advantage estimation."""

    num_parameter_servers: int = Field(default=1, ge=1, le=1024)
    """Actors that share the parameters among them."""
    max_staleness: CountOrZero = 100
    """A gradient on weights more than this many versions old is dropped; its worker gets fresh weights."""
    updates_per_report: Count = 20
    """Gradients of a worker between two words with the driver."""

    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """The parameter server's; its statistics are shared by all workers."""
    rmsprop_decay: float = Field(default=0.99, ge=0.0, lt=1.0)
    """alpha of RMSProp."""
    optimizer_epsilon: Epsilon = 1e-5
    """RMSProp's (the paper gives no value), or Adam's."""
    epsilon_inside_root: bool = False
    """RMSProp divides by sqrt(g) + epsilon (PyTorch; what Stable-Baselines3's A2C values were tuned with); true: by
    sqrt(g + epsilon) (the paper, TensorFlow), where 1e-5 is a floor of 3e-3 under small gradients (docs/a3c.md)."""
    learning_rate: LearningRate = 7e-4
    """Step size; the paper draws it from 1e-4 to 1e-2 (log-uniform) and anneals it to 0."""
    max_gradient_norm: Norm | None = 0.5
    """Gradients are scaled down to this global norm; null: they are not."""
    value_coef: Coefficient = 0.5
    """Weight of the value loss, which is half the mean squared error (Stable-Baselines3's vf_coef weighs all of it: its
    0.5 is 1.0 here)."""
    entropy_coef: EntropyCoef = 0.01
    """beta: weight of the entropy bonus."""
    normalize_advantages: bool = False
    """Mean 0 and deviation 1 within each fragment, so that the scale of rewards does not matter to the policy; not in
    the paper."""

    clip_rewards: bool = False
    """Learn from the sign of rewards (Atari); metrics stay raw."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return (each worker's own), clip to +-10."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the deviation (merged at the server), clip to +-10; of an image, each
    pixel's."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[A3CSettings]) -> None: ...


LOSS_STATS = ("policy_loss", "value_loss", "entropy")


def a3c_loss(
    log_probs: Tensor,
    entropies: Tensor,
    values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor]:
    """The loss whose gradient is that of the paper (section 4.3; signs turned): (loss, stats float32[3]).

        policy_loss = -mean(log pi(a|s) * A)
        value_loss  = mean((V - R)^2) / 2
        loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    All float32[M]; advantages (A) and returns (R) are constants. Stats are in the order of LOSS_STATS.
    """
    import torch

    policy_loss = -(log_probs * advantages).mean()
    value_loss = 0.5 * (values - returns).square().mean()
    entropy = entropies.mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    return loss, torch.stack([policy_loss, value_loss, entropy]).detach()


class TorchA3C:
    """The network in torch and the gradient of its loss; arrays in, arrays out."""

    def __init__(
        self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence, num_threads: int
    ) -> None:
        """num_threads: of the framework, for one worker; 0 leaves it to the framework's own rule."""
        from rlplat.rl.torch.trainee import actor_critic_trainee

        self.config = config
        self.trainee = actor_critic_trainee(config, spec, seed, device="cpu", num_threads=num_threads)

    def loss(self, *columns: Tensor, **coefficients: Any) -> tuple[Tensor, Tensor]:
        """`a3c_loss`; a subclass may write another, with `self.trainee.network` and `self.config` at hand."""
        return a3c_loss(*columns, **coefficients)

    def gradients(
        self,
        obs: Obs,
        batch: SampleBatch,
        advantages: Array,
        returns: Array,
        *,
        value_coef: float,
        entropy_coef: float,
    ) -> tuple[Weights, dict[str, float]]:
        """(gradients by name, float32 and contiguous; LOSS_STATS by name).

        obs: [T*B, ...], normalised; advantages, returns: float32[T, B]. The batch brings actions, the core's state and
        which rows count: all rows go through the network, in order, the loss is over the valid ones.
        """
        import torch

        tensor = torch.from_numpy
        rows = tensor(batch.valid_rows())
        distribution, values, _ = self.trainee.network(
            {path: tensor(leaf) for path, leaf in obs.items()} if isinstance(obs, dict) else tensor(obs),
            tensor(batch.core_state) if batch.core_state.size else None,
            tensor(episode_starts(batch)),
        )
        log_probs = distribution.log_prob(tensor(batch.flat("actions")))
        entropies = distribution.entropy()
        loss, stats = self.loss(
            log_probs[rows],
            entropies[rows],
            values[rows],
            tensor(advantages.reshape(-1))[rows],
            tensor(returns.reshape(-1))[rows],
            value_coef=value_coef,
            entropy_coef=entropy_coef,
        )
        return self.trainee.gradients(loss), dict(zip(LOSS_STATS, stats.tolist(), strict=True))


class A3CWorker(RolloutWorker):
    """An actor: rolls out, computes gradients, exchanges them for fresh weights; talks to the servers directly."""

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        worker_index: int,
        incarnation: int,
        spec: PolicySpec,
        parameter_servers: Sequence[ActorHandle],
    ) -> None:
        self.config: A3CConfig = computation.config_class.model_validate(config)
        num_threads = self.config.learner.num_threads
        if not num_threads and spec.has_images:
            num_threads = cpu_share(self.config.num_rollout_workers)
        network_seed, _ = seed_sequences(self.config.seed, "learner")
        backend = computation.backend(self.config, spec)
        self._network: TorchA3C = computation.net(backend, self.config, spec, network_seed, num_threads)
        super().__init__(config, worker_index, incarnation)
        weights = self._network.trainee.weights()
        self._shapes: Shapes = {name: array.shape for name, array in weights.items()}
        self._server = ShardedParameterServer(parameter_servers, self._shapes)
        self._versions: Versions = ()
        self._normalize_obs = ObsNormalizer(spec.obs)
        self._measured_leaves = vector_leaves(spec.obs)
        self._is_measured = False
        """Whether observations are taken as they are to be: normalised, where that is asked for."""
        self._learning_rewards = LearningRewards(self.config)
        self._exchange_s = 0.0

    def publish(self) -> Shapes:
        """Give the servers this worker's initial weights, as version 0; returns the parameters' shapes."""
        self._server.set_weights(0, self._network.trainee.weights())
        return self._shapes

    def learn(self, num_updates: int, env_steps: int) -> None:
        """`num_updates` times: roll out, compute the gradient, exchange it for fresh weights.

        env_steps: how far the run is, for the schedules. Everything worth telling goes to the server with the gradient:
        when this process dies, what was applied has been counted.
        """
        run_env_steps = self.config.stop.env_steps
        learning_rate = schedule_value(self.config.learning_rate, env_steps, run_env_steps)
        entropy_coef = schedule_value(self.config.entropy_coef, env_steps, run_env_steps)
        if not self._versions:
            self._use(*self._server.latest())
        for _ in range(num_updates):
            batch = self.roll_out()
            began = perf_counter()
            gradients, metrics = self._gradients(batch, entropy_coef)
            computed = perf_counter()
            metrics |= {f"rollout/{name}": seconds for name, seconds in batch.timing.items()} | {
                "time/gradient_s": computed - began,
                "time/exchange_s": self._exchange_s,  # of the one before: this one's is not known yet
            }
            self._use(
                *self._server.apply_gradients(
                    gradients,
                    self._versions,
                    learning_rate=learning_rate,
                    report=UpdateReport(batch.env_steps, batch.episodes, metrics),
                    obs_moments=self._obs_moments(batch),
                )
            )
            self._exchange_s = perf_counter() - computed

    def _gradients(self, batch: SampleBatch, entropy_coef: float) -> tuple[Weights | None, dict[str, float]]:
        """The clipped gradient of one fragment, or None where it is not finite and shall be skipped, or where the
        fragment was acted in before there were statistics of observations; metrics."""
        config, rewards = self.config, self._learning_rewards(batch)
        if not self._is_measured:
            return None, {}
        advantages, returns = gae(
            rewards,
            batch.values,
            batch.next_values,
            batch.terminated,
            batch.truncated,
            batch.valid,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        if config.normalize_advantages:
            advantages = normalized(advantages, batch.valid)
        obs = batch.flat_obs()
        gradients, stats = self._network.gradients(
            self._normalize_obs(obs) if config.normalize_observations else obs,
            batch,
            advantages,
            returns,
            value_coef=config.value_coef,
            entropy_coef=entropy_coef,
        )
        norm = clip_by_global_norm(gradients, config.max_gradient_norm or math.inf)
        if not math.isfinite(norm):
            if config.non_finite == "stop":
                raise self._non_finite(advantages, stats, gradients)
            return None, {}
        metrics = {f"learner/{name}": value for name, value in stats.items()} | {
            "learner/gradient_norm": norm
        }
        explained = explained_variance(batch.values[batch.valid], returns[batch.valid])
        if math.isfinite(explained):
            metrics["learner/explained_variance"] = explained
        return gradients, metrics

    def _obs_moments(self, batch: SampleBatch) -> ObsMoments | None:
        if not self.config.normalize_observations or not batch.env_steps:
            return None
        obs = measured(take_obs(batch.obs, batch.valid), self._measured_leaves)
        mean, var = moments(obs)
        if obs.dtype == np.uint8:  # merged variances are no less than the least
            var = np.maximum(var, LEAST_PIXEL_VAR)
        return ObsMoments(mean, var, len(obs))

    def _use(self, versions: Versions, weights: Weights) -> None:
        """For acting and for the next gradient the same weights and statistics."""
        self._versions = versions
        self._network.trainee.set_weights(weights)
        self.set_weights(versions[0], weights)
        self._normalize_obs.set_weights(weights)
        self._is_measured = OBS_MEAN in weights or not self.config.normalize_observations

    def _non_finite(self, advantages: Array, stats: dict[str, float], gradients: Weights) -> NonFiniteError:
        return non_finite_error(
            columns={"advantages": advantages},
            losses=stats,
            gradients=lambda: [name for name, g in gradients.items() if not np.isfinite(g).all()],
            place=f"of rollout worker {self.worker_index}",
            version=self._versions[0],
            scaling="scale rewards (normalize_rewards)",
        )

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"reward_normalizer": self._learning_rewards.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there, with the weights that the servers have when it learns next."""
        super().set_state(state)
        self._learning_rewards.set_state(state["reward_normalizer"])
        self._versions = ()

    def scale_rewards_as(self, reward_normalizer: dict[str, Any]) -> None:
        """With another worker's statistics, without its episodes."""
        self._learning_rewards.set_state(reward_normalizer | {"workers": {}})


class A3C(OnPolicy[A3CConfig]):
    """The ring, and `step()`, which looks at what has come of it.

    with A3C(A3CConfig(env="CartPole-v1", num_rollout_workers=2, seed=1)) as a3c:
        while (result := a3c.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "a3c"
    config_class: type[A3CConfig] = A3CConfig
    learner_class = A3CWorker
    nets = {
        "torch": TorchA3C,
        "tf": "rlplat.algorithms.other_frameworks.a3c_tf:TfA3C",
        "numpy": "rlplat.algorithms.other_frameworks.a3c_numpy:NumpyA3C",
    }
    losses = ("loss",)
    spaces: SpaceSpec

    def preflight(self) -> SpaceSpec:
        return preflight(self.config, self.computation)

    def setup(self) -> None:
        """Parameter servers, then workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        self.spaces = self.looked_at
        spec = policy_spec(settings["policy"], self.spaces)
        self.notes = (self.computation.note(config, [spec]),)
        self.in_flight = self.add(InFlight())
        self._learning: set[int] = set()  # slots of the workers that have a call
        servers = [
            self.start(ParameterServer, make_optimizer(config), config.max_staleness)
            for _ in range(config.num_parameter_servers)
        ]
        worker = spread(self.learner_class, settings)
        self.workers = self.start_workers(
            lambda *place: worker.remote(self.computation, settings, *place, spec, servers)
        )
        shapes = rlplat.get(self.workers.handles[0].publish.remote())
        self.server = self.saved["parameter_server"] = ShardedParameterServer(servers, shapes)
        self._not_saved = self.workers.not_saved()  # asked now: later they are busy

    @property
    def not_saved(self) -> tuple[str, ...]:
        return self._not_saved

    def step(self) -> Result:
        """What was learnt since the last step: returns when some worker has made its updates; the others go on."""
        self.require_open()
        started = perf_counter()
        report = UpdateReport(0, [], {})
        while not report.env_steps:
            self._keep_learning()
            self.in_flight.next()
            report = self.server.take_report()
        if self.config.num_rollout_workers > 1:
            self._keep_learning()  # while the driver writes its metrics; a worker alone stays in step with it
        learning_rate = schedule_value(
            self.config.learning_rate, self.tally.env_steps, self.config.stop.env_steps
        )
        return self.result(
            report,
            {
                "learner/learning_rate": learning_rate,
                "rollout/worker_restarts": self.workers.restarts,
                "time/step_s": perf_counter() - started,
            },
        )

    def _keep_learning(self) -> None:
        """A call for every worker that has none."""
        for slot, worker in enumerate(self.workers.handles):
            if slot not in self._learning:
                self._learning.add(slot)
                self.workers.asked(slot)
                call = worker.learn.remote(self.config.updates_per_report, self.tally.env_steps)
                self.in_flight.ask(call, then=partial(self._on_learnt, slot))

    def _on_learnt(self, slot: int, call: ObjectRef) -> None:
        """Its updates are made; a worker that died in them is replaced, and only its fragment is lost."""
        self._learning.discard(slot)
        try:
            rlplat.get(call)
        except (ActorDied, WorkerCrashed, EnvError) as loss:
            self.server.require_alive()
            self.workers.replace(slot, loss)

    def weights(self) -> ObjectRef:
        self.require_open()
        return self.server.latest_ref()

    def get_state(self) -> dict[str, Any]:
        """Waits until every worker has made its updates; what they reported is counted by the next step."""
        self.in_flight.finish()
        return super().get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        saved, handles = state["rollout_workers"]["workers"], self.workers.handles
        if len(saved) != len(handles):
            # Another number of workers begin anew, but the critic has learnt the saved ones' scale of rewards.
            known = [worker["reward_normalizer"] for worker in saved if worker is not None] * len(handles)
            pairs = zip(handles, known, strict=False)
            rlplat.get([handle.scale_rewards_as.remote(one) for handle, one in pairs])

    @classmethod
    def policy_weights(cls, state: dict[str, Any]) -> Weights:
        """The acting weights in what `get_state` returned."""
        return ShardedParameterServer.acting_weights(state["parameter_server"])

    @classmethod
    def with_weights(cls, state: dict[str, Any], weights: Weights) -> dict[str, Any]:
        """What `get_state()` returned, with such weights in the place of its own."""
        return state | {"parameter_server": given_to(state["parameter_server"], weights)}

    def wants_statistics(self, weights: Weights) -> bool:
        """A run of few observations has none yet (parameter_server.MIN_OBS); neither will this one."""
        return super().wants_statistics(weights) and OBS_MEAN in weights


def normalized(advantages: Array, valid: Array) -> Array:
    """float32[T, B] -> the same with mean 0 and deviation 1 over the valid rows (bool[T, B]); a single row stays."""
    chosen = advantages[valid]
    if len(chosen) < 2:
        return advantages
    scaled: Array = (advantages - chosen.mean()) / (chosen.std(ddof=1) + np.float32(1e-8))
    return scaled


def make_optimizer(config: A3CConfig) -> Optimizer:
    if config.optimizer == "adam":
        return Adam(epsilon=config.optimizer_epsilon)
    return RMSProp(
        decay=config.rmsprop_decay,
        epsilon=config.optimizer_epsilon,
        epsilon_inside_root=config.epsilon_inside_root,
    )


def preflight(config: A3CConfig, computation: Computation) -> SpaceSpec:
    """In the driver, before any actor starts: the environment is sound, and a policy for its spaces can be built."""
    spaces = check.preflight(config)
    require_learnable(config, [policy_spec(config.policy.model_dump(), spaces)], computation)
    return spaces
