"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), synchronous actor-learner form.

    rollout workers ──SampleBatch[T, B] refs──▶ learner ──weights, version + 1──▶ parameter server ──▶ rollout workers

Every round all rollout workers roll out `rollout_length` steps with the newest weights, and the learner makes
`num_epochs` passes of minibatch Adam over them. What the paper leaves open, or common practice does otherwise, follows
Huang et al. 2022 ("The 37 Implementation Details of Proximal Policy Optimization"; numbers below are theirs: c core,
a Atari, m continuous actions), and each is a switch in `PPOConfig`:

- policy and value network share an encoder for images only (c13, a: the paper's Atari network), orthogonal init (c2);
- Adam with epsilon 1e-5 (c3), learning rate and clip range may anneal (c4), gradients clipped by global norm (c11);
- advantages are generalised (c5, Schulman et al. 2016) and normalised in each minibatch (c7), not over the batch;
- the value loss may be clipped like the policy's (c9); off by default: no benefit was found for it;
- a cut-off episode (time limit) bootstraps from its last observation; the paper's code took it for a termination;
- rewards by sign (a6) or scaled by the deviation of the return (m: 8, 9), observations normalised (m: 6, 7);
- an update may stop early when the policy has moved too far (`target_kl`); approx_kl is Schulman's k3 estimator.

Measured with `benchmarks/train.py`; `configs/ppo/` holds the tuned runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

import rlplat
from rlplat.errors import ConfigError, InfeasibleResources, NonFiniteError, NotInitialized, RlplatError
from rlplat.rl import env_check
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.episode_window import EpisodeWindow
from rlplat.rl.evaluation import Evaluator
from rlplat.rl.interfaces import Array, Episode, Result, UpdateReport
from rlplat.rl.normalization import OBS_MEAN, OBS_VAR, ObsNormalizer, RewardNormalizer, RunningMeanVar
from rlplat.rl.parameter_server import ParameterServer
from rlplat.rl.policy_spec import PolicySpec, policy_spec
from rlplat.rl.returns import explained_variance, gae
from rlplat.rl.rollout_worker import RolloutWorker
from rlplat.rl.sample_batch import SampleBatch, join_envs
from rlplat.rl.schedules import Schedule, schedule_value
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.worker_group import RolloutWorkers

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.torch.tensor_rows import TensorRows


class PPOConfig(AlgorithmConfig):
    """PPO's settings; the defaults are those of Huang et al. for Atari, without the reward clipping."""

    rollout_length: PositiveInt = 128
    """T: steps of every environment per round."""
    num_epochs: PositiveInt = 4
    """Passes over each round's samples."""
    minibatch_size: PositiveInt = 256
    """Samples per gradient step; a round is cut into equal parts of about this size."""
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0)
    """lambda of generalised advantage estimation (c5): 0 trusts the critic alone, 1 the rewards alone."""

    clip_range: Schedule = 0.2
    """epsilon: how far the probability ratio may move from 1 before its gradient is cut."""
    clip_value_loss: bool = False
    """Clip the value's move by `clip_range` as well (c9)."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the value loss in the sum (c10)."""
    entropy_coef: Schedule = 0.0
    """Weight of the entropy bonus (c10)."""
    normalize_advantages: bool = True
    """Mean 0 and deviation 1 within each minibatch (c7)."""
    max_gradient_norm: PositiveFloat | None = 0.5
    """Gradients are scaled down to this global norm (c11); null: they are not."""
    adam_epsilon: PositiveFloat = 1e-5
    """Adam's epsilon (c3; torch's own default is 1e-8)."""
    target_kl: PositiveFloat | None = None
    """End a round's update after the epoch in which approx_kl exceeds this (c12); null: never."""

    clip_rewards: bool = False
    """Learn from the sign of rewards (a6); metrics stay raw."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return (m8), clip to +-10 (m9)."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the running deviation (m6), clip to +-10 (m7); not for images."""


LOSS_STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def ppo_loss(
    log_probs: Tensor,
    entropies: Tensor,
    values: Tensor,
    columns: Mapping[str, Tensor],
    *,
    clip_range: float,
    value_coef: float,
    entropy_coef: float,
    clip_value_loss: bool,
    normalize_advantages: bool,
) -> tuple[Tensor, Tensor]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (loss, stats float32[5]).

        ratio       = pi(a|s) / pi_old(a|s)
        policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A))
        value_loss  = mean((V - R)^2) / 2
        loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    log_probs, entropies, values: float32[M] of the network being trained; columns: log_probs, values (both of the
    weights that acted), advantages, returns: float32[M]. Stats are in the order of LOSS_STATS.
    """
    import torch

    advantages, returns = columns["advantages"], columns["returns"]
    if normalize_advantages and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    log_ratios = log_probs - columns["log_probs"]
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1.0 - clip_range, 1.0 + clip_range)
    policy_loss = -torch.min(ratios * advantages, clipped_ratios * advantages).mean()

    value_errors = (values - returns).square()
    if clip_value_loss:
        moves = (values - columns["values"]).clamp(-clip_range, clip_range)
        value_errors = torch.max(value_errors, (columns["values"] + moves - returns).square())
    value_loss = 0.5 * value_errors.mean()

    entropy = entropies.mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    with torch.no_grad():
        # k3 = (r - 1) - log r: unbiased like -log r, but never negative and of less variance
        # (Schulman, "Approximating KL divergence", 2020).
        approx_kl = (ratios - 1.0 - log_ratios).mean()
        clip_fraction = ((ratios - 1.0).abs() > clip_range).float().mean()
        stats = torch.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction])
    return loss, stats


class PPOLearner:
    """An actor: holds network, optimizer and statistics; one `update` per round, then publishes the weights."""

    def __init__(self, config: dict[str, Any], spec: PolicySpec, parameter_server: ActorHandle) -> None:
        import torch

        from rlplat.rl.torch.adam import Adam
        from rlplat.rl.torch.device import resolve_device, resolve_precision, use_threads
        from rlplat.rl.torch.networks import ActorCritic

        self.config = PPOConfig.model_validate(config)
        self._spec = spec
        self._parameter_server = parameter_server
        use_threads(self.config.learner.num_threads, spec)
        if self.config.deterministic:
            torch.use_deterministic_algorithms(True)
        self._device = resolve_device(self.config.learner.device, spec)
        network_seed, order_seed = seed_sequences(self.config.seed, "learner")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(network_seed.generate_state(1)[0]))
            precision = resolve_precision(self.config.learner.precision, spec, self._device)
            self._network = ActorCritic(spec, precision).to(self._device)
        self._optimizer = Adam(self._network, epsilon=self.config.adam_epsilon)
        self._rng = np.random.Generator(np.random.PCG64(order_seed))
        self._obs_statistics = RunningMeanVar(spec.obs_shape) if self.config.normalize_observations else None
        self._normalize_obs = ObsNormalizer()
        self._reward_normalizer = RewardNormalizer(self.config.discount)
        self._env_steps = 0
        self._version = 0
        self._publish()

    def update(self, *batches: SampleBatch) -> UpdateReport:
        """One round: scale rewards, estimate advantages, `num_epochs` passes of minibatches, publish version + 1."""
        started = perf_counter()
        config, progress = self.config, self._env_steps / self.config.stop.env_steps
        batch = join_envs(batches)
        advantages, returns = gae(
            np.concatenate([self._learning_rewards(each) for each in batches], axis=1),
            batch.values,
            batch.next_values,
            batch.terminated,
            batch.truncated,
            batch.valid,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        rows, order = self._rows(batch, advantages, returns), batch.valid_rows()
        learning_rate = schedule_value(config.learning_rate, progress)
        loss_arguments = {
            "clip_range": schedule_value(config.clip_range, progress),
            "value_coef": config.value_coef,
            "entropy_coef": schedule_value(config.entropy_coef, progress),
            "clip_value_loss": config.clip_value_loss,
            "normalize_advantages": config.normalize_advantages,
        }
        prepared = perf_counter()
        metrics = self._train(rows, order, learning_rate, loss_arguments)
        trained = perf_counter()

        if self._obs_statistics is not None:
            # After the update: the log-probabilities in this batch came from the statistics of before.
            self._obs_statistics.update(batch.flat("obs")[order])
        self._env_steps += batch.env_steps
        self._version += 1
        self._publish()
        metrics |= {f"rollout/{name}": seconds for name, seconds in batch.timing.items()} | {
            "learner/explained_variance": explained_variance(batch.values[batch.valid], returns[batch.valid]),
            "learner/learning_rate": learning_rate,
            "learner/clip_range": loss_arguments["clip_range"],
            "learner/entropy_coef": loss_arguments["entropy_coef"],
            "learner/weights_version": self._version,
            "time/prepare_s": prepared - started,
            "time/train_s": trained - prepared,
            "time/publish_s": perf_counter() - trained,
        }
        return UpdateReport(batch.env_steps, batch.episodes, metrics)

    def _train(
        self, rows: TensorRows, order: Array, learning_rate: float, loss_arguments: dict[str, Any]
    ) -> dict[str, float]:
        """`num_epochs` passes over the rows in `order`; means of the statistics over all gradient steps."""
        import torch

        config = self.config
        max_norm = config.max_gradient_norm or math.inf
        num_minibatches = max(1, round(len(order) / config.minibatch_size))
        stats: list[Tensor] = []
        norms: list[float] = []
        epochs = skipped = 0
        for _ in range(config.num_epochs):
            first = len(stats)
            epochs += 1
            for indices in np.array_split(self._rng.permutation(order), num_minibatches):
                obs, actions, columns = rows.take(indices)
                loss, minibatch_stats = ppo_loss(
                    *self._network.evaluate_actions(obs, actions), columns, **loss_arguments
                )
                self._optimizer.zero_grad()
                loss.backward()
                norm = self._optimizer.step(learning_rate, max_norm)
                if not math.isfinite(norm):
                    if config.non_finite == "stop":
                        raise NonFiniteError(self._non_finite_report(loss, minibatch_stats, columns))
                    skipped += 1
                    continue
                stats.append(minibatch_stats)
                norms.append(norm)
            if config.target_kl is not None and len(stats) > first:
                epoch_means = torch.stack(stats[first:]).mean(dim=0)
                if float(epoch_means[LOSS_STATS.index("approx_kl")]) > config.target_kl:
                    break
        means = torch.stack(stats).mean(dim=0).tolist() if stats else [math.nan] * len(LOSS_STATS)
        return {f"learner/{name}": mean for name, mean in zip(LOSS_STATS, means, strict=True)} | {
            "learner/gradient_norm": float(np.mean(norms)) if norms else math.nan,
            "learner/epochs": epochs,
            "learner/skipped_minibatches": skipped,
        }

    def _learning_rewards(self, batch: SampleBatch) -> Array:
        """What the learner learns from: float32[T, B]; raw, by sign, or normalised."""
        rewards = batch.rewards
        if not np.isfinite(rewards).all():
            t, b = np.argwhere(~np.isfinite(rewards))[0]
            raise NonFiniteError(
                f"reward {rewards[t, b]} from environment {b} of rollout worker {batch.worker_index} (step {t} of the "
                f"fragment, action {batch.actions[t, b]}); fix {self.config.env}'s reward"
            )
        if self.config.clip_rewards:
            rewards = np.sign(rewards)
        if self.config.normalize_rewards:
            rewards = self._reward_normalizer.normalize(
                rewards,
                batch.terminated | batch.truncated,
                batch.valid,
                worker_index=batch.worker_index,
                incarnation=batch.incarnation,
            )
        return rewards

    def _rows(self, batch: SampleBatch, advantages: Array, returns: Array) -> TensorRows:
        """The round as rows on the device, observations as the network wants them."""
        from rlplat.rl.torch.tensor_rows import TensorRows

        obs = batch.flat("obs")
        if self._spec.encoder == "mlp":
            obs = self._normalize_obs(obs).astype(np.float32, copy=False)
        return TensorRows(
            obs,
            batch.flat("actions"),
            {
                "log_probs": batch.flat("log_probs"),
                "values": batch.flat("values"),
                "advantages": advantages.reshape(-1),
                "returns": returns.reshape(-1),
            },
            self._device,
            channels_first_images=self._spec.encoder == "nature_cnn" and self._spec.obs_layout == "CHW",
        )

    def _publish(self) -> None:
        """Weights and, with them, the statistics that observations are to be normalised with."""
        from rlplat.rl.torch.weights import weights_of

        weights = weights_of(self._network)
        if self._obs_statistics is not None:
            weights[OBS_MEAN] = self._obs_statistics.mean.astype(np.float32)
            weights[OBS_VAR] = self._obs_statistics.var.astype(np.float32)
            self._normalize_obs.set_weights(weights)
        rlplat.get(self._parameter_server.set_weights.remote(self._version, weights))

    def _non_finite_report(self, loss: Tensor, stats: Tensor, columns: Mapping[str, Tensor]) -> str:
        """Where the first NaN or infinity is to be seen, from the inputs to the gradients."""
        inputs = [name for name, column in columns.items() if not bool(column.isfinite().all())]
        losses = [
            name for name, stat in zip(LOSS_STATS, stats.tolist(), strict=True) if not math.isfinite(stat)
        ]
        gradients = [
            name
            for name, parameter in self._network.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
        where = (
            f"batch columns {inputs}"
            if inputs
            else f"loss terms {losses}"
            if losses
            else f"gradients {gradients}"
        )
        return (
            f"NaN or infinity in the {where} at {self._env_steps} env steps (loss {float(loss.detach())}); weights of "
            f"version {self._version} are unharmed. Lower learning_rate, scale rewards (normalize_rewards), or leave "
            "such minibatches out: --set non_finite=skip"
        )

    def ready(self) -> int:
        """The version published last; an answer says that the constructor is through."""
        return self._version

    def get_state(self) -> dict[str, Any]:
        from rlplat.rl.torch.weights import weights_of

        return {
            "version": self._version,
            "env_steps": self._env_steps,
            "weights": weights_of(self._network),
            "optimizer": self._optimizer.get_state(),
            "rng": self._rng.bit_generator.state,
            "obs_statistics": self._obs_statistics.get_state() if self._obs_statistics is not None else None,
            "reward_normalizer": self._reward_normalizer.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called; the weights are published under the next version."""
        from rlplat.rl.torch.weights import load_weights

        load_weights(self._network, state["weights"])
        self._optimizer.set_state(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        if self._obs_statistics is not None and state["obs_statistics"] is not None:
            self._obs_statistics.set_state(state["obs_statistics"])
        self._reward_normalizer.set_state(state["reward_normalizer"])
        self._env_steps = int(state["env_steps"])
        self._version = max(int(state["version"]), self._version) + 1
        self._publish()


class PPO:
    """The ring, and `step()`, which turns it once.

    with PPO(PPOConfig(env="CartPole-v1", seed=1)) as ppo:
        while (result := ppo.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "ppo"
    config_class = PPOConfig
    not_saved = ("the states of the environments: after a resume new episodes start",)

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self._actors: list[ActorHandle] = []
        self._rollout_workers: RolloutWorkers | None = None
        self._evaluator: ActorHandle | None = None
        self._window = EpisodeWindow()
        self._iteration = 0
        self._env_steps = 0
        self._owns_runtime = not rlplat.is_initialized()
        if self._owns_runtime:
            # Before the pre-flight: the first processes start while it looks at the environment.
            rlplat.init(backend="zmq" if config.num_rollout_workers else "inproc", preload=("torch",))
        try:
            spec, self.spaces = preflight(config)
            self._start(spec)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: PolicySpec) -> None:
        """Parameter server, learner, rollout workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        num_gpus = config.learner.num_gpus
        has_gpus = rlplat.cluster_resources().get("GPU", 0)
        if num_gpus == "auto":
            wants_gpu = spec.encoder != "mlp" and config.learner.device != "cpu"
            num_gpus = 1 if wants_gpu and has_gpus >= 1 else 0
        elif num_gpus > has_gpus:
            raise InfeasibleResources(
                f"learner.num_gpus is {num_gpus:g}, but there are {has_gpus:g} GPUs here: --set learner.num_gpus=auto"
            )
        self._parameter_server = rlplat.remote(ParameterServer).remote()
        self._learner = (
            rlplat.remote(PPOLearner)
            .options(num_gpus=num_gpus)
            .remote(settings, spec, self._parameter_server)
        )
        self._actors += [self._learner, self._parameter_server]
        self._rollout_workers = RolloutWorkers(
            lambda index, incarnation: rlplat.remote(RolloutWorker).remote(
                settings, index, incarnation, self._parameter_server
            ),
            max(1, config.num_rollout_workers),
            max_restarts=config.max_worker_restarts,
            restart_on_env_error=config.on_env_error == "restart",
        )
        rlplat.get(self._learner.ready.remote())

    def step(self) -> Result:
        """One round: sample, update, publish."""
        workers = self._workers()
        started = perf_counter()
        batches = workers.sample()
        sampled = perf_counter()
        while True:
            try:
                report: UpdateReport = rlplat.get(self._learner.update.remote(*batches))
                break
            except RlplatError as error:
                batches = workers.replace_lost(batches, error)
        self._iteration += 1
        self._env_steps += report.env_steps
        self._window.extend(report.episodes)
        return Result(
            iteration=self._iteration,
            env_steps=self._env_steps,
            episodes=self._window.episodes,
            episode_return_mean=self._window.return_mean,
            episode_length_mean=self._window.length_mean,
            metrics=report.metrics
            | {
                "rollout/worker_restarts": workers.restarts,
                "time/sample_s": sampled - started,
                "time/update_s": perf_counter() - sampled,
            },
        )

    def evaluate(self, episodes: int) -> list[Episode]:
        """Greedy episodes (or sampled, `evaluation.deterministic`) on raw rewards with the newest weights."""
        if self._evaluator is None:
            self._evaluator = rlplat.remote(Evaluator).remote(
                self.config.model_dump(), self._parameter_server
            )
            self._actors.append(self._evaluator)
        finished: list[Episode] = rlplat.get(self._evaluator.run.remote(episodes))
        return finished

    def get_state(self) -> dict[str, Any]:
        return {
            "iteration": self._iteration,
            "env_steps": self._env_steps,
            "episode_window": self._window.get_state(),
            "learner": rlplat.get(self._learner.get_state.remote()),
            "rollout_workers": self._workers().get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        rlplat.get(self._learner.set_state.remote(state["learner"]))
        self._workers().set_state(state["rollout_workers"])
        self._window.set_state(state["episode_window"])
        self._iteration, self._env_steps = int(state["iteration"]), int(state["env_steps"])

    def close(self) -> None:
        """Stop the actors; and the runtime, if this object started it. May be called again."""
        if rlplat.is_initialized():
            if self._rollout_workers is not None:
                self._rollout_workers.close()
            for actor in self._actors:
                rlplat.kill(actor)
            if self._owns_runtime:
                rlplat.shutdown()
        self._rollout_workers = None
        self._actors.clear()

    def _workers(self) -> RolloutWorkers:
        if self._rollout_workers is None:
            raise NotInitialized("this PPO is closed: make a new one, and use it within `with`")
        return self._rollout_workers

    def __enter__(self) -> PPO:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def preflight(config: PPOConfig) -> tuple[PolicySpec, SpaceSpec]:
    """In the driver, before any actor starts: the environment is sound, and a policy for its spaces can be built."""
    spaces = env_check.preflight(config.env, config.env_kwargs).spaces
    assert spaces is not None
    spec = policy_spec(config.policy.model_dump(), spaces)
    if config.normalize_observations and spec.encoder != "mlp":
        raise ConfigError(
            "normalize_observations is for vectors; images are scaled by 1/255 as it is: set it to false"
        )
    if config.clip_rewards and config.normalize_rewards:
        raise ConfigError("clip_rewards and normalize_rewards exclude each other: set one of them to false")
    return spec, spaces
