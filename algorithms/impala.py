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

What happens before and after this file, in rlplat/rl:

    run/training_loop.py         calls `step` until the run is over: metrics, evaluations, checkpoints
    run/algorithm.py             starts the actors, and ends them
    sampling/rollout_worker.py   acts, steps environments and records: a `SampleBatch`
    learning/queue_ring.py       the queue: who is asked for the next rollout, and when the learner gets some
    learning/learner.py          joins batches, scales rewards, normalises observations; publishes the weights
    sampling/returns.py          `vtrace`
    torch/on_policy.py           a `Minibatch` on the device, and the values of what followed; calls the loss
    torch/trainee.py             gradients, clipping, the optimizer's step
    learning/parameter_server.py the newest weights, for rollout workers and evaluations

With `deterministic: true` the ring turns in rounds: one rollout of every worker, then the updates on them in the order
of the workers. Same seed, same curve, bit for bit; what differs is who waits (docs/impala.md).
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.algorithm_config import RMSPropConfig
from rlplat.rl.interfaces import Result, UpdateReport
from rlplat.rl.learning.learner import OnPolicyLearner
from rlplat.rl.learning.queue_ring import QueueRing
from rlplat.rl.run.algorithm import OnPolicy
from rlplat.rl.sampling.returns import explained_variance, vtrace
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.schedules import ClipRange, EntropyCoef
from rlplat.rl.torch.on_policy import ActorCriticNet
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, CountOrZero, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.interfaces import Weights
    from rlplat.rl.policies.spec import PolicySpec
    from rlplat.rl.run.typed_settings import ImpalaSettings
    from rlplat.rl.sampling.sample_batch import SampleBatch
    from rlplat.rl.torch.on_policy import Unroll


class ImpalaConfig(RMSPropConfig):
    """IMPALA's settings. Rollout length, discount, value and entropy coefficient are the paper's for Atari; the rest
    suits small environments. For Atari: configs/impala/Pong-published.yaml."""

    unused = {
        "learner.backend": Unused("the learner computes with torch", is_error=True, harmless=("torch",)),
        "learner.num_learners": Unused("there is one learner", is_error=True),
    }

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
    entropy_coef: EntropyCoef = 0.01
    """Weight of the entropy bonus."""
    optimizer: Literal["rmsprop", "adam"] = "adam"
    """The paper's is RMSProp."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[ImpalaSettings]) -> None: ...


def impala_loss(network: Any, minibatch: Unroll, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss whose gradient is that of section 4.2 (signs turned): (loss, numbers about it).

    v, A, rho   = V-trace of the rollouts (section 4.1): constants
    ratio       = pi(a|x) / mu(a|x)
    policy_loss = -mean(rho * A * log pi(a|x))                                              without clip_range
                  -mean(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A))    with one
    value_loss  = mean((V - v)^2) / 2
    loss        = policy_loss + value_coef * value_loss - entropy_coef * mean(entropy)
    """
    import torch

    log_probs, entropies, values, next_values = minibatch.unroll(network)
    host, batch = minibatch.host, minibatch.rollout.batch
    own = {"values": host(values), "next_values": host(next_values)}
    found = vtrace(
        host(log_probs) - batch.log_probs,
        **(minibatch.rollout.steps | own),
        discount=config.discount,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        trace_lambda=config.trace_lambda,
    )
    known = explained_variance(host(values)[batch.valid], found.targets[batch.valid])
    targets, advantages, rhos = (minibatch.rows(each) for each in found)
    log_probs, entropies, values = (minibatch.rows(each) for each in (log_probs, entropies, values))

    ratios, epsilon = (log_probs - minibatch.log_probs).exp(), config.clip_range
    clip_fraction = torch.zeros_like(advantages)
    if epsilon is None:
        policy_loss = -(rhos * advantages * log_probs).mean()
    else:
        clipped = ratios.clamp(1.0 - epsilon, 1.0 + epsilon)
        policy_loss = -torch.min(ratios * advantages, clipped * advantages).mean()
        clip_fraction = ((ratios - 1.0).abs() > epsilon).float()
    value_loss = 0.5 * (values - targets).square().mean()
    entropy = entropies.mean()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "rho_clipped": (ratios > 1.001 * config.rho_bar).float().mean(),  # they round differently
        "clip_fraction": clip_fraction.mean(),
        "explained_variance": torch.tensor(known, device=loss.device),
    }


class TorchImpala(ActorCriticNet):
    """Network and optimizer on torch."""

    def __init__(self, config: ImpalaConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        from rlplat.rl.torch.optimizers import optimizer_of

        super().__init__(config, spec, seed, optimizer=partial(optimizer_of, config))

    def loss(self, network: Any, minibatch: Unroll, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return impala_loss(network, minibatch, config)


class ImpalaWorker(RolloutWorker):
    """An actor: its rollout stays where it is until the learner takes it; the driver hears that it is there. All values
    are the learner's, of the observations after the last row too."""

    def __init__(self, config: dict[str, Any], worker_index: int, incarnation: int) -> None:
        super().__init__(config, worker_index, incarnation, record="samples_and_ends")

    def sample(self, latest: tuple[int, Weights]) -> tuple[SampleBatch, None]:
        return super().sample(latest), None


class ImpalaLearner(OnPolicyLearner[ImpalaConfig]):
    """An actor: `num_epochs` gradient steps on whatever rollouts it is given, then publishes the weights."""

    def update(self, *rollouts: SampleBatch) -> UpdateReport:
        """Drop what is too old, train on the rest, publish version + 1."""
        started, config = perf_counter(), self.settings_now()
        ages = [self.version - each.weights_version for each in rollouts]
        raw = [each for each in rollouts if each.weights_version < self.first_measured]
        oldest = max(self.version - config.max_staleness, self.first_measured)
        kept = [each for each in rollouts if each.weights_version >= oldest]
        metrics: dict[str, float] = {}
        if kept:
            rollout = self.rollout_of(kept)
            self.net.load(rollout)
            trained = [self.net.train(rollout.whole(), config) for _ in range(config.num_epochs)]
            metrics = self.means(trained, rollout)
            if "learner/explained_variance" in metrics:  # of rows that the critic had not been trained on
                metrics["learner/explained_variance"] = self.net.read(trained[:1])[0]["explained_variance"]
        for each in [rollout.batch, *raw] if kept else raw:
            self._obs_statistics.update(each.flat_obs(), each.flat("valid"))
        trained_s = perf_counter() - started
        self.publish_next()
        env_steps = sum(each.env_steps for each in rollouts)
        self.env_steps += env_steps
        timing = {name: [each.timing[name] for each in rollouts] for name in rollouts[0].timing}
        metrics |= {f"rollout/{name}": float(np.mean(each)) for name, each in timing.items()}
        metrics |= {
            "learner/staleness_mean": float(np.mean(ages)),
            "learner/staleness_max": max(ages),
            "learner/dropped_rollouts": len(rollouts) - len(kept),
            "learner/weights_version": self.version,
            "time/worker_busy_s": sum(timing["sample_s"]) / max(1, config.num_rollout_workers),
            "time/train_s": trained_s,
            "time/learner_busy_s": perf_counter() - started,
        }
        return UpdateReport(env_steps, [e for each in rollouts for e in each.episodes], metrics)


class Impala(OnPolicy[ImpalaConfig]):
    """The ring, and `step()`, which keeps it turning."""

    name = "impala"
    config_class: type[ImpalaConfig] = ImpalaConfig
    learner_class = ImpalaLearner
    nets = {"torch": TorchImpala}
    losses = ("loss",)

    def setup(self) -> None:
        """Parameter server, learner, rollout workers; returns when the first weights are published."""
        self.learners = self.start_policies()
        self.workers = self.start_rollout_workers(ImpalaWorker, num_batches=2)
        size, in_rounds = self.config.rollouts_per_update, self.config.deterministic
        ring = QueueRing(self.learners, self.workers, self.tally, batch_size=size, in_rounds=in_rounds)
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
