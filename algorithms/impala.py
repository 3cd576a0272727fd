"""IMPALA: asynchronous actors, one learner, V-trace (Espeholt et al. 2018, arXiv:1802.01561); and APPO.

    rollout workers ──SampleBatch[T, B] refs──▶ queue ──▶ learner ──weights, version + 1──▶ parameter server ──▶ workers

No worker waits for another or for an update: it rolls out `rollout_length` steps with the weights that are newest when
it begins. The learner takes rollouts as they arrive, `rollouts_per_update` at a time. What they were sampled with is
some versions old by then (staleness, the policy lag); V-trace corrects for it, with the log-probabilities of the
policy that acted. At most one update's worth of rollouts, and one of every worker, waits: then workers pause.

With `clip_range` the policy's loss is PPO's clipped surrogate on V-trace's advantages instead: asynchronous PPO
(`--algo appo`; Petrenko et al. 2020, arXiv:2006.11751). `num_epochs` > 1 trains on each batch several times.

Different from the paper:

- the loss is the mean over rows, not the sum; Adam by default;
- an episode that was cut off (time limit) bootstraps from its last observation, which the learner values as all others;
- a rollout more than `max_staleness` versions old is dropped; with `normalize_observations` also one from before there
  were statistics.

With `deterministic: true` the ring turns in rounds: one rollout of every worker, then the updates on them in the order
of the workers. Same seed, same curve, bit for bit; what differs is who waits (docs/impala.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.envs import check
from rlplat.rl.interfaces import Array, Obs, Result, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import ActorCriticLearner
from rlplat.rl.learning.queue_ring import QueueRing
from rlplat.rl.obs_tree import obs_rows
from rlplat.rl.policies.framework_check import require_torch
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.run.algorithm import OnPolicy, require_learnable
from rlplat.rl.sampling.returns import explained_variance, vtrace
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts, join_envs
from rlplat.rl.schedules import ClipRange, EntropyCoef
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.spread import spread
from rlplat.rl.unused_settings import Unused
from rlplat.section import Coefficient, Count, CountOrZero, Epsilon, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import ImpalaSettings


class ImpalaConfig(AlgorithmConfig):
    """IMPALA's settings. Rollout length, discount, value and entropy coefficient are the paper's for Atari; the rest
    suits small environments. For Atari: configs/impala/Pong-published.yaml."""

    unused = {
        "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("there is one learner", is_error=True),
    }
    fixed_on_resume = (*AlgorithmConfig.fixed_on_resume, "optimizer")

    num_rollout_workers: int = Field(default=2, ge=0, le=10_000)
    """Processes that roll out; 0: everything in this process."""
    rollout_length: Count = 20
    """n: steps of every environment per rollout."""
    rollouts_per_update: Count = 1
    """Rollouts in a batch; each brings num_envs_per_worker trajectories (the paper's batch size is 32 of them)."""
    num_epochs: Count = 1
    """Gradient steps on each batch."""
    max_staleness: CountOrZero = 100
    """A rollout by weights more than this many versions old is dropped."""
    updates_per_report: Count = 20
    """Updates in a step, which is one line of metrics."""

    rho_bar: Norm = 1.0
    """Bound of the importance weight of an error (and of the policy's gradient): which policy's value is learnt."""
    c_bar: Norm = 1.0
    """Bound of the importance weights along a trace: how fast it is learnt."""
    trace_lambda: Share = 1.0
    """lambda of remark 2: less than 1 trusts the critic more, as in generalised advantage estimation."""
    clip_range: ClipRange | None = None
    """Of the probability ratio, as in PPO (asynchronous PPO); null: the policy gradient of the paper."""

    value_coef: Coefficient = 0.5
    """Weight of the value loss, which is half the mean squared error."""
    entropy_coef: EntropyCoef = 0.01
    """Weight of the entropy bonus."""
    max_gradient_norm: Norm | None = 0.5
    """Gradients are scaled down to this global norm; null: they are not."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """The paper's is RMSProp."""
    optimizer_epsilon: Epsilon = 1e-5
    """Adam's, or RMSProp's."""
    rmsprop_decay: float = Field(default=0.99, ge=0.0, lt=1.0)
    """alpha of RMSProp."""
    epsilon_inside_root: bool = False
    """RMSProp divides by sqrt(g) + epsilon (PyTorch); true: by sqrt(g + epsilon) (TensorFlow, the paper)."""

    clip_rewards: bool = False
    """Learn from the sign of rewards (Atari); metrics stay raw."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, clip to +-10."""
    normalize_observations: bool = False
    """Subtract the running mean, divide by the running deviation, clip to +-10."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[ImpalaSettings]) -> None: ...


LOSS_STATS = ("policy_loss", "value_loss", "entropy", "rho_clipped", "clip_fraction")


def impala_loss(
    log_probs: Tensor,
    entropies: Tensor,
    values: Tensor,
    columns: Mapping[str, Tensor],
    *,
    rho_bar: float,
    clip_range: float | None,
    value_coef: float,
    entropy_coef: float,
) -> tuple[Tensor, Tensor]:
    """The loss whose gradient is that of section 4.2 (signs turned): (loss, stats float32[5]).

        ratio       = pi(a|x) / mu(a|x)
        policy_loss = -mean(rho * A * log pi(a|x))                                 without clip_range; rho is a constant
                      -mean(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A))                  with one
        value_loss  = mean((V - v)^2) / 2
        loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)

    log_probs, entropies, values: float32[M] of the network being trained; columns: float32[M], log_probs (of mu), and
    advantages (A), targets (v), rhos of `vtrace`. Stats are in the order of LOSS_STATS; the last two: shares of rows.
    """
    import torch

    advantages = columns["advantages"]
    ratios = (log_probs - columns["log_probs"]).exp()
    clip_fraction = torch.zeros_like(advantages)
    if clip_range is None:
        policy_loss = -(columns["rhos"] * advantages * log_probs).mean()
    else:
        clipped = ratios.clamp(1.0 - clip_range, 1.0 + clip_range)
        policy_loss = -torch.min(ratios * advantages, clipped * advantages).mean()
        clip_fraction = ((ratios - 1.0).abs() > clip_range).float()
    value_loss = 0.5 * (values - columns["targets"]).square().mean()
    entropy = entropies.mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    rho_clipped = (ratios > 1.001 * rho_bar).float()  # acting and learning round differently
    stats = [policy_loss, value_loss, entropy, rho_clipped.mean(), clip_fraction.mean()]
    return loss, torch.stack(stats).detach()


class ImpalaWorker(RolloutWorker):
    """An actor: its rollout stays where it is until the learner takes it; the driver hears that it is there. All values
    are the learner's, of the observations after the last row too."""

    def __init__(self, config: dict[str, Any], worker_index: int, incarnation: int) -> None:
        super().__init__(config, worker_index, incarnation, record="samples_and_ends")

    def sample(self, latest: tuple[int, Weights]) -> tuple[SampleBatch, None]:
        return super().sample(latest), None


class BootstrapObs:
    """The observations of a batch that follow its rows: after the last one, and of episodes that were cut off. With the
    T rows they go through the network that learns, as the T + 1 of the paper."""

    def __init__(
        self, learner: ImpalaLearner, batch: SampleBatch, obs: Obs, normalize: Callable[[Obs], Obs]
    ) -> None:
        """obs: [T*B, ...], normalised."""
        from rlplat.rl.torch.tensor_rows import tensor_on

        self._network = learner.trainee.network
        assert batch.last_obs is not None, "rollouts of a worker that records samples_and_ends"
        self._last = learner.inputs(normalize(batch.last_obs))
        self._has_core = batch.core_state.size > 0
        (T, B), self._cut_rows = batch.shape, batch.cut_rows
        if batch.cut_rows is None or batch.final_obs is None:
            return
        final = normalize(batch.final_obs)
        if not self._has_core:
            self._final: tuple[Any, Tensor | None, Tensor | None] = learner.inputs(final), None, None
            return
        # A core needs what came before: each cut-off episode's column once more, its last observation after the cut.
        t, b = np.divmod(batch.cut_rows, B)
        K = np.arange(len(t))
        self._places = (t + 1) * len(K) + K
        starts = np.concatenate([episode_starts(batch)[:, b], np.zeros((1, len(K)), np.bool_)])
        starts[t + 1, K] = False

        def column(leaf: Array, last: Array) -> Array:
            rows = leaf.reshape(T, B, *leaf.shape[1:])[:, b]
            rows = np.concatenate([rows, rows[:1]])
            rows[t + 1, K] = last
            return rows.reshape(-1, *leaf.shape[1:])

        columns = (
            {path: column(leaf, final[path]) for path, leaf in obs.items()}
            if isinstance(obs, dict) and isinstance(final, dict)
            else column(np.asarray(obs), np.asarray(final))
        )
        tensor = partial(tensor_on, learner.trainee.device)
        self._final = learner.inputs(columns), tensor(batch.core_state[b]), tensor(starts)

    def next_values(self, values: Tensor, last_state: Tensor) -> Array:
        """float32[T, B]: V of what followed each row, by the network as it is. values: float32[T*B] of the rows;
        last_state: the core's after them."""
        import torch

        with torch.no_grad():
            last = self._network(self._last, last_state if self._has_core else None)[1]
            following = torch.cat([values[len(last) :], last]).cpu().numpy()
            if self._cut_rows is not None:
                cut = self._network(*self._final)[1].cpu().numpy()
                following[self._cut_rows] = cut[self._places] if self._has_core else cut
        return following.reshape(-1, len(last))


class ImpalaLearner(ActorCriticLearner[ImpalaConfig]):
    """An actor: `num_epochs` gradient steps on whatever rollouts it is given, then publishes the weights."""

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
    ) -> None:
        from rlplat.rl.torch.trainee import actor_critic_trainee

        super().__init__(computation.config_class.model_validate(config), spec, parameter_server)
        computation.replace_losses(self)
        network_seed, _ = seed_sequences(self.config.seed, "learner")
        optimizer = partial(make_optimizer, self.config)
        self.trainee = actor_critic_trainee(self.config, spec, network_seed, optimizer=optimizer)
        self._spec = spec
        self.publish()

    def loss(
        self,
        log_probs: Tensor,
        entropies: Tensor,
        values: Tensor,
        columns: Mapping[str, Tensor],
        **arguments: Any,
    ) -> tuple[Tensor, Tensor]:
        """`impala_loss`; a subclass may write another, with `self.trainee.network` and `self.config` at hand."""
        return impala_loss(log_probs, entropies, values, columns, **arguments)

    def update(self, *rollouts: SampleBatch) -> UpdateReport:
        """Drop what is too old, train on the rest, publish version + 1."""
        started, bound = perf_counter(), self.config.max_staleness
        ages = {id(rollout): self.version - rollout.weights_version for rollout in rollouts}
        kept = [rollout for rollout in rollouts if ages[id(rollout)] <= bound and not self.acted_raw(rollout)]
        for rollout in filter(self.acted_raw, rollouts):
            self._obs_statistics.update(rollout.flat_obs(), rollout.flat("valid"))
        metrics: dict[str, float] = self._train(kept) if kept else {}
        trained = perf_counter()
        self.publish_next()
        env_steps = sum(rollout.env_steps for rollout in rollouts)
        self.env_steps += env_steps
        for name in rollouts[0].timing:
            metrics[f"rollout/{name}"] = float(np.mean([rollout.timing[name] for rollout in rollouts]))
        sample_s = sum(rollout.timing["sample_s"] for rollout in rollouts)
        metrics |= {
            "learner/staleness_mean": float(np.mean(list(ages.values()))),
            "learner/staleness_max": max(ages.values()),
            "learner/dropped_rollouts": len(rollouts) - len(kept),
            "learner/weights_version": self.version,
            "time/worker_busy_s": sample_s / max(1, self.config.num_rollout_workers),
            "time/train_s": trained - started,
            "time/learner_busy_s": perf_counter() - started,
        }
        return UpdateReport(env_steps, [e for rollout in rollouts for e in rollout.episodes], metrics)

    def _train(self, rollouts: Sequence[SampleBatch]) -> dict[str, float]:
        """`num_epochs` gradient steps; means of the statistics over them."""
        from rlplat.rl.torch.tensor_rows import TensorRows, tensor_on

        config, batch = self.config, join_envs(rollouts)
        tensor = partial(tensor_on, self.trainee.device)
        rewards, raw_obs, valid = self.rewards_of(rollouts), batch.flat_obs(), tensor(batch.valid_rows())
        behaviour, obs = {"log_probs": batch.flat("log_probs")}, self._obs_statistics.normalize(raw_obs)
        rows = TensorRows(self._spec, obs, batch.flat("actions"), behaviour, self.trainee.device)
        inputs, actions, _ = rows.take(np.arange(rewards.size))
        state = tensor(batch.core_state) if batch.core_state.size else None
        starts = tensor(episode_starts(batch))
        ends = BootstrapObs(self, batch, obs, self._obs_statistics.normalize)
        learning_rate = self.value(config.learning_rate)
        loss_arguments: dict[str, Any] = {
            "rho_bar": config.rho_bar,
            "clip_range": None if config.clip_range is None else self.value(config.clip_range),
            "value_coef": config.value_coef,
            "entropy_coef": self.value(config.entropy_coef),
        }
        trained: list[list[float]] = []
        explained = math.nan
        for _ in range(config.num_epochs):
            distribution, values, last_state = self.trainee.network(inputs, state, starts)
            log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
            next_values = ends.next_values(values, last_state)
            targets = self._targets(batch, rewards, log_probs, values, next_values)
            columns = {name: tensor(each.reshape(-1)) for name, each in (behaviour | targets).items()}
            loss, stats = self.loss(
                log_probs[valid],
                entropies[valid],
                values[valid],
                {name: column[valid] for name, column in columns.items()},
                **loss_arguments,
            )
            norm = self.trainee.descend(loss, learning_rate)
            if math.isfinite(norm):
                if not trained:  # what the critic knew of rows that it had not been trained on
                    critic = values.detach().cpu().numpy().reshape(batch.shape)
                    explained = explained_variance(critic[batch.valid], targets["targets"][batch.valid])
                trained.append([*stats.tolist(), norm])
            elif config.non_finite == "stop":
                raise self.non_finite(
                    dict(zip(LOSS_STATS, stats.tolist(), strict=True)), {"obs": raw_obs, **targets}
                )
        self._obs_statistics.update(raw_obs, batch.flat("valid"))
        names = (*LOSS_STATS, "gradient_norm")
        means = np.mean(trained, axis=0).tolist() if trained else [math.nan] * len(names)
        metrics = {f"learner/{name}": mean for name, mean in zip(names, means, strict=True)}
        if math.isfinite(explained):  # not where all targets are equal
            metrics["learner/explained_variance"] = explained
        return metrics | {
            "learner/learning_rate": learning_rate,
            "learner/skipped_minibatches": config.num_epochs - len(trained),
        }

    def inputs(self, obs: Obs) -> Any:
        """[N, ...], normalised, as the network takes them."""
        from rlplat.rl.torch.tensor_rows import TensorRows

        rows = np.arange(obs_rows(obs))
        return TensorRows(self._spec, obs, rows, {}, self.trainee.device).take(rows)[0]

    def _targets(
        self, batch: SampleBatch, rewards: Array, log_probs: Tensor, values: Tensor, next_values: Array
    ) -> dict[str, Array]:
        """The fields of `VTrace`. log_probs, values: float32[T*B], next_values: float32[T, B], of the network as it is;
        rewards: float32[T, B]."""
        own_log_probs, own_values = (
            each.detach().cpu().numpy().reshape(batch.shape) for each in (log_probs, values)
        )
        found = vtrace(
            own_log_probs - batch.log_probs,
            rewards,
            own_values,
            next_values,
            batch.terminated,
            batch.truncated,
            batch.valid,
            discount=self.config.discount,
            rho_bar=self.config.rho_bar,
            c_bar=self.config.c_bar,
            trace_lambda=self.config.trace_lambda,
        )
        return {"targets": found.targets, "advantages": found.advantages, "rhos": found.rhos}


class Impala(OnPolicy[ImpalaConfig]):
    """The ring, and `step()`, which keeps it turning.

    with Impala(ImpalaConfig(env="CartPole-v1", seed=1)) as impala:
        while (result := impala.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name = "impala"
    config_class: type[ImpalaConfig] = ImpalaConfig
    learner_class = ImpalaLearner
    losses = ("loss",)
    spaces: SpaceSpec

    def preflight(self) -> SpaceSpec:
        return preflight(self.config)

    def setup(self) -> None:
        """Parameter server, learner, rollout workers; returns when the first weights are published."""
        config, settings = self.config, self.config.model_dump()
        self.spaces = self.looked_at
        spec = policy_spec(settings["policy"], self.spaces)
        worker = spread(ImpalaWorker, settings)
        group = self.learners = self.start_learners(settings, spec)
        self.workers = self.start_workers(lambda *place: worker.remote(settings, *place), num_batches=2)
        ring = QueueRing(
            group,
            self.workers,
            self.tally,
            batch_size=config.rollouts_per_update,
            in_rounds=config.deterministic,
        )
        self.ring = self.add(ring)
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """`updates_per_report` updates; the ring goes on turning meanwhile."""
        self.require_open()
        return self.tally.result(self.ring.turn(self.config.updates_per_report))

    @property
    def not_saved(self) -> tuple[str, ...]:
        waiting = "rollouts that wait for the learner (with deterministic: true there are none)"
        return (*super().not_saved, *([] if self.config.deterministic else [waiting]))

    def get_state(self) -> dict[str, Any]:
        """Waits for the rollouts and updates that are running."""
        self.require_open()
        self.ring.finish()
        return super().get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.ring.reset()


def make_optimizer(config: ImpalaConfig, network: Any) -> Any:
    """network: the torch module whose parameters it changes."""
    from rlplat.rl.torch.optimizers import Adam, RMSProp

    if config.optimizer == "adam":
        return Adam(network, epsilon=config.optimizer_epsilon)
    return RMSProp(
        network,
        decay=config.rmsprop_decay,
        epsilon=config.optimizer_epsilon,
        epsilon_inside_root=config.epsilon_inside_root,
    )


def preflight(config: ImpalaConfig) -> SpaceSpec:
    """In the driver, before any actor starts: the environment is sound, and a policy for its spaces can be built."""
    require_torch(config.framework, Impala.name)
    spaces = check.preflight(config)
    require_learnable(config, [policy_spec(config.policy.model_dump(), spaces)])
    return spaces
