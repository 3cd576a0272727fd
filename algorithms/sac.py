"""Soft actor-critic (Haarnoja et al. 2018b, arXiv:1812.05905): off-policy learning of bounded continuous actions.

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

The actor is a squashed Gaussian, a = tanh(mean(s) + std(s) * noise), scaled to the bounds of the environment. Each
gradient step trains, on one minibatch from the replay:

    critics   sum_i (Q_i(s, a) - y)^2 / 2,  y = R + discount * (min_i Q_target_i(s', a') - alpha * log pi(a'|s')),
              a' ~ pi(.|s')
    actor     alpha * log pi(a|s) - min_i Q_i(s, a),  a ~ pi(.|s)
    alpha     -log alpha * (log pi(a|s) + target_entropy)
    targets   Q_target = (1 - tau) * Q_target + tau * Q

Before this file, and after it (rlplat/rl/...):

    sampling/rollout_worker.py         steps environments, records a TransitionBatch of `rollout_length` steps of each
    policies/bounded_actor.py          acts: the actor in numpy; uniform actions before `learning_starts`
    sampling/worker_group.py           the workers: asks all, replaces one that died
    off_policy/ring.py                 the ring: `setup` with its pre-flight, and `step`, which turns it once
    off_policy/learner.py              a round: batches into the replay, `learn` here, publish; how many steps are due
    replay/step_store.py, buffer.py    keep steps, sum up n-step returns, draw minibatches; hindsight.py: other goals
    torch/continuous_control.py        actor, critics, targets, their optimizers, noise; squashed_sample
    learning/parameter_server.py       holds the newest weights for workers and evaluations
    run/algorithm.py, training_loop.py what all algorithms do; metrics, checkpoints, evaluation around `step`

Different from the paper:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- a round is `rollout_length` steps of every environment, then the gradient steps that are due, so that a policy acts
  for a few steps before it learns from them;
- `n_step` > 1 sums rewards before the bootstrap, without importance weights or the entropies in between.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.numpy_learning import Adam
from rlplat.rl.off_policy.learner import ContinuousConfig, ContinuousLearner
from rlplat.rl.off_policy.ring import ContinuousControl, bounded_actor
from rlplat.rl.policies.bounded_actor import ActorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import SACSettings
    from rlplat.rl.torch.continuous_control import ActorAndCritics, Transitions

Auto = Literal["auto"]
GAUSSIAN = ActorSpec("squashed_gaussian")


class SACConfig(ContinuousConfig):
    """SAC's settings. The defaults are those of the paper, with MuJoCo's environments in mind."""

    unused = {key: unused for key, unused in ContinuousConfig.unused.items() if key != "policy.use_sde"}

    entropy_coef: Auto | Annotated[float, Field(ge=0.0, le=1000.0)] = "auto"
    """alpha, what a nat of entropy is worth in rewards; auto: learnt, so that the entropy is target_entropy."""
    initial_entropy_coef: float = Field(default=1.0, gt=0.0, le=1000.0)
    """entropy_coef auto: where it starts."""
    target_entropy: Auto | Annotated[float, Field(ge=-1e6, le=1e6)] = "auto"
    """entropy_coef auto: the mean entropy to reach, of actions within (-1, 1); auto: minus their number."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[SACSettings]) -> None: ...


def critic_loss(q: Tensor, targets: Tensor) -> Tensor:
    """sum_i mean (Q_i(s, a) - y)^2 / 2. q: float32[2, N]; targets: float32[N], constants."""
    return 0.5 * (q - targets).square().mean(dim=1).sum()


def soft_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, next_log_probs: Tensor, alpha: float) -> Tensor:
    """float32[N]: y = R + discount * (min_i Q_i(s', a') - alpha * log pi(a'|s')). next_q: float32[2, N], of the target
    networks; returns (of n steps), discounts (0 where terminated), next_log_probs: float32[N]."""
    return returns + discounts * (next_q[0].minimum(next_q[1]) - alpha * next_log_probs)


def actor_loss(q: Tensor, log_probs: Tensor, alpha: float) -> Tensor:
    """mean (alpha * log pi(a|s) - min_i Q_i(s, a)). q: float32[2, N], of actions that have gradients; log_probs:
    float32[N]."""
    return (alpha * log_probs - q[0].minimum(q[1])).mean()


class EntropyCoefficient:
    """alpha: fixed, or learnt by Adam on -log alpha * (log pi + target_entropy)."""

    def __init__(self, config: Any, auto_target: float) -> None:
        """config: with the settings about entropy; auto_target: what `target_entropy: auto` is."""
        is_learnt = config.entropy_coef == "auto"
        initial = config.initial_entropy_coef if is_learnt else config.entropy_coef
        self._adam = Adam(epsilon=config.adam_epsilon) if is_learnt else None
        self._value = float(initial)
        self._log = {"log_alpha": np.log(np.array([self._value or 1.0], np.float32))}
        self.target_entropy = auto_target if config.target_entropy == "auto" else float(config.target_entropy)

    @property
    def value(self) -> float:
        return float(np.exp(self._log["log_alpha"][0])) if self._adam is not None else self._value

    def descend(self, mean_log_prob: float, learning_rate: float) -> None:
        """One gradient step; mean_log_prob: of the policy's actions on the minibatch."""
        if self._adam is not None:
            gradient = np.array([-(mean_log_prob + self.target_entropy)], np.float32)
            self._adam.step(self._log, {"log_alpha": gradient}, learning_rate)

    def get_state(self) -> dict[str, Any] | None:
        return None if self._adam is None else {"optimizer": self._adam.get_state()} | self._log

    def set_state(self, state: dict[str, Any] | None) -> None:
        if self._adam is not None and state is not None:
            self._adam.set_state(state["optimizer"])
            self._log["log_alpha"] = np.array(state["log_alpha"], np.float32)


class SACLearner(ContinuousLearner[SACConfig]):
    """An actor: keeps the replay and the networks, makes the gradient steps that are due, publishes the policy."""

    saved = {"alpha": "alpha"}

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        super().__init__(computation, *arguments)
        self.trainee = self.networks()
        self.alpha = EntropyCoefficient(self.config, -float(self.spec.action.flat_size))
        computation.replace_losses(self)

    def networks(self) -> ActorAndCritics:
        """What is trained."""
        from rlplat.rl.torch.continuous_control import ActorAndCritics

        return ActorAndCritics(self.config, self.spec, GAUSSIAN, self.network_seed)

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """Algorithm 1, "for each gradient step": on minibatches drawn from the replay, uniformly."""
        return [self.count(batch, self.train(batch)) for batch in self.minibatches(num_updates)]

    def train(self, batch: Transitions) -> dict[str, float]:
        """One gradient step -> its figures."""
        import torch

        from rlplat.rl.torch.continuous_control import squashed_sample

        nets, alpha, learning_rate = self.trainee, self.alpha.value, self.value(self.config.learning_rate)

        # theta_i <- theta_i - lambda_Q grad J_Q(theta_i)
        with torch.no_grad():
            next_outputs = nets.actor(batch.next_features)
            next_actions, next_log_probs = squashed_sample(next_outputs, nets.noise(batch.actions))
            next_q = nets.target_critics(batch.next_features, next_actions)
            targets = self.soft_targets(batch.returns, batch.discounts, next_q, next_log_probs, alpha)
        q = nets.critics(batch.features, batch.actions)
        loss, figures = self.critic_objective(batch, q, targets)
        norm = nets.descend_critics(loss, self.critic_learning_rate)
        figures |= {"q_mean": float(q.detach().mean()), "gradient_norm": norm}
        if not math.isfinite(norm):
            return figures

        # phi <- phi - lambda_pi grad J_pi(phi)
        features = batch.features.detach()
        actions, log_probs = squashed_sample(nets.actor(features), nets.noise(batch.actions))
        loss = self.actor_loss(nets.critics(features, actions), log_probs, alpha)
        actor_norm = nets.descend_actor(loss, learning_rate)

        # alpha <- alpha - lambda grad J(alpha)
        mean_log_prob = float(log_probs.detach().mean())
        if math.isfinite(actor_norm):
            self.alpha.descend(mean_log_prob, learning_rate)

        # theta_target_i <- tau theta_i + (1 - tau) theta_target_i
        nets.update_targets()
        return figures | {
            "actor_loss": float(loss.detach()),
            "gradient_norm": math.hypot(norm, actor_norm),
            "entropy": -mean_log_prob,
            "entropy_coef": alpha,
        }

    def critic_objective(self, batch: Transitions, q: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        """What the critics descend, and its figures. q: float32[2, N] of the batch; targets: float32[N]."""
        loss = self.critic_loss(q, targets)
        return loss, {"critic_loss": float(loss.detach())}

    # The functions above; a subclass may write others, with `self.trainee` and `self.config` at hand.

    def soft_targets(self, *columns: Any) -> Tensor:
        return soft_targets(*columns)

    def critic_loss(self, q: Tensor, targets: Tensor) -> Tensor:
        return critic_loss(q, targets)

    def actor_loss(self, *columns: Any) -> Tensor:
        return actor_loss(*columns)


class SAC(ContinuousControl[SACConfig]):
    """The ring of off_policy/ring.py, which `step()` turns once.

    with SAC(SACConfig(env="Pendulum-v1", seed=1)) as sac:
        while (result := sac.step()).env_steps < 10_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "sac", SACConfig, SACLearner
    losses = ("soft_targets", "critic_loss", "actor_loss")
    make_policy = staticmethod(partial(bounded_actor, actor=GAUSSIAN))
