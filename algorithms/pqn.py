"""Parallelised Q-learning (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811).

    rollout workers ──SampleBatch[T, B] refs──▶ learner ──weights, version + 1──▶ parameter server ──▶ rollout workers

Q-learning without a replay and without a target network. Every round all rollout workers act epsilon-greedily for
`rollout_length` steps in many environments with the newest weights, and the learner makes `num_epochs` passes of
minibatch RAdam over them, towards the Q(lambda) returns of that rollout. What keeps it stable is layer normalisation in
the network (`policy.layer_norm`, on here), and many environments.

Different from the paper and its code:

- an episode that was cut off (time limit) bootstraps from its last observation; termination alone cuts;
- epsilon and learning rate follow the env steps, and change once a round;
- the framework's own initialisation, where theirs is He's (`policy.orthogonal_init` is another);
- what normalises observations is a running mean and deviation (`normalize_observations`).

What happens before and after this file, in rlplat/rl:

    run/training_loop.py         calls `step` until the run is over; run/algorithm.py starts the actors, and ends them
    policies/exploration.py      epsilon-greedy among the legal actions; numpy_policies.py, torch/policy.py: Q
    sampling/rollout_worker.py   acts, steps environments and records: a `SampleBatch`, whose values are max_a Q(s, a)
    learning/learner.py          joins batches, scales rewards, normalises observations; publishes the weights
    sampling/returns.py          `gae`, whose returns are Q(lambda)'s of such values
    sampling/rollout.py          cuts the round into minibatches; what a `Minibatch` is
    torch/q_network.py           the network; on_policy.py: minibatches on the device; optimizers.py: `RAdam`
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

from rlplat.algorithms.dqn import DQNConfig
from rlplat.rl.algorithm_config import OnPolicyConfig
from rlplat.rl.interfaces import Result, UpdateReport, Weights
from rlplat.rl.learning.learner import OnPolicyLearner
from rlplat.rl.multi_agent.policy_map import MultiAgentConfig
from rlplat.rl.off_policy.learner import QEvaluationConfig, QPolicyConfig
from rlplat.rl.policies.exploration import EPSILON
from rlplat.rl.policies.make import q_policy_for
from rlplat.rl.policies.spec import PolicySpec, QSpec, require_discrete
from rlplat.rl.run.algorithm import OnPolicy
from rlplat.rl.sampling.returns import gae
from rlplat.rl.sampling.rollout_worker import RolloutWorker
from rlplat.rl.schedules import LearningRate, LinearSchedule, ScheduledShare
from rlplat.rl.spaces import SpaceSpec
from rlplat.rl.torch.on_policy import ActorCriticNet
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, Epsilon, Norm, Share

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import PQNSettings
    from rlplat.rl.sampling.rollout import Minibatch
    from rlplat.rl.sampling.sample_batch import SampleBatch


class NormalizedQPolicyConfig(QPolicyConfig):
    """The network."""

    layer_norm: bool = True
    """Normalise every layer before its activation (Ba et al. 2016); convolutions over the channels of each pixel."""


class PQNConfig(OnPolicyConfig):
    """PQN's settings. The rounds are the authors' for CartPole; for Atari: configs/pqn/_atari.yaml."""

    unused = {**DQNConfig.unused, "value_coef": Unused("the loss is of Q alone", is_error=True)}

    policy: NormalizedQPolicyConfig = Field(default_factory=NormalizedQPolicyConfig)
    evaluation: QEvaluationConfig = Field(default_factory=QEvaluationConfig)
    num_envs_per_worker: int = Field(default=32, ge=1, le=100_000)
    """Environments side by side in each rollout worker."""
    rollout_length: Count = 64
    """T: steps of every environment per round."""
    num_epochs: Count = 4
    """Passes over each round's samples."""
    minibatch_size: Count = 128
    """Samples per gradient step; a round is cut into equal parts of about this size."""
    q_lambda: Share = 0.95
    """lambda of the Q(lambda) returns: 0 is one-step Q-learning, 1 the sum of the rollout's rewards."""
    epsilon: ScheduledShare = LinearSchedule(start=1.0, end=0.05, until=0.2)
    """Share of random actions."""
    learning_rate: LearningRate = 2.5e-4
    """RAdam's step size."""
    adam_epsilon: Epsilon = 1e-8
    """RAdam's epsilon."""
    max_gradient_norm: Norm | None = 10.0
    """Gradients are scaled down to this global norm; null: they are not."""
    multi_agent: MultiAgentConfig = Field(default_factory=MultiAgentConfig)
    """Which policy decides for which agent, where there are several (docs/multi-agent.md)."""

    if TYPE_CHECKING:

        def __init__(self, *, env: Any, **settings: Unpack[PQNSettings]) -> None: ...


def pqn_loss(network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one minibatch, mean((Q(s, a) - R)^2) / 2: (loss, numbers about it)."""
    outputs, _ = network(minibatch.obs, minibatch.state, minibatch.starts)
    q_taken = network.q_values(outputs).gather(1, minibatch.actions.unsqueeze(1)).squeeze(1)
    if minibatch.counted is not None:
        q_taken = q_taken[minibatch.counted]
    loss = 0.5 * (q_taken - minibatch.returns).square().mean()
    return loss, {"loss": loss, "q_mean": q_taken.mean()}


class TorchPQN(ActorCriticNet):
    """Network and optimizer on torch."""

    def make_trainee(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence, **where: Any) -> Any:
        from rlplat.rl.torch.optimizers import RAdam
        from rlplat.rl.torch.q_network import check_q_network, make_q_network
        from rlplat.rl.torch.trainee import Trainee

        optimizer = partial(RAdam, epsilon=config.adam_epsilon)
        make = partial(make_q_network, spec, QSpec())
        trainee = Trainee(config, spec, seed, make, optimizer=optimizer, **where)
        check_q_network(trainee.network, trainee.device)
        return trainee

    def loss(self, network: Any, minibatch: Minibatch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return pqn_loss(network, minibatch, config)

    def decisions(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        values, actions = self.network.q_values(self.network(*inputs)[0]).max(dim=1)
        return actions, values.new_zeros(values.shape), values


class PQNWorker(RolloutWorker):
    """An actor: acts epsilon-greedily."""

    def __init__(self, config: dict[str, Any], worker_index: int, incarnation: int) -> None:
        super().__init__(config, worker_index, incarnation, q_policy_for)


class PQNLearner(OnPolicyLearner[PQNConfig]):
    """An actor: the lines of algorithm 1 after the rollout. Knows no framework: `self.net` does the arithmetic."""

    def update(self, *batches: SampleBatch) -> UpdateReport:
        rollout, config = self.rollout_of(batches), self.settings_now()
        if rollout.batch.weights_version < self.first_measured:
            return self.publish_learnt(rollout)

        # Equation 12, backwards in time, once: R_t = r_t + discount * (q_lambda * R_{t+1} + (1 - q_lambda) * max_a
        # Q(s_{t+1}, a)); in the last row, and where an episode was cut off, R_t = r_t + discount * max_a Q(s_{t+1}, a).
        # These are the returns of `gae`: the values of a rollout are max_a Q of the weights that acted.
        _, rollout.returns = gae(**rollout.steps, discount=config.discount, gae_lambda=config.q_lambda)
        self.net.load(rollout)
        rollout.lap("prepare")

        # for number of epochs, for number of minibatches: phi <- phi - alpha * grad ||Q_phi(s, a) - R^lambda||^2
        trained = [
            self.net.train(rows, config)
            for _ in range(config.num_epochs)
            for rows in rollout.minibatches(config.minibatch_size, self._rng)
        ]
        known = {"learner/epsilon": config.epsilon, "learner/explained_variance": rollout.explained_variance()}
        return self.publish_learnt(rollout, self.means(trained, rollout) | known)

    def beside(self) -> Weights:
        """The share of random actions as well."""
        return {EPSILON: np.array([self.value(self.config.epsilon)], np.float32)} | super().beside()


class PQN(OnPolicy[PQNConfig]):
    """The ring, and `step()`, which turns it once.

    with PQN(PQNConfig(env="CartPole-v1", seed=1)) as pqn:
        while (result := pqn.step()).env_steps < 100_000:
            print(result.env_steps, result.episode_return_mean)
    """

    name, config_class, learner_class = "pqn", PQNConfig, PQNLearner
    nets = {"torch": TorchPQN}
    losses = ("loss",)
    make_policy = staticmethod(q_policy_for)

    def look(self) -> list[PolicySpec]:
        specs = super().look()
        for spec in specs:
            require_discrete(SpaceSpec(spec.obs, spec.action), self.config.env, self.name)
        return specs

    def setup(self) -> None:
        """Parameter server, learner, rollout workers; returns when the first weights are published."""
        self.learners = self.start_policies()
        self.workers = self.start_rollout_workers(PQNWorker)
        self.learners.wait_until_ready()

    def step(self) -> Result:
        """One round: sample, update, publish."""
        self.require_open()
        batches = self.workers.sample(*self.learners.latest())
        report = self.workers.deliver(batches, self.learners.update)
        return self.result(report, self.workers.metrics())
