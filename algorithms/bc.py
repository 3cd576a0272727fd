"""Behaviour cloning (Pomerleau 1991): a policy that does what was recorded, by maximum likelihood.

    data set ──recorded steps──▶ learner ──weights──▶ parameter server ──▶ evaluation

    loss      -mean log pi(a|s)      over the steps (s, a) of a minibatch

Discrete choices: the cross-entropy. Box actions: of a Gaussian with learnt deviations, so the squared error, each
dimension in units of its own spread. The network is PPO's of the same `policy` settings, critic included, which is not
trained: `rlplat train --algo ppo --init-from RUN` goes on from a cloned policy.

What is cloned is what was seen: where the copy makes a mistake that the teacher never made, it has not learnt to come
back (Ross et al. 2011). Data with some random actions (`rlplat record --random`) shows such places, but their random
actions are cloned too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.rl.algorithm_config import AdamWConfig
from rlplat.rl.interfaces import Array, Obs, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.learning.learner import Learner
from rlplat.rl.normalization import ObsStatistics, require_normalizable
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.offline.dataset import read_episodes
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.offline.ring import NOT_SAMPLED, DataConfig, DataRing, Epochs
from rlplat.rl.policies.make import policy_for
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.seeding import seed_sequences
from rlplat.rl.unused_settings import Unused
from rlplat.section import Count, Epsilon, Norm

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat import ActorHandle
    from rlplat.rl.run.typed_settings import BCSettings


class BCConfig(DataConfig, AdamWConfig):
    """BC's settings."""

    unused = {
        **NOT_SAMPLED,
        "policy.critic_hidden_sizes": Unused("nothing is learnt of the critic", is_error=True),
    }

    batch_size: Count = 256
    """Recorded steps per gradient step."""
    max_gradient_norm: Norm | None = None
    """Gradients are scaled down to this global norm; null: they are not."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon."""
    normalize_observations: bool = False
    """Subtract the mean of the data, divide by its deviation, clip to +-10; of images each pixel's."""

    if TYPE_CHECKING:

        def __init__(self, *, data: str, env: Any = ..., **settings: Unpack[BCSettings]) -> None: ...


def cloning_loss(log_probs: Tensor) -> Tensor:
    """-mean log pi(a|s). log_probs: float32[M], of the recorded actions."""
    return -log_probs.mean()


class TorchBC:
    """Network, optimizer and loss on torch; all recorded steps are on its device."""

    def __init__(
        self, config: BCConfig, spec: PolicySpec, seed: np.random.SeedSequence, obs: Obs, actions: Array
    ) -> None:
        """obs: [N, ...], normalised; actions: [N, ...]."""
        from rlplat.rl.torch.tensor_rows import TensorRows
        from rlplat.rl.torch.trainee import actor_critic_trainee

        self.config, self.trainee = config, actor_critic_trainee(config, spec, seed)
        self._rows = TensorRows(spec, obs, actions, {}, self.trainee.device)

    def loss(self, log_probs: Tensor) -> Tensor:
        """`cloning_loss`; a subclass may write another, with `self.trainee.network` and `self.config` at hand."""
        return cloning_loss(log_probs)

    def train(self, rows: Array, learning_rate: float) -> tuple[float, float]:
        """One gradient step on these rows -> (loss, gradient norm). A norm that is not finite changed nothing."""
        obs, actions, _ = self._rows.take(rows)
        distribution, values, _ = self.trainee.network(obs)
        loss = self.loss(distribution.log_prob(actions))
        # The critic's gradient is zero: Adam asks for one of every parameter.
        norm = self.trainee.descend(loss + 0.0 * values.sum(), learning_rate)
        return float(loss.detach()), norm


class BCLearner(Learner[BCConfig]):
    """An actor: reads the data, makes `updates_per_round` gradient steps at a time, publishes the weights."""

    saved = {"**": "trainee"}

    def __init__(
        self,
        computation: Computation,
        settings: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
    ) -> None:
        config: BCConfig = computation.config_class.model_validate(settings)
        super().__init__(config, parameter_server)
        network_seed, order_seed = seed_sequences(config.seed, "learner")
        episodes = read_episodes(config.data)
        obs = take_obs(episodes.obs, episodes.obs_rows())
        self._obs_statistics = ObsStatistics(spec.obs if config.normalize_observations else None)
        self._obs_statistics.update(obs, np.ones(episodes.num_steps, np.bool_))
        self._obs_statistics.weights()  # what `normalize` uses from here on
        self._net: Any = computation.net("torch", config, spec, network_seed, *self.columns(episodes, obs))
        self.trainee = self._net.trainee
        self._epochs, self._num_steps = Epochs(episodes.num_steps, order_seed), episodes.num_steps
        self.publish()

    def columns(self, episodes: Episodes, obs: Any) -> tuple[Any, ...]:
        """What the net is made with, of the data; obs: one row for each action."""
        return self._obs_statistics.normalize(obs), episodes.actions

    def train(self, rows: Array, learning_rate: float) -> dict[str, float]:
        """One gradient step on these rows -> its figures."""
        loss, norm = self._net.train(rows, learning_rate)
        return {"loss": loss, "gradient_norm": norm}

    def update(self, *batches: Any) -> UpdateReport:
        """One round; publishes version + 1."""
        started, config = perf_counter(), self.config
        learning_rate, num_updates = self.value(config.learning_rate), config.updates_per_round
        trained: list[dict[str, float]] = []
        for _ in range(num_updates):
            rows = self._epochs.rows(self.env_steps, config.batch_size)
            figures = self.train(rows, learning_rate)
            self.env_steps += config.batch_size
            if not math.isfinite(figures["gradient_norm"]) and config.non_finite == "stop":
                losses = {name: figure for name, figure in figures.items() if name != "gradient_norm"}
                raise self.non_finite(losses, {}, "set normalize_observations")
            trained.append(figures)
        learnt = perf_counter()
        self.publish_next()
        metrics = self.step_metrics(trained) | {
            "learner/learning_rate": learning_rate,
            "learner/epochs": self.env_steps / self._num_steps,
            "time/train_s": learnt - started,
            "time/publish_s": perf_counter() - learnt,
        }
        return UpdateReport(num_updates * config.batch_size, [], metrics)

    def beside(self) -> Weights:
        return self._obs_statistics.weights()


class BC(DataRing[BCConfig]):
    """with BC(BCConfig(data="data/cartpole", seed=1)) as bc:
    while (result := bc.step()).env_steps < 100_000:
        print(result.metrics["learner/loss"])
    """

    name, config_class, learner_class = "bc", BCConfig, BCLearner
    nets: ClassVar[Mapping[str, Any]] = {"torch": TorchBC}
    losses: ClassVar[tuple[str, ...]] = ("loss",)
    make_policy = staticmethod(policy_for)

    def check_spaces(self) -> None:
        if self.config.normalize_observations:
            require_normalizable(self.spaces.obs, images=True)

    @classmethod
    def with_weights(cls, state: dict[str, Any], weights: Weights) -> dict[str, Any]:
        """What `get_state()` returned, with such weights in the place of its own. CheckpointError where they expect
        observations that are normalised otherwise than those of the data."""
        for name, of_data in state["learner"]["beside"].items():
            given = np.asarray(weights[name])
            if given.shape != of_data.shape or not np.allclose(given, of_data, rtol=1e-4):
                raise CheckpointError(
                    f"its {name} is not that of this run's data, which normalize_observations takes its statistics "
                    "from: its weights would see other numbers than they have learnt; train it on the same data, or "
                    "both runs with normalize_observations=false"
                )
        return super().with_weights(state, weights)
