"""CrossQ (Bhatt et al. 2024, arXiv:1902.05605), on SAC's learner: SAC without target networks, with batch
normalisation; as sample-efficient as algorithms that make twenty gradient steps per env step, with one.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

Batch normalisation makes critics learn faster, and makes SAC fail: recorded actions and the policy's have other
distributions, so that critics normalised by the ones are wrong about the others. Here both go through the critics in
one minibatch, whose statistics are those of the mixture:

    [Q_i(s, a); Q_i(s', a')] = critic_i([s; s'], [a; a']),  a' ~ pi(.|s')

and the next values are good enough for targets as they are. Critics and actor renormalise (torch/batch_renorm.py, as
the authors' code) before their first layer and after every activation. Each gradient step trains the critics, on one
minibatch from the replay; every `policy_delay`-th step also the actor and alpha:

    critics   sum_i (Q_i(s, a) - y)^2 / 2,  y = R + discount * (min_i Q_i(s', a') - alpha * log pi(a'|s'))
    actor     alpha * log pi(a|s) - min_i Q_i(s, a),  a ~ pi(.|s)                     critics by running statistics
    alpha     -log alpha * (log pi(a|s) + target_entropy)

Acting normalises by running statistics, which makes every normalisation affine: policies/bounded_actor.py takes them
into the weights. Everything else is SAC's (algorithms/sac.py). Different from the paper:

- renormalisation is that of the authors' code, in the actor too: nothing of it until `renorm_warmup`, then all at once;
- what differs between SAC's file and its paper, differs here.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import Field

from rlplat.algorithms.sac import SAC, SACConfig, SACLearner
from rlplat.rl.algorithm_config import Width
from rlplat.rl.off_policy.learner import ContinuousConfig, ContinuousPolicyConfig
from rlplat.rl.off_policy.ring import bounded_actor
from rlplat.rl.policies.bounded_actor import ActorSpec, Renorm
from rlplat.rl.schedules import LearningRate
from rlplat.rl.unused_settings import Unused
from rlplat.section import MANY, Count, CountOrZero

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import CrossQSettings
    from rlplat.rl.torch.continuous_control import ActorAndCritics, Critics, Transitions


class WideCriticsConfig(ContinuousPolicyConfig):
    """The networks of the actor and of each critic."""

    critic_hidden_sizes: list[Width] | None = Field(default=[2048, 2048], min_length=1)
    """Widths of the critics' layers; null: as hidden_sizes."""


class CrossQConfig(SACConfig):
    """CrossQ's settings: SAC's, and these. The defaults are those of the paper."""

    unused = {
        **SACConfig.unused,
        "target_tau": Unused("there are no target networks", is_error=True),
        "policy.layer_norm": Unused("batch renormalisation is in its place", is_error=True),
        "policy.use_sde": ContinuousConfig.unused["policy.use_sde"],
    }

    policy: WideCriticsConfig = Field(default_factory=WideCriticsConfig)
    learning_rate: LearningRate = 1e-3
    """Adam's step size."""
    learning_starts: Count = 5_000
    """Env steps before the first gradient step, with actions drawn uniformly between the bounds."""
    batch_size: int = Field(default=256, ge=2, le=MANY)
    """Transitions per gradient step; one alone has no statistics."""
    adam_beta1: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Adam's beta_1, of actor and critics: momentum."""
    policy_delay: Count = 3
    """Gradient steps of the critics for one of the actor and of alpha."""
    renorm_momentum: float = Field(default=0.01, gt=0.0, le=1.0)
    """What running statistics take over of those of a minibatch: 1 minus what the paper calls momentum."""
    renorm_warmup: CountOrZero = 100_000
    """Minibatches of a network that are normalised by their own statistics alone."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[CrossQSettings]) -> None: ...


def joint_values(critics: Critics, batch: Transitions, next_actions: Tensor) -> tuple[Tensor, Tensor]:
    """(Q_i(s, a), Q_i(s', a')), float32[2, N] each, the latter as constants: from one minibatch of 2 N rows."""
    import torch

    critics.train()
    features = torch.cat([batch.features, batch.next_features])
    q, next_q = critics(features, torch.cat([batch.actions, next_actions])).chunk(2, dim=1)
    critics.eval()
    return q, next_q.detach()


class CrossQLearner(SACLearner):
    """An actor: SAC's, with this gradient step. Networks normalise by running statistics wherever none is said to be in
    training."""

    config: CrossQConfig

    def networks(self) -> ActorAndCritics:
        from rlplat.rl.torch.continuous_control import ActorAndCritics

        renorm = Renorm(self.config.renorm_momentum, self.config.renorm_warmup)
        actor = ActorSpec("squashed_gaussian", renorm=renorm)
        nets = ActorAndCritics(self.config, self.spec, actor, self.network_seed, has_targets=False)
        nets.actor.eval()
        nets.critics.eval()
        return nets

    def train(self, batch: Transitions) -> dict[str, float]:
        """One gradient step of the critics, and where it is due, of actor and alpha -> its figures."""
        import torch

        from rlplat.rl.torch.continuous_control import squashed_sample

        nets, alpha, learning_rate = self.trainee, self.alpha.value, self.value(self.config.learning_rate)

        # a' ~ pi_phi(.|s');  q, q' = Q_theta([s; s'], [a; a'])
        with torch.no_grad():
            outputs = nets.actor(batch.next_features)
            next_actions, next_log_probs = squashed_sample(outputs, nets.noise(batch.actions))
        q, next_q = joint_values(nets.critics, batch, next_actions)

        # theta <- theta - eta grad sum_i (q_i - (r + gamma min_i sg(q'_i) - gamma alpha log pi(a'|s')))^2
        targets = self.soft_targets(batch.returns, batch.discounts, next_q, next_log_probs, alpha)
        loss, figures = self.critic_objective(batch, q, targets)
        norm = nets.descend_critics(loss, self.critic_learning_rate)
        figures |= {"q_mean": float(q.detach().mean()), "gradient_norm": norm}

        # if t mod policy_delay
        if not math.isfinite(norm) or (self.updates + 1) % self.config.policy_delay:
            return figures

        # phi <- phi - eta grad (alpha log pi(a|s) - min_i Q_theta_i(s, a))
        features = batch.features.detach()
        nets.actor.train()
        actions, log_probs = squashed_sample(nets.actor(features), nets.noise(batch.actions))
        nets.actor.eval()
        loss = self.actor_loss(nets.critics(features, actions), log_probs, alpha)
        actor_norm = nets.descend_actor(loss, learning_rate)

        # alpha <- alpha - eta grad J(alpha)
        mean_log_prob = float(log_probs.detach().mean())
        if math.isfinite(actor_norm):
            self.alpha.descend(mean_log_prob, learning_rate)
        return figures | {
            "actor_loss": float(loss.detach()),
            "gradient_norm": math.hypot(norm, actor_norm),
            "entropy": -mean_log_prob,
            "entropy_coef": alpha,
        }


class CrossQ(SAC):
    """SAC's ring, with another learner.

    with CrossQ(CrossQConfig(env="Pendulum-v1", seed=1)) as crossq:
        while (result := crossq.step()).env_steps < 10_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "crossq", CrossQConfig, CrossQLearner
    make_policy = staticmethod(partial(bounded_actor, actor=ActorSpec("squashed_gaussian", renorm=Renorm())))
