"""TD3, twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477): off-policy learning of
bounded continuous actions.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

The actor is deterministic, a = tanh(mu(s)), scaled to the bounds of the environment; exploration adds Gaussian noise.
Each gradient step trains the critics, on one minibatch from the replay; every `policy_delay`-th step also the actor and
the targets:

    critics   sum_i (Q_i(s, a) - y)^2 / 2,  y = R + discount * min_i Q_target_i(s', a'),
              a' = clip(mu_target(s') + clip(target_noise * noise, +-target_noise_clip))     target policy smoothing
    actor     -Q_1(s, mu(s))
    targets   Q_target, mu_target = (1 - tau) * target + tau * online

DDPG (Lillicrap et al. 2016) but for its single critic: policy_delay=1 target_noise=0.

Before this file, and after it (rlplat/rl/...):

    sampling/rollout_worker.py         steps environments, records a TransitionBatch of `rollout_length` steps of each
    policies/bounded_actor.py          acts: the actor in numpy, with noise; uniform actions before `learning_starts`
    sampling/worker_group.py           the workers: asks all, replaces one that died
    off_policy/ring.py                 the ring: `setup` with its pre-flight, and `step`, which turns it once
    off_policy/learner.py              a round: batches into the replay, `learn` here, publish; how many steps are due
    replay/step_store.py, buffer.py    keep steps, sum up n-step returns, draw minibatches; hindsight.py: other goals
    torch/continuous_control.py        actor, critics, their targets and optimizers, noise
    learning/parameter_server.py       holds the newest weights for workers and evaluations
    run/algorithm.py, training_loop.py what all algorithms do; metrics, checkpoints, evaluation around `step`

Different from the paper:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- a round is `rollout_length` steps of every environment, then the gradient steps that are due;
- `n_step` > 1 sums rewards before the bootstrap, without importance weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.interfaces import Policy
from rlplat.rl.learning.backend import Computation
from rlplat.rl.off_policy.learner import ContinuousConfig, ContinuousLearner
from rlplat.rl.off_policy.ring import ContinuousControl, bounded_actor
from rlplat.rl.policies.bounded_actor import ActorSpec
from rlplat.rl.spaces import SpaceSpec
from rlplat.section import Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import TD3Settings
    from rlplat.rl.torch.continuous_control import Transitions


class TD3Config(ContinuousConfig):
    """TD3's settings. The defaults are those of the paper, with the batch and the networks of SAC."""

    exploration_noise: float = Field(default=0.1, ge=0.0, le=10.0)
    """Standard deviation of the noise on actions, in units of half the width of their bounds."""
    policy_delay: Count = 2
    """Gradient steps of the critics for one of the actor and of all targets."""
    target_noise: float = Field(default=0.2, ge=0.0, le=10.0)
    """Standard deviation of the noise on the target's actions, in the same units."""
    target_noise_clip: float = Field(default=0.5, ge=0.0, le=10.0)
    """That noise is cut off here."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[TD3Settings]) -> None: ...


def smoothed_actions(outputs: Tensor, noise: Tensor, *, std: float, clip: float) -> Tensor:
    """float32[N, A]: clip(tanh(outputs) + clip(std * noise, -clip, clip), -1, 1). outputs: of the target actor; noise:
    standard normal."""
    return (outputs.tanh() + (std * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


def critic_loss(q: Tensor, targets: Tensor) -> Tensor:
    """sum_i mean (Q_i(s, a) - y)^2 / 2. q: float32[2, N]; targets: float32[N], constants."""
    return 0.5 * (q - targets).square().mean(dim=1).sum()


def actor_loss(q: Tensor) -> Tensor:
    """-mean Q_1(s, mu(s)). q: float32[N], of actions that have gradients."""
    return -q.mean()


def clipped_targets(returns: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """float32[N]: y = R + discount * min_i Q_i(s', a'). next_q: float32[2, N], of the target networks; returns (of n
    steps), discounts (0 where terminated): float32[N]."""
    return returns + discounts * next_q[0].minimum(next_q[1])


def actor_spec(config: TD3Config) -> ActorSpec:
    return ActorSpec("deterministic", config.exploration_noise)


class TD3Learner(ContinuousLearner[TD3Config]):
    """An actor: keeps the replay and the networks, makes the gradient steps that are due, publishes the policy."""

    saved = {"target_actor": "target_actor"}

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        from rlplat.rl.torch.continuous_control import ActorAndCritics

        super().__init__(computation, *arguments)
        self.trainee = ActorAndCritics(self.config, self.spec, actor_spec(self.config), self.network_seed)
        self.target_actor = self.trainee.target_of(self.trainee.actor)
        computation.replace_losses(self)

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """Algorithm 1, the gradient steps of a round: "sample mini-batch of N transitions from B", uniformly."""
        return [self.count(batch, self.train(batch)) for batch in self.minibatches(num_updates)]

    def train(self, batch: Transitions) -> dict[str, float]:
        """One gradient step of the critics, and where it is due, of actor and targets -> its figures."""
        import torch

        nets, config, learning_rate = self.trainee, self.config, self.value(self.config.learning_rate)

        # a~ <- pi_phi'(s') + epsilon;  y <- r + gamma min_i Q_theta'_i(s', a~)
        with torch.no_grad():
            outputs, noise = self.target_actor(batch.next_features), nets.noise(batch.actions)
            next_actions = self.smoothed_actions(outputs, noise, std=config.target_noise, clip=config.target_noise_clip)
            next_q = nets.target_critics(batch.next_features, next_actions)
            targets = self.clipped_targets(batch.returns, batch.discounts, next_q)

        # update critics: theta_i <- argmin sum (y - Q_theta_i(s, a))^2 / N
        q = nets.critics(batch.features, batch.actions)
        loss = self.critic_loss(q, targets)
        norm = nets.descend_critics(loss, self.critic_learning_rate)
        figures = {
            "critic_loss": float(loss.detach()),
            "q_mean": float(q.detach().mean()),
            "gradient_norm": norm,
        }

        # if t mod d
        if not math.isfinite(norm) or (self.updates + 1) % config.policy_delay:
            return figures

        # update phi by the deterministic policy gradient
        features = batch.features.detach()
        actions = nets.actor(features).tanh()
        loss = self.actor_objective(batch, actions, nets.critics.first(nets.critics.inputs(features, actions)))
        actor_norm = nets.descend_actor(loss, learning_rate)

        # theta'_i <- tau theta_i + (1 - tau) theta'_i;  phi' <- tau phi + (1 - tau) phi'
        nets.update_targets()
        return figures | {"actor_loss": float(loss.detach()), "gradient_norm": math.hypot(norm, actor_norm)}

    def actor_objective(self, batch: Transitions, actions: Tensor, q: Tensor) -> Tensor:
        """What the actor descends. actions: float32[N, A], its own in the batch's states; q: float32[N], of these."""
        return self.actor_loss(q)

    # The functions above; a subclass may write others, with `self.trainee` and `self.config` at hand.

    def smoothed_actions(self, outputs: Tensor, noise: Tensor, *, std: float, clip: float) -> Tensor:
        return smoothed_actions(outputs, noise, std=std, clip=clip)

    def clipped_targets(self, *columns: Tensor) -> Tensor:
        return clipped_targets(*columns)

    def critic_loss(self, q: Tensor, targets: Tensor) -> Tensor:
        return critic_loss(q, targets)

    def actor_loss(self, q: Tensor) -> Tensor:
        return actor_loss(q)


class TD3(ContinuousControl[TD3Config]):
    """The ring of off_policy/ring.py, which `step()` turns once.

    with TD3(TD3Config(env="Pendulum-v1", seed=1)) as td3:
        while (result := td3.step()).env_steps < 10_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "td3", TD3Config, TD3Learner
    losses = ("smoothed_actions", "clipped_targets", "critic_loss", "actor_loss")
    weights_keys = ("weights", "target_actor")

    @staticmethod
    def make_policy(
        settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence, num_threads: int = 0
    ) -> Policy:
        """The policy that acts with this algorithm's weights; settings: the config as a dict."""
        actor = actor_spec(TD3Config.among(settings))
        return bounded_actor(settings, spaces, seed, actor=actor, num_threads=num_threads)
