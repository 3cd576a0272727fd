"""Conservative Q-learning, CQL(H) (Kumar et al. 2020, arXiv:2006.04779, equation 4), on SAC's learner: bounded
continuous actions from recorded episodes.

    data set ──transitions──▶ learner ──weights──▶ parameter server ──▶ evaluation

Off-policy learning from a fixed data set fails because the critic is asked about actions that nobody ever took, answers
too high, and the actor goes there. CQL presses the critic's values down everywhere and lifts them at the recorded
actions. The critics of SAC descend, beside their own loss,

    conservative_coef * sum_i E_(s, a)~data [ log sum_a' exp Q_i(s, a') - Q_i(s, a) ]

whose sum over all actions is estimated (appendix F) with K uniform ones and K of the policy, each by its density:

    log 1/(2K) ( sum_uniform exp Q(s, a') / 0.5^A  +  sum_policy exp Q(s, a') / pi(a'|s) )        a' in (-1, 1)^A

Everything else is SAC's (algorithms/sac.py): soft targets, actor, temperature. Different from the paper:

- conservative_coef is fixed, without the Lagrange multiplier of appendix F;
- the targets keep the entropy term; actor and critics have one learning rate;
- the authors' code imitates the data for its first 40,000 gradient steps, and estimates the sum with the policy's
  actions in the next state too: here neither.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

from rlplat.algorithms.sac import SAC, SACConfig, SACLearner
from rlplat.rl.offline.ring import RecordedConfig, RecordedControl, RecordedLearner
from rlplat.section import Coefficient, Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import CQLSettings
    from rlplat.rl.torch.continuous_control import Transitions


class CQLConfig(RecordedConfig, SACConfig):
    """CQL's settings: those of SAC that have to do with learning, and these."""

    conservative_coef: Coefficient = 5.0
    """alpha of equation 4: how much the critics are held down at actions that were not recorded; 0 is SAC on data."""
    num_sampled_actions: Count = 10
    """K: uniform actions, and as many of the policy, for each recorded state."""

    if TYPE_CHECKING:

        def __init__(self, *, data: str, env: Any = ..., **settings: Unpack[CQLSettings]) -> None: ...


def log_sum_exp_q(q_uniform: Tensor, q_policy: Tensor, log_probs: Tensor, num_actions: int) -> Tensor:
    """float32[2, N]: log of the sum over all actions of exp Q_i(s, a), by importance sampling (appendix F).

    q_uniform, q_policy: float32[2, K, N], of uniform actions in (-1, 1)^A and of the policy's; log_probs:
    float32[K, N], of the latter; num_actions: A.
    """
    import torch

    num_samples = q_uniform.shape[1]
    terms = torch.cat([q_uniform + num_actions * math.log(2.0), q_policy - log_probs], dim=1)
    return torch.logsumexp(terms, dim=1) - math.log(2 * num_samples)


class CQLLearner(RecordedLearner, SACLearner):
    """SAC's on recorded transitions, with conservative critics."""

    config: CQLConfig

    def critic_objective(self, batch: Transitions, q: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
        """SAC's, and equation 4's term that presses the values of all actions down and lifts the recorded ones."""
        import torch

        from rlplat.rl.torch.continuous_control import squashed_sample

        loss, figures = super().critic_objective(batch, q, targets)
        nets, K, (N, A) = self.trainee, self.config.num_sampled_actions, batch.actions.shape
        with torch.no_grad():
            outputs = nets.actor(batch.features).repeat(K, 1)
            noise = nets.noise(batch.actions.repeat(2 * K, 1))
            uniform = torch.erf(noise[: K * N] * math.sqrt(0.5))  # twice the cumulative distribution, less 1
            actions, log_probs = squashed_sample(outputs, noise[K * N :])
        sampled = nets.critics(batch.features.repeat(2 * K, 1), torch.cat([uniform, actions]))
        q_uniform, q_policy = sampled.view(2, 2, K, N).unbind(1)
        gap = (self.log_sum_exp_q(q_uniform, q_policy, log_probs.view(K, N), A) - q).mean(dim=1).sum()
        loss = loss + self.config.conservative_coef * gap
        return loss, figures | {"conservative_gap": float(gap.detach())}

    def log_sum_exp_q(self, *columns: Any) -> Tensor:
        """The function above; a subclass may write another."""
        return log_sum_exp_q(*columns)


class CQL(RecordedControl[CQLConfig]):
    """with CQL(CQLConfig(data="data/pendulum", seed=1)) as cql:
    while (result := cql.step()).env_steps < 1_000_000:
        print(result.metrics["learner/conservative_gap"])
    """

    name, config_class, learner_class = "cql", CQLConfig, CQLLearner
    losses = (*SAC.losses, "log_sum_exp_q")
    make_policy = SAC.make_policy
