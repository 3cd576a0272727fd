"""TQC, truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269), on SAC's learner: off-policy learning of
bounded continuous actions.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

SAC's critics overestimate: their noise is what the actor climbs. SAC takes the smaller of two values against that, all
or nothing. Here each of K critics gives M quantiles of the distribution of returns; the target's KM quantiles are one
mixture, of which the d K largest are left out. How much is left out is a setting, and finer the more quantiles there
are. Each gradient step trains, on one minibatch from the replay:

    critics   sum_k 1/(M T) sum_m sum_i rho_m(y_i - theta_k,m(s, a)),  T = (M - d) K,
              y_i = R + discount * (z_(i) - alpha * log pi(a'|s')),  a' ~ pi(.|s'),
              z_(1) <= ... <= z_(T) <= ... <= z_(KM) the target critics' quantiles at (s', a'), sorted together
              rho_m(u) = |tau_m - 1{u < 0}| huber(u),  tau_m = (2 m - 1) / (2 M)
    actor     alpha * log pi(a|s) - 1/(K M) sum_k sum_m theta_k,m(s, a),  a ~ pi(.|s)           nothing left out here
    alpha     -log alpha * (log pi(a|s) + target_entropy)
    targets   theta_target = (1 - tau) * theta_target + tau * theta

Everything else is SAC's (algorithms/sac.py), whose `train` this is too: the lines of the paper's Algorithm 1, but for
their order. The networks are torch/continuous_control.py's, `Critics`.

Different from the paper:

- two critics of SAC's size, as Stable-Baselines3's contrib has them; the paper's five of [512, 512, 512]:
  num_critics=5 policy.critic_hidden_sizes=[512,512,512];
- its Algorithm 1 begins a gradient step with alpha, SAC's ends with it;
- what differs between SAC's file and its paper, differs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from pydantic import Field, model_validator

from rlplat.algorithms.dqn import quantile_huber_losses
from rlplat.algorithms.sac import GAUSSIAN, SAC, SACConfig, SACLearner
from rlplat.section import CountOrZero

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import TQCSettings
    from rlplat.rl.torch.continuous_control import ActorAndCritics


class TQCConfig(SACConfig):
    """TQC's settings: SAC's, and these."""

    fixed_on_resume = (*SACConfig.fixed_on_resume, "num_critics", "num_quantiles")

    num_critics: int = Field(default=2, ge=1, le=10)
    """K: critics, each trained on the same targets."""
    num_quantiles: int = Field(default=25, ge=2, le=1000)
    """M: quantiles that each of them gives."""
    dropped_quantiles: CountOrZero = 2
    """d: for each critic, how many of the largest quantiles of all are left out of the targets; more: less
    overestimation."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[TQCSettings]) -> None: ...

    @model_validator(mode="after")
    def _check_dropped(self) -> Self:
        if self.dropped_quantiles >= self.num_quantiles:
            raise ValueError(
                f"dropped_quantiles={self.dropped_quantiles} leaves nothing of num_quantiles={self.num_quantiles}: "
                "lower it"
            )
        return self


def truncated_targets(
    returns: Tensor,
    discounts: Tensor,
    next_quantiles: Tensor,
    next_log_probs: Tensor,
    alpha: float,
    *,
    dropped_quantiles: int,
) -> Tensor:
    """float32[N, T]: y_i = R + discount * (z_(i) - alpha * log pi(a'|s')), the T = (M - d) K smallest. next_quantiles:
    float32[K, N, M], of the target networks; returns (of n steps), discounts (0 where terminated), next_log_probs:
    float32[N]."""
    K, _, M = next_quantiles.shape
    mixture = next_quantiles.transpose(0, 1).flatten(1).sort(dim=1).values
    kept = mixture[:, : (M - dropped_quantiles) * K]
    return returns[:, None] + discounts[:, None] * (kept - alpha * next_log_probs[:, None])


def quantile_loss(quantiles: Tensor, targets: Tensor) -> Tensor:
    """sum_k mean 1/(M T) sum_m sum_i rho_m(y_i - theta_k,m). quantiles: float32[K, N, M]; targets: float32[N, T],
    constants."""
    K, N, M = quantiles.shape
    losses = quantile_huber_losses(quantiles.flatten(0, 1), targets.repeat(K, 1))  # sums over m, means over i
    return losses.sum() / (N * M)


def actor_loss(quantiles: Tensor, log_probs: Tensor, alpha: float) -> Tensor:
    """mean (alpha * log pi(a|s) - 1/(K M) sum theta_k,m(s, a)). quantiles: float32[K, N, M], of actions that have
    gradients; log_probs: float32[N]."""
    return (alpha * log_probs - quantiles.mean(dim=(0, 2))).mean()


class TQCLearner(SACLearner):
    """An actor: SAC's, with these networks and losses."""

    config: TQCConfig

    def networks(self) -> ActorAndCritics:
        from rlplat.rl.torch.continuous_control import ActorAndCritics

        K, M = self.config.num_critics, self.config.num_quantiles
        return ActorAndCritics(self.config, self.spec, GAUSSIAN, self.network_seed, num_critics=K, num_quantiles=M)

    # What `SACLearner.train` calls; a subclass may write others.

    def soft_targets(self, *columns: Any) -> Tensor:
        return truncated_targets(*columns, dropped_quantiles=self.config.dropped_quantiles)

    def critic_loss(self, q: Tensor, targets: Tensor) -> Tensor:
        return quantile_loss(q, targets)

    def actor_loss(self, *columns: Any) -> Tensor:
        return actor_loss(*columns)


class TQC(SAC):
    """SAC's ring, with another learner.

    with TQC(TQCConfig(env="Pendulum-v1", seed=1)) as tqc:
        while (result := tqc.step()).env_steps < 10_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "tqc", TQCConfig, TQCLearner
