"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), synchronous actor-learner form.

    rollout workers ──SampleBatch[T, B] refs──▶ learner ──weights, version + 1──▶ parameter server ──▶ rollout workers

Every round all rollout workers roll out `rollout_length` steps with the newest weights, and the learner (or a group of
them, `learner.num_learners`) makes `num_epochs` passes of minibatch Adam over them. A minibatch is a set of rows; with
a recurrent core it is a set of whole fragments, unrolled from the core's state at their start.

What the paper leaves open, or common practice does otherwise, follows Huang et al. 2022 ("The 37 Implementation
Details of Proximal Policy Optimization"; numbers below are theirs: c core, a Atari, m continuous actions), and each is
a switch in `PPOConfig`:

- policy and value network share an encoder for images only (c13, a: the paper's Atari network), orthogonal init (c2);
- Adam with epsilon 1e-5 (c3), learning rate and clip range may anneal (c4), gradients clipped by global norm (c11);
- advantages are generalised (c5, Schulman et al. 2016) and normalised in each minibatch (c7), not over the batch;
- the value loss may be clipped like the policy's (c9); off by default: no benefit was found for it;
- a cut-off episode (time limit) bootstraps from its last observation; the paper's code took it for a termination;
- rewards by sign (a6) or scaled by the deviation of the return (m: 8, 9), observations normalised (m: 6, 7);
- an update may stop early when the policy has moved too far (`target_kl`); approx_kl is Schulman's k3 estimator;
- `overlap_sampling` rolls out the next round during the update, with weights that are one version behind (where the
  learner has a GPU).

Measured with `benchmarks/train.py`; `configs/ppo/` holds the tuned runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from rlplat.errors import ConfigError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.interfaces import Array, Obs, Result, UpdateReport
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import ActorCriticLearner
from rlplat.rl.learning.learner_group import learner_gpus
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig, MultiAgentPlan, look_at_env, policy_specs
from rlplat.rl.multi_agent.policy_rings import PolicyRings
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.run.algorithm import OnPolicy, require_learnable
from rlplat.rl.sampling.returns import explained_variance, gae
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts, join_envs
from rlplat.rl.schedules import ClipRange, EntropyCoef
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread
from rlplat.section import Coefficient, Count, Epsilon, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import PPOSettings


class PPOConfig(AlgorithmConfig):
    """PPO's settings. The defaults suit small environments: the rounds of Huang et al. for Atari (8 environments x 128
    steps, 4 epochs, 4 minibatches), a constant learning rate of 3e-4 and clip range of 0.2 (Schulman et al. 2017 for
    MuJoCo), no entropy bonus, nothing normalised or clipped. For Atari, MuJoCo: configs/ppo/_atari.yaml, _mujoco.yaml.
    """

    rollout_length: Count = 128
    """T: steps of every environment per round."""
    num_epochs: Count = 4
    """Passes over each round's samples."""
    minibatch_size: Count = 256
    """Samples per gradient step; a round is cut into equal parts of about this size."""
    gae_lambda: Share = 0.95
    """lambda of generalised advantage estimation (c5): 0 trusts the critic alone, 1 the rewards alone."""

    clip_range: ClipRange = 0.2
    """epsilon: how far the probability ratio may move from 1 before its gradient is cut."""
    clip_value_loss: bool = False
    """Clip the value's move by `clip_range` as well (c9)."""
    value_coef: Coefficient = 0.5
    """Weight of the value loss, which is half the mean squared error, as in CleanRL (c10); Stable-Baselines3's vf_coef
    weighs all of it."""
    entropy_coef: EntropyCoef = 0.0
    """Weight of the entropy bonus (c10)."""
    normalize_advantages: bool = True
    """Mean 0 and deviation 1 within each minibatch (c7)."""
    max_gradient_norm: Norm | None = 0.5
    """Gradients are scaled down to this global norm (c11); null: they are not."""
    adam_epsilon: Epsilon = 1e-5
    """Adam's epsilon (c3; torch's own default is 1e-8)."""
    target_kl: Norm | None = None
    """End a round's update after the epoch in which approx_kl exceeds this (c12); null: never."""

    clip_rewards: bool = False
    """Learn from the sign of rewards (a6); metrics stay raw."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return (m8), clip to +-10 (m9)."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the running deviation (m6), clip to +-10 (m7); of images each pixel's."""
    overlap_sampling: Literal["auto"] | bool = "auto"
    """Sample the next round while the learner updates: weights are one version behind. Worth it where the learner
    leaves CPUs to the rollout workers: it is on a GPU (`auto`: there only), or the network is an MLP."""

    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
    """Which policy decides for which agent, where there are several (docs/multi-agent.md)."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[PPOSettings]) -> None: ...


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
    advantage_mean: float = 0.0,
    advantage_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (loss, stats float32[5]).

        A           = (advantages - advantage_mean) * advantage_scale
        ratio       = pi(a|s) / pi_old(a|s)
        policy_loss = -mean(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A))
        value_loss  = mean((V - R)^2) / 2
        loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    log_probs, entropies, values: float32[M] of the network being trained; columns: log_probs, values (both of the
    weights that acted), advantages, returns: float32[M]. Stats are in the order of LOSS_STATS.
    """
    import torch

    advantages = (columns["advantages"] - advantage_mean) * advantage_scale
    returns = columns["returns"]

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


class TorchPPO:
    """Network, optimizer and loss on torch; `TfPPO` is the same on TensorFlow, `NumpyPPO` for MLPs in plain numpy."""

    def loss(
        self,
        log_probs: Tensor,
        entropies: Tensor,
        values: Tensor,
        columns: Mapping[str, Tensor],
        **arguments: Any,
    ) -> tuple[Tensor, Tensor]:
        """`ppo_loss`; a subclass may write another, with `self.network` and `self.config` at hand."""
        return ppo_loss(log_probs, entropies, values, columns, **arguments)

    def __init__(self, config: PPOConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        from rlplat.rl.torch.trainee import actor_critic_trainee

        self.config, self.trainee = config, actor_critic_trainee(config, spec, seed)
        self._spec, self.device, self.network = spec, self.trainee.device, self.trainee.network

    def load_round(
        self,
        obs: Obs,
        actions: Array,
        columns: Mapping[str, Array],
        core_state: Array,
        starts: Array,
        valid: Array,
    ) -> None:
        """Take a round onto the device. obs, actions, columns: [N, ...], N = T*B; core_state: float32[B, S]; starts,
        valid: bool[N]."""
        from rlplat.rl.torch.tensor_rows import TensorRows, tensor_on

        self._rows = TensorRows(self._spec, obs, actions, columns, self.device)
        self._core_state = tensor_on(self.device, np.array(core_state))
        self._starts, self._valid = starts, valid

    def train_minibatch(
        self, indices: Array, share: float, learning_rate: float, loss_arguments: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """One gradient step -> what `read` takes. A GPU is told what to do, and not waited for.

        indices: int64[M] rows, or int64[T, M] whole fragments (with a core); share: this learner's part of the
        minibatch, 1 where there is only one learner.
        """
        from rlplat.rl.torch.tensor_rows import tensor_on

        tensor = partial(tensor_on, self.device)
        obs, actions, columns = self._rows.take(indices.reshape(-1))
        state = starts = None
        if indices.ndim == 2:
            state = self._core_state[tensor(indices[0])]  # row of t = 0: the environment
            starts = tensor(self._starts[indices])
        distribution, values, _ = self.network(obs, state, starts)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
        if indices.ndim == 2 and not self._valid[indices].all():
            rows = tensor(np.flatnonzero(self._valid[indices]))
            log_probs, entropies, values = log_probs[rows], entropies[rows], values[rows]
            columns = {name: column[rows] for name, column in columns.items()}
        loss, stats = self.loss(log_probs, entropies, values, columns, **loss_arguments)
        return self.trainee.start_descent(loss, learning_rate, stats, share)

    def read(self, trained: Sequence[tuple[Tensor, Tensor]]) -> tuple[Array, Array]:
        """Of K gradient steps the statistics of LOSS_STATS, float32[K, 5], and the gradient norms, float32[K]. A step
        whose norm is not finite changed nothing."""
        import torch

        stats, norms = (torch.stack(column).numpy(force=True) for column in zip(*trained, strict=True))
        return stats, self.trainee.norms_of(norms)


class PPOLearner(ActorCriticLearner[PPOConfig]):
    """An actor: prepares each round (advantages, minibatches, statistics), trains, then publishes the weights.

    Knows no framework; `_net` does the arithmetic (of `PPO.nets`).
    """

    saved = {"rng": "_rng"}

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
        rank: int = 0,
    ) -> None:
        super().__init__(computation.config_class.model_validate(config), spec, parameter_server, rank)
        network_seed, order_seed = seed_sequences(self.config.seed, "learner")
        backend = computation.backend(self.config, spec)
        self._net: TorchPPO = computation.net(backend, self.config, spec, network_seed)
        self.trainee = self._net.trainee
        self._rng = np.random.Generator(np.random.PCG64(order_seed))
        self.publish()

    def update(self, *batches: SampleBatch) -> UpdateReport:
        """One round: scale rewards, estimate advantages, `num_epochs` passes of minibatches, publish version + 1."""
        started = perf_counter()
        config = self.config
        batch = join_envs(batches)
        if self.acted_raw(batch):
            return self.only_measure(batches)
        advantages, returns = gae(
            self.rewards_of(batches),
            batch.values,
            batch.next_values,
            batch.terminated,
            batch.truncated,
            batch.valid,
            discount=config.discount,
            gae_lambda=config.gae_lambda,
        )
        columns = {
            "log_probs": batch.flat("log_probs"),
            "values": batch.flat("values"),
            "advantages": advantages.reshape(-1),
            "returns": returns.reshape(-1),
        }
        obs, valid = batch.flat_obs(), batch.flat("valid")
        network_obs = self._obs_statistics.normalize(obs)
        starts = episode_starts(batch).reshape(-1)
        self._net.load_round(network_obs, batch.flat("actions"), columns, batch.core_state, starts, valid)
        learning_rate = self.value(config.learning_rate)
        loss_arguments = {
            "clip_range": self.value(config.clip_range),
            "value_coef": config.value_coef,
            "entropy_coef": self.value(config.entropy_coef),
            "clip_value_loss": config.clip_value_loss,
        }
        prepared = perf_counter()
        metrics = self._train(batch, columns, learning_rate, loss_arguments)
        trained = perf_counter()

        # After the update: the log-probabilities in this batch came from the statistics of before.
        self._obs_statistics.update(obs, valid)
        self.env_steps += batch.env_steps
        self.publish_next()
        metrics |= {f"rollout/{name}": seconds for name, seconds in batch.timing.items()} | {
            "learner/explained_variance": explained_variance(batch.values[batch.valid], returns[batch.valid]),
            "learner/learning_rate": learning_rate,
            "learner/clip_range": loss_arguments["clip_range"],
            "learner/entropy_coef": loss_arguments["entropy_coef"],
            "learner/weights_version": self.version,
            "time/prepare_s": prepared - started,
            "time/train_s": trained - prepared,
            "time/publish_s": perf_counter() - trained,
        }
        return UpdateReport(batch.env_steps, batch.episodes, metrics)

    def _train(
        self,
        batch: SampleBatch,
        columns: Mapping[str, Array],
        learning_rate: float,
        loss_arguments: dict[str, Any],
    ) -> dict[str, float]:
        """`num_epochs` passes over the round; means of the statistics over all gradient steps."""
        config, valid = self.config, batch.flat("valid")
        trained: list[tuple[Any, Any]] = []
        epochs = 0
        for _ in range(config.num_epochs):
            first = len(trained)
            epochs += 1
            for indices in self._minibatches(batch):
                if config.normalize_advantages:
                    loss_arguments |= _advantage_moments(columns["advantages"], indices, valid)
                part, share = self.share_of(indices, valid)
                trained.append(self._net.train_minibatch(part, share, learning_rate, loss_arguments))
            if config.target_kl is not None:
                if self._means(trained[first:], columns)["learner/approx_kl"] > config.target_kl:
                    break
        return self._means(trained, columns) | {"learner/epochs": epochs}

    def _means(self, trained: Sequence[tuple[Any, Any]], columns: Mapping[str, Array]) -> dict[str, float]:
        """Of gradient steps whose norm was finite. Waits until they are made."""
        names = (*LOSS_STATS, "gradient_norm")
        if not trained:  # of an agent that had no turn
            nothing = dict.fromkeys((f"learner/{name}" for name in names), math.nan)
            return nothing | {"learner/skipped_minibatches": 0}
        stats, norms = self._net.read(trained)
        is_finite = np.isfinite(norms)
        if self.config.non_finite == "stop" and not is_finite.all():
            first_bad = stats[np.argmin(is_finite)].tolist()
            raise self.non_finite(dict(zip(LOSS_STATS, first_bad, strict=True)), columns)
        finite = np.column_stack([stats, norms])[is_finite].astype(np.float64)
        means = finite.mean(axis=0).tolist() if len(finite) else [math.nan] * len(names)
        return {f"learner/{name}": mean for name, mean in zip(names, means, strict=True)} | {
            "learner/skipped_minibatches": int(len(norms) - is_finite.sum())
        }

    def _minibatches(self, batch: SampleBatch) -> list[Array]:
        """One pass in random order: int64[M] rows, or with a core int64[T, M], the rows of M whole fragments."""
        num_steps, num_envs = batch.shape
        if batch.core_state.size == 0:
            order = batch.valid_rows()
            if not len(order):
                return []  # of an agent that had no turn
            num_minibatches = max(1, round(len(order) / self.config.minibatch_size))
            return np.array_split(self._rng.permutation(order), num_minibatches)
        envs = np.flatnonzero(batch.valid.any(axis=0))  # of several agents, some may have had no turn
        if not len(envs):
            return []
        num_minibatches = round(num_steps * len(envs) / self.config.minibatch_size)
        # Every learner needs a fragment of each.
        num_minibatches = max(1, min(num_minibatches, len(envs) // self.num_learners))
        rows = np.arange(num_steps)[:, None] * num_envs
        return [rows + part for part in np.array_split(self._rng.permutation(envs), num_minibatches)]


def _advantage_moments(advantages: Array, indices: Array, valid: Array) -> dict[str, float]:
    """What normalises the advantages of one minibatch (c7): over all its rows, whichever learner trains on them."""
    rows = indices.reshape(-1)
    chosen = advantages[rows[valid[rows]]] if indices.ndim == 2 else advantages[rows]
    if len(chosen) < 2:
        return {"advantage_mean": 0.0, "advantage_scale": 1.0}
    return {
        "advantage_mean": float(chosen.mean()),
        "advantage_scale": 1.0 / (float(chosen.std(ddof=1)) + 1e-8),
    }


class PPO(OnPolicy[PPOConfig]):
    """The ring, and `step()`, which turns it once.

    with PPO(PPOConfig(env="CartPole-v1", seed=1)) as ppo:
        while (result := ppo.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "ppo"
    config_class: type[PPOConfig] = PPOConfig
    learner_class = PPOLearner
    nets = {
        "torch": TorchPPO,
        "tf": "rlplat.algorithms.other_frameworks.ppo_tf:TfPPO",
        "numpy": "rlplat.algorithms.other_frameworks.ppo_numpy:NumpyPPO",
    }
    losses = ("loss",)

    def preflight(self) -> SpaceSpec | MultiAgentPlan:
        config, settings = self.config, self.config.model_dump()
        spaces = look_at_env(settings)
        require_learnable(config, policy_specs(settings, spaces), self.computation)
        num_envs = max(1, config.num_rollout_workers) * config.num_envs_per_worker
        if num_envs < config.learner.num_learners:
            raise ConfigError(
                f"learner.num_learners={config.learner.num_learners} learners cannot share {num_envs} environments: "
                "raise num_envs_per_worker, or lower it"
            )
        if config.overlap_sampling is True and config.deterministic:
            raise ConfigError(
                "overlap_sampling takes whatever weights are there, deterministic wants the same ones every time: set "
                "one of them to false"
            )
        return spaces

    def setup(self) -> None:
        """Parameter server, learners, rollout workers; returns when the first weights are published."""
        settings = self.config.model_dump()
        spaces = self.spaces = self.looked_at
        specs = policy_specs(settings, spaces)
        self._overlaps = settings["overlap_sampling"] = overlaps(self.config, specs)
        self.notes = (self.computation.note(self.config, specs),)
        if isinstance(spaces, MultiAgentPlan):  # such a ring for every policy
            rings = PolicyRings(spaces, settings, lambda _name, *its: self.learner_group(*its))
            self.learners = self.add(rings, saved_as="learner")
            self.workers = self.start_workers(rings.worker_maker(self.make_policy), len(spaces.trained))
        else:
            worker = spread(RolloutWorker, settings)
            self.learners = self.start_learners(settings, specs[0])
            self.workers = self.start_workers(lambda *place: worker.remote(settings, *place))
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One round: sample, update, publish."""
        self.require_open()
        batches = self.workers.sample(*self.learners.latest(), ahead=self._overlaps)
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())


def overlaps(config: PPOConfig, specs: Sequence[PolicySpec]) -> bool:
    """What `overlap_sampling` comes to on this cluster; specs: of the policies."""
    if config.overlap_sampling != "auto":
        return config.overlap_sampling
    learner = config.learner
    has_gpu = any(learner_gpus(learner.num_gpus, learner.device, spec) for spec in specs)
    return has_gpu and config.num_rollout_workers > 0 and not config.deterministic
