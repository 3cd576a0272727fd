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

Different from the paper:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- a round is `rollout_length` steps of every environment, then the gradient steps that are due;
- `n_step` > 1 sums rewards before the bootstrap, without importance weights.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.off_policy.learner import OffPolicyConfig
from rlplat.rl.off_policy.ring import ReplayRing
from rlplat.rl.policies.bounded_actor import ActorSpec
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.saved import Saved
from rlplat.section import Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import TD3Settings
    from rlplat.rl.torch.continuous_control import Transitions


class TD3Config(OffPolicyConfig):
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


class TorchTD3(Saved):
    """Networks, optimizers and losses on torch."""

    saved = {"**": "trainee", "target_actor": "target_actor", "delayed": "_updates"}

    def __init__(self, config: TD3Config, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        from rlplat.rl.torch.continuous_control import ActorAndCritics

        self.config, self.trainee = config, ActorAndCritics(config, spec, actor_spec(config), seed)
        self.target_actor = copy.deepcopy(self.trainee.actor).requires_grad_(False)
        self.minibatches, self.weights = self.trainee.minibatches, self.trainee.weights
        self.non_finite_gradients = self.trainee.non_finite_gradients
        self._updates = 0

    def train(self, batch: Transitions, learning_rate: float) -> dict[str, float]:
        """One gradient step of the critics, and where it is due, of actor and targets."""
        import torch

        from rlplat.rl.torch.continuous_control import polyak

        nets, config = self.trainee, self.config
        with torch.no_grad():
            outputs, noise = self.target_actor(batch.next_features), nets.noise(batch.actions)
            next_actions = self.smoothed_actions(
                outputs, noise, std=config.target_noise, clip=config.target_noise_clip
            )
            next_q = nets.target_critics(batch.next_features, next_actions)
            targets = self.clipped_targets(batch.returns, batch.discounts, next_q)
        q = nets.critics(batch.features, batch.actions)
        loss = self.critic_loss(q, targets)
        norm = nets.descend_critics(loss, learning_rate)
        figures = {
            "critic_loss": float(loss.detach()),
            "q_mean": float(q.detach().mean()),
            "gradient_norm": norm,
        }
        if not math.isfinite(norm):
            return figures
        self._updates += 1
        if self._updates % config.policy_delay == 0:
            actions = nets.actor(batch.features).tanh()
            loss = self.actor_loss(nets.fixed_critics.first(torch.cat([batch.features, actions], dim=-1)))
            figures["gradient_norm"] = math.hypot(norm, nets.descend_actor(loss, learning_rate))
            figures["actor_loss"] = float(loss.detach())
            nets.update_targets()
            polyak(self.target_actor, nets.actor, config.target_tau)
        return figures

    # The functions above; a subclass may write others, with `self.trainee` and `self.config` at hand.

    def smoothed_actions(self, outputs: Tensor, noise: Tensor, *, std: float, clip: float) -> Tensor:
        return smoothed_actions(outputs, noise, std=std, clip=clip)

    def clipped_targets(self, returns: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
        return clipped_targets(returns, discounts, next_q)

    def critic_loss(self, q: Tensor, targets: Tensor) -> Tensor:
        return critic_loss(q, targets)

    def actor_loss(self, q: Tensor) -> Tensor:
        return actor_loss(q)


def actor_spec(config: TD3Config) -> ActorSpec:
    return ActorSpec("deterministic", config.exploration_noise)


class TD3(ReplayRing[TD3Config]):
    """The ring, which `step()` turns once.

    with TD3(TD3Config(env="Pendulum-v1", seed=1)) as td3:
        while (result := td3.step()).env_steps < 10_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, nets = "td3", TD3Config, {"torch": TorchTD3}
    losses = ("smoothed_actions", "clipped_targets", "critic_loss", "actor_loss")
    weights_keys = ("weights", "target_actor")

    @staticmethod
    def actor_spec(settings: dict[str, Any]) -> ActorSpec:
        return actor_spec(TD3Config.among(settings))
