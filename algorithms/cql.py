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
from time import perf_counter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from rlplat.algorithms.sac import SAC, SACConfig, TorchSAC
from rlplat.rl.interfaces import Policy, UpdateReport
from rlplat.rl.learning.backend import Computation
from rlplat.rl.normalization import require_normalizable
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.off_policy.learner import CHUNK, TransitionLearner
from rlplat.rl.off_policy.ring import bounded_actor
from rlplat.rl.offline.dataset import read_episodes
from rlplat.rl.offline.episodes import RecordedTransitions
from rlplat.rl.offline.ring import NOT_SAMPLED, DataConfig, DataRing, Epochs
from rlplat.rl.policies.bounded_actor import ActorSpec, require_bounded
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.unused_settings import Unused
from rlplat.section import Coefficient, Count

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import CQLSettings
    from rlplat.rl.torch.continuous_control import Transitions


class CQLConfig(DataConfig, SACConfig):
    """CQL's settings: those of SAC that have to do with learning, and these."""

    unused = {
        **SACConfig.unused,
        **NOT_SAMPLED,
        **{
            name: Unused("transitions are recorded ones")
            for name in (
                "rollout_length",
                "learning_starts",
                "env_steps_per_update",
                "replay_capacity",
                "save_replay",
            )
        },
        "n_step": Unused("recorded steps are learnt from one by one", is_error=True),
        "hindsight.goal_selection_strategy": Unused("recorded steps keep their goals", is_error=True),
    }

    shapes_replay = ()

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


class TorchCQL(TorchSAC):
    """SAC's networks, optimizers and losses, with conservative critics."""

    def __init__(self, config: CQLConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        super().__init__(config, spec, seed)
        self._coef, self._num_samples = config.conservative_coef, config.num_sampled_actions

    def critic_objective(
        self, batch: Transitions, q: Tensor, targets: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        import torch

        from rlplat.rl.torch.continuous_control import squashed_sample

        loss, figures = super().critic_objective(batch, q, targets)
        nets, K, (N, A) = self.trainee, self._num_samples, batch.actions.shape
        with torch.no_grad():
            outputs = nets.actor(batch.features).repeat(K, 1)
            noise = nets.noise(batch.actions.repeat(2 * K, 1))
            uniform = torch.erf(noise[: K * N] * math.sqrt(0.5))  # twice the cumulative distribution, less 1
            actions, log_probs = squashed_sample(outputs, noise[K * N :])
        sampled = nets.critics(batch.features.repeat(2 * K, 1), torch.cat([uniform, actions]))
        q_uniform, q_policy = sampled.view(2, 2, K, N).unbind(1)
        gap = (self.log_sum_exp_q(q_uniform, q_policy, log_probs.view(K, N), A) - q).mean(dim=1).sum()
        return loss + self._coef * gap, figures | {"conservative_gap": float(gap.detach())}

    def log_sum_exp_q(
        self, q_uniform: Tensor, q_policy: Tensor, log_probs: Tensor, num_actions: int
    ) -> Tensor:
        """The function above; a subclass may write another."""
        return log_sum_exp_q(q_uniform, q_policy, log_probs, num_actions)


class CQLLearner(TransitionLearner):
    """An actor: reads the data, makes `updates_per_round` gradient steps at a time, publishes the weights."""

    def __init__(
        self,
        computation: Computation,
        settings: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
    ) -> None:
        config: CQLConfig = computation.config_class.model_validate(settings)
        network_seed, order_seed = seed_sequences(config.seed, "learner")
        super().__init__(computation, config, spec, parameter_server, network_seed)
        episodes = read_episodes(config.data)
        self._data = RecordedTransitions(episodes, config.discount)
        self._epochs, self._num_updates = Epochs(len(self._data), order_seed), config.updates_per_round
        if config.normalize_observations:
            obs = take_obs(episodes.obs, episodes.obs_rows())
            self.obs_statistics.update(obs, np.ones(len(self._data), np.bool_))
        self.publish()

    def update(self, *batches: Any) -> UpdateReport:
        """One round; publishes version + 1."""
        started, batch_size = perf_counter(), self.config.batch_size
        trained: list[dict[str, float]] = []
        env_steps = self._num_updates * batch_size
        for start in range(0, env_steps, CHUNK * batch_size):
            count = min(CHUNK * batch_size, env_steps - start)
            trained += self.train(self._data.take(self._epochs.rows(self.env_steps + start, count)))
        self.env_steps += env_steps
        learnt = perf_counter()
        self.publish_next()
        metrics = self.metrics(trained) | {
            "learner/epochs": self.env_steps / len(self._data),
            "time/train_s": learnt - started,
            "time/publish_s": perf_counter() - learnt,
        }
        return UpdateReport(env_steps, [], metrics)


class CQL(DataRing[CQLConfig]):
    """with CQL(CQLConfig(data="data/pendulum", seed=1)) as cql:
    while (result := cql.step()).env_steps < 1_000_000:
        print(result.metrics["learner/conservative_gap"])
    """

    name, config_class, learner_class = "cql", CQLConfig, CQLLearner
    nets, losses = {"torch": TorchCQL}, (*SAC.losses, "log_sum_exp_q")

    def check_spaces(self) -> None:
        require_bounded(self.spaces, self.config.env, self.name)
        if self.config.normalize_observations:
            require_normalizable(self.spaces.obs)

    @staticmethod
    def make_policy(settings: dict[str, Any], spaces: SpaceSpec, seed: np.random.SeedSequence) -> Policy:
        """The policy that acts with this algorithm's weights; settings: the config as a dict."""
        return bounded_actor(settings, spaces, seed, actor=ActorSpec("squashed_gaussian"))
