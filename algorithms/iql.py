"""Implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169) on BC's parts: any actions, from recorded episodes.

    data set ──transitions──▶ learner ──weights──▶ parameter server ──▶ evaluation

Off-policy learning from a fixed data set fails where values of actions are asked for that nobody ever took. IQL asks
for none: V learns the upper expectile of the values of the recorded actions in each state, about that of the best ones
among them, Q learns from V, and the policy clones the recorded actions, the better ones more. Each gradient step, with
u = min_i Q_target_i(s, a) - V(s):

    value     mean |expectile - 1(u < 0)| u^2                                       equation 5
    policy    -mean min(exp(temperature * u), max_weight) log pi(a|s)               equation 7
    critics   sum_i mean (r + discount * V(s') - Q_i(s, a))^2 / 2                   equation 6
    targets   Q_target = (1 - tau) * Q_target + tau * Q

Policy and V are PPO's network of the same `policy` settings: `rlplat train --algo ppo --init-from RUN` goes on from it.
Q takes actions as numbers, a Box by its bounds, choices one-hot.

Different from the paper, or its authors' code: the mean of a Box is not squashed (`policy.squash_actions`), and its
deviation has no bounds; value and policy learn at once, both from the values before the step; rewards are as recorded,
where theirs are scaled for each data set; an episode that was cut off bootstraps from its last observation.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

from rlplat.algorithms.bc import BC, BCConfig, BCLearner
from rlplat.errors import UsageError
from rlplat.rl.algorithm_config import PolicyConfig, Width
from rlplat.rl.interfaces import Activation, Array
from rlplat.rl.obs_tree import flat_actions, flat_features, num_features
from rlplat.rl.offline.episodes import Episodes, RecordedTransitions
from rlplat.rl.offline.ring import NOT_SAMPLED
from rlplat.rl.policies.spec import PolicySpec, policy_spec
from rlplat.rl.saved import Saved
from rlplat.rl.schedules import CosineSchedule, LearningRate
from rlplat.section import Coefficient

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import IQLSettings


class IQLPolicyConfig(PolicyConfig):
    """The network of policy and V; each Q has the critic's sizes."""

    hidden_sizes: list[Width] = Field(default=[256, 256], min_length=1)
    """Widths of the layers."""
    activation: Activation = "relu"
    """Non-linearity of the layers."""


class IQLConfig(BCConfig):
    """IQL's settings: those of BC, and these. The defaults are those of the paper for MuJoCo's data sets."""

    unused = dict(NOT_SAMPLED)

    policy: IQLPolicyConfig = Field(default_factory=IQLPolicyConfig)
    learning_rate: LearningRate = CosineSchedule(start=3e-4, end=0.0)
    """Adam's step size for the policy."""
    critic_learning_rate: LearningRate | None = 3e-4
    """Adam's step size for V and Q; null: learning_rate."""
    expectile: float = Field(default=0.7, gt=0.0, lt=1.0)
    """0.5: V is the mean over the recorded actions, near 1: the value of the best; the paper has 0.9 for AntMaze."""
    temperature: Coefficient = 3.0
    """How much better actions count more, per unit of return; 0: all the same. The paper has 10 for AntMaze."""
    max_advantage_weight: float = Field(default=100.0, gt=0.0, le=1e9)
    """No recorded action counts more than this."""
    target_tau: float = Field(default=0.005, gt=0.0, le=1.0)
    """Polyak averaging of target networks: what they take over of the online ones."""

    if TYPE_CHECKING:

        def __init__(self, *, data: str, env: Any = ..., **settings: Unpack[IQLSettings]) -> None: ...


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """mean |expectile - 1(u < 0)| u^2. errors: float32[M], u = Q - V."""
    weights = (expectile - (errors < 0.0).float()).abs()
    return (weights * errors.square()).mean()


def advantage_weights(advantages: Tensor, temperature: float, max_weight: float) -> Tensor:
    """float32[M]: min(exp(temperature * A), max_weight)."""
    return (temperature * advantages).clamp(max=math.log(max_weight)).exp()


class TorchIQL(Saved):
    """Networks, optimizers and losses on torch."""

    saved = {"critics": "critics", "target_critics": "target_critics", "critic_optimizer": "_critic_adam"}

    def __init__(self, config: IQLConfig, spec: PolicySpec, seed: np.random.SeedSequence, episodes: Episodes) -> None:
        """episodes: with observations as the network takes them."""
        import torch

        from rlplat.rl.torch.continuous_control import Critics
        from rlplat.rl.torch.optimizers import adam_of
        from rlplat.rl.torch.trainee import actor_critic_trainee

        self.config, self._spec, self.trainee = config, spec, actor_critic_trainee(config, spec, seed)
        self._data = RecordedTransitions(episodes, config.discount)
        # Critics count the columns of recorded actions: one-hot they are more.
        more = flat_actions(episodes.actions[:1], spec.action).shape[1] - spec.action.flat_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed.generate_state(2)[1]))
            self.critics = Critics(spec, num_features(spec.obs) + more).to(self.trainee.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._critic_adam = adam_of(config, self.critics)

    def train(self, rows: Array, learning_rate: float, critic_rate: float) -> dict[str, float]:
        """One gradient step on these rows -> its figures. A part whose norm is not finite changed nothing."""
        import torch

        from rlplat.rl.torch.continuous_control import polyak
        from rlplat.rl.torch.tensor_rows import TensorRows, tensor_on

        config, spec, network, device = self.config, self._spec, self.trainee.network, self.trainee.device
        drawn = self._data.take(rows)
        beside = {"rewards": drawn.returns, "discounts": drawn.discounts}
        obs, actions, columns = TensorRows(spec, drawn.obs, drawn.actions, beside, device).take()
        next_obs, _, _ = TensorRows(spec, drawn.next_obs, drawn.actions, {}, device).take()
        flat = flat_features(drawn.obs, spec.obs), flat_actions(drawn.actions, spec.action)
        inputs = [tensor_on(device, each) for each in flat]
        with torch.no_grad():
            target_q = self.target_critics(*inputs).amin(dim=0)
            targets = columns["rewards"] + columns["discounts"] * network(next_obs)[1]

        # L_V(psi) and L_pi(phi)
        distribution, values, _ = network(obs)
        errors = target_q - values
        value_loss = self.expectile_loss(errors, config.expectile)
        weights = self.advantage_weights(errors.detach(), config.temperature, config.max_advantage_weight)
        policy_loss = -(weights * distribution.log_prob(actions)).mean()
        loss = value_loss + policy_loss
        _, norms = self.trainee.start_descent(loss, learning_rate, loss[None], critic_rate=critic_rate)
        norm = float(self.trainee.norms_of(norms.numpy(force=True)[None])[0])

        # L_Q(theta); theta_target <- tau theta + (1 - tau) theta_target
        q = self.critics(*inputs)
        loss = 0.5 * (q - targets).square().mean(dim=1).sum()
        critic_norm = self._critic_adam.descend(loss, critic_rate)
        polyak(self.target_critics, self.critics, config.target_tau)
        return {
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "critic_loss": float(loss.detach()),
            "q_mean": float(q.detach().mean()),
            "value_mean": float(values.detach().mean()),
            "advantage_weight": float(weights.mean()),
            "gradient_norm": math.hypot(norm, critic_norm),
        }

    # The functions above; a subclass may write others.

    def expectile_loss(self, errors: Tensor, expectile: float) -> Tensor:
        return expectile_loss(errors, expectile)

    def advantage_weights(self, advantages: Tensor, temperature: float, max_weight: float) -> Tensor:
        return advantage_weights(advantages, temperature, max_weight)


class IQLLearner(BCLearner):
    """An actor: BC's, with values beside the policy."""

    saved = {"**values": "_net"}
    config: IQLConfig
    _net: TorchIQL

    def columns(self, episodes: Episodes, obs: Any) -> tuple[Any, ...]:
        return (replace(episodes, obs=self._obs_statistics.normalize(episodes.obs)),)

    def train(self, rows: Array, learning_rate: float) -> dict[str, float]:
        own = self.config.critic_learning_rate
        return self._net.train(rows, learning_rate, learning_rate if own is None else self.value(own))


class IQL(BC):
    """with IQL(IQLConfig(data="data/pendulum", seed=1)) as iql:
    while (result := iql.step()).env_steps < 1_000_000:
        print(result.metrics["learner/value_mean"])
    """

    name, config_class, learner_class = "iql", IQLConfig, IQLLearner
    nets, losses = {"torch": TorchIQL}, ("expectile_loss", "advantage_weights")

    def check_spaces(self) -> None:
        super().check_spaces()
        if policy_spec(self.config.policy.model_dump(), self.spaces).has_images:
            raise UsageError(
                f"the critics of iql take numbers, but {self.config.env} has images, {self.spaces}: use --algo bc, or "
                "policy.encoder=mlp, which takes pixels as numbers"
            )
