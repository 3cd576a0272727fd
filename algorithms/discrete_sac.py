"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207).

    rollout workers ──TransitionBatch refs──▶ learner (with its replay) ──weights──▶ parameter server ──▶ workers

The actor is categorical, and a critic gives the values of all actions at once, so that what SAC (algorithms/sac.py)
estimates from one action that was drawn is here an expectation. Each gradient step trains, on one minibatch:

    critics   sum_i (Q_i(s, a) - y)^2 / 2,  y = R + discount * pi(s')^T (min_i Q_target_i(s') - alpha * log pi(s'))
    actor     pi(s)^T (alpha * log pi(s) - min_i Q_i(s))
    alpha     -log alpha * (pi(s)^T log pi(s) + target_entropy)
    targets   Q_target = (1 - tau) * Q_target + tau * Q

Before this file, and after it: as SAC, but for (rlplat/rl/...)

    policies/numpy_policies.py         acts: samples from the actor's probabilities; torch/policy.py: of images
    torch/networks.py, q_network.py    the actor (of an actor-critic network, whose value head is not used), the critics

Different from the paper:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- a round is `rollout_length` steps of every environment, then the gradient steps that are due;
- no uniform actions at first: the actor begins nearly uniform;
- `n_step` > 1 sums rewards before the bootstrap, without importance weights or the entropies in between.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import Field

from rlplat.algorithms.sac import Auto, EntropyCoefficient
from rlplat.rl.learning.backend import Computation
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.off_policy.learner import OffPolicyConfig, OffPolicyLearner, QPolicyConfig
from rlplat.rl.off_policy.ring import OffPolicy
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import QSpec
from rlplat.rl.replay.buffer import Minibatch
from rlplat.rl.schedules import LearningRate
from rlplat.rl.unused_settings import DISCRETE, Unused
from rlplat.section import Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import DiscreteSACSettings


class DiscreteSACConfig(OffPolicyConfig):
    """Settings of SAC for discrete actions."""

    unused = {
        **OffPolicyConfig.unused,
        "policy.custom": Unused("actor and critics are rlplat's networks", is_error=True),
        **DISCRETE,
    }

    policy: QPolicyConfig = Field(default_factory=QPolicyConfig)
    env_steps_per_update: float = Field(default=1.0, gt=0.0, le=1e9)
    """Env steps for each gradient step; 0.5: two gradient steps per env step."""
    batch_size: Count = 64
    """Transitions per gradient step."""
    critic_learning_rate: LearningRate | None = None
    """Adam's step size for the critics; null: learning_rate."""
    target_tau: float = Field(default=0.005, gt=0.0, le=1.0)
    """Polyak averaging of target networks: what they take over of the online ones."""
    entropy_coef: Auto | Annotated[float, Field(ge=0.0, le=1000.0)] = "auto"
    """alpha, what a nat of entropy is worth in rewards; auto: learnt, so that the entropy is target_entropy."""
    initial_entropy_coef: float = Field(default=1.0, gt=0.0, le=1000.0)
    """entropy_coef auto: where it starts."""
    target_entropy: Auto | Annotated[float, Field(ge=0.0, le=1e6)] = "auto"
    """entropy_coef auto: the mean entropy to reach; auto: 0.98 of the largest, log of the number of actions, as in the
    paper; most tasks want less."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[DiscreteSACSettings]) -> None: ...


def soft_targets(returns: Tensor, discounts: Tensor, next_q: Tensor, next_log_probs: Tensor, alpha: float) -> Tensor:
    """float32[N]: y = R + discount * pi(s')^T (min_i Q_i(s') - alpha * log pi(s')) (equations 3 and 10). next_q:
    float32[2, N, A], of the target networks; next_log_probs: float32[N, A]; returns (of n steps), discounts (0 where
    terminated): float32[N]."""
    soft_q = next_q[0].minimum(next_q[1]) - alpha * next_log_probs
    return returns + discounts * (next_log_probs.exp() * soft_q).sum(dim=1)


def critic_loss(q: Tensor, targets: Tensor) -> Tensor:
    """sum_i mean (Q_i(s, a) - y)^2 / 2. q: float32[2, N], of the actions taken; targets: float32[N], constants."""
    return 0.5 * (q - targets).square().mean(dim=1).sum()


def actor_loss(q: Tensor, log_probs: Tensor, alpha: float) -> Tensor:
    """mean pi(s)^T (alpha * log pi(s) - min_i Q_i(s)) (equation 12). q: float32[2, N, A], constants; log_probs:
    float32[N, A]."""
    return (log_probs.exp() * (alpha * log_probs - q[0].minimum(q[1]))).sum(dim=1).mean()


class DiscreteSACLearner(OffPolicyLearner[DiscreteSACConfig]):
    """An actor: keeps the replay and the networks, makes the gradient steps that are due, publishes the policy."""

    saved = {
        "**": "trainee",
        "critics": "critics",
        "target_critics": "target_critics",
        "critic_optimizer": "critic_optimizer",
        "alpha": "alpha",
    }

    def __init__(self, computation: Computation, *arguments: Any) -> None:
        import torch
        from torch import nn

        from rlplat.rl.torch.networks import make_network
        from rlplat.rl.torch.optimizers import Adam, adam_of
        from rlplat.rl.torch.q_network import make_q_network
        from rlplat.rl.torch.trainee import Trainee

        super().__init__(computation, *arguments)
        spec = self.spec

        def adam(network: Any) -> Adam:
            acts = nn.ModuleDict({"encoder": network.actor_encoder, "head": network.actor_head})
            return adam_of(self.config, acts)

        self.trainee = Trainee(self.config, spec, self.network_seed, partial(make_network, spec), optimizer=adam)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.network_seed.generate_state(2)[1]))
            critics = nn.ModuleList(make_q_network(spec.critic, QSpec()) for _ in range(2))
        self.critics = critics.to(self.trainee.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.critic_optimizer = adam_of(self.config, self.critics)
        self.alpha = EntropyCoefficient(self.config, 0.98 * math.log(spec.action.n))
        computation.replace_losses(self)

    def learn(self, num_updates: int) -> list[dict[str, float]]:
        """The gradient steps of a round, each on a minibatch drawn from the replay, uniformly."""
        assert self.replay is not None
        trained = []
        for _ in range(num_updates):
            drawn = self.replay.buffer.sample(self.config.batch_size)
            assert isinstance(drawn, Minibatch)
            trained.append(self.train(drawn.with_obs(self.obs_statistics.normalize)))
            self.updates += 1
        return trained

    def train(self, batch: Minibatch) -> dict[str, float]:
        """One gradient step -> its figures."""
        import torch

        from rlplat.rl.torch.continuous_control import polyak
        from rlplat.rl.torch.tensor_rows import tensor_on

        tensor, alpha = partial(tensor_on, self.trainee.device), self.alpha.value
        learning_rate, max_norm = (
            self.value(self.config.learning_rate),
            self.config.max_gradient_norm or math.inf,
        )
        obs, next_obs = map_obs(tensor, batch.obs), map_obs(tensor, batch.next_obs)
        actions, returns, discounts = map(tensor, (batch.actions, batch.returns, batch.discounts))

        # theta_i <- theta_i - lambda_Q grad J_Q(theta_i)
        with torch.no_grad():
            next_q = self.q_values(self.target_critics, next_obs)
            targets = self.soft_targets(returns, discounts, next_q, self.log_probs(next_obs), alpha)
        q = self.q_values(self.critics, obs).gather(2, actions.expand(2, -1).unsqueeze(2)).squeeze(2)
        loss = self.critic_loss(q, targets)
        norm = self.critic_optimizer.descend(loss, self.critic_learning_rate, max_norm)
        figures = {
            "critic_loss": float(loss.detach()),
            "q_mean": float(q.detach().mean()),
            "gradient_norm": norm,
        }

        # phi <- phi - lambda_pi grad J_pi(phi)
        with torch.no_grad():
            q_of_all = self.q_values(self.critics, obs)
        log_probs = self.log_probs(obs)
        loss = self.actor_loss(q_of_all, log_probs, alpha)
        figures["actor_loss"] = float(loss.detach())
        if math.isfinite(norm):
            figures["gradient_norm"] = math.hypot(norm, self.trainee.descend(loss, learning_rate))
        if not math.isfinite(figures["gradient_norm"]):
            if self.config.non_finite == "stop":
                columns = {"obs": batch.obs, "returns": batch.returns}
                losses = {name: figures[name] for name in ("critic_loss", "actor_loss")}
                raise self.non_finite(losses, columns, "scale the rewards in the environment")
            return figures

        # alpha <- alpha - lambda grad J(alpha)
        log_probs = log_probs.detach()
        entropy = -float((log_probs.exp() * log_probs).sum(dim=1).mean())
        self.alpha.descend(-entropy, learning_rate)

        # Q_target_i <- tau Q_i + (1 - tau) Q_target_i
        polyak(self.target_critics, self.critics, self.config.target_tau)
        return figures | {"entropy": entropy, "entropy_coef": alpha}

    def q_values(self, critics: Any, obs: Any) -> Tensor:
        """float32[2, N, A]"""
        import torch

        return torch.stack([critic.q_values(critic(obs)[0]) for critic in critics])

    def log_probs(self, obs: Any) -> Tensor:
        """float32[N, A]; of illegal actions about -1e8, so that their probability is 0."""
        params: Tensor = self.trainee.network(obs)[0].params
        return params.log_softmax(dim=1)

    # The functions above; a subclass may write others, with `self.trainee` and `self.config` at hand.

    def soft_targets(self, *columns: Any) -> Tensor:
        return soft_targets(*columns)

    def critic_loss(self, q: Tensor, targets: Tensor) -> Tensor:
        return critic_loss(q, targets)

    def actor_loss(self, *columns: Any) -> Tensor:
        return actor_loss(*columns)


class DiscreteSAC(OffPolicy[DiscreteSACConfig]):
    """The ring of off_policy/ring.py, which `step()` turns once.

    with DiscreteSAC(DiscreteSACConfig(env="CartPole-v1", seed=1)) as sac:
        while (result := sac.step()).env_steps < 20_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "discrete_sac", DiscreteSACConfig, DiscreteSACLearner
    losses = ("soft_targets", "critic_loss", "actor_loss")
    make_policy = staticmethod(policy_for)
