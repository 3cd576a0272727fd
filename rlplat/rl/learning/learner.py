"""`Learner`: what every learner actor does: count, follow schedules, publish weights, take its part in a group.
`OnPolicyLearner`: one that learns from rollouts with values (PPO, IMPALA)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

import rlplat
from rlplat.errors import NonFiniteError
from rlplat.rl.algorithm_config import Config, Rolling
from rlplat.rl.interfaces import Obs, UpdateReport, Weights
from rlplat.rl.learning.backend import Computation
from rlplat.rl.normalization import ObsStatistics
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.freed_memory import keep_freed_memory
from rlplat.rl.sampling.returns import LearningRewards
from rlplat.rl.sampling.rollout import Rollout
from rlplat.rl.sampling.sample_batch import SampleBatch, join_envs
from rlplat.rl.saved import Saved
from rlplat.rl.schedules import Schedule, config_at, schedule_value
from rlplat.rl.seeding import seed_process, seed_sequences

if TYPE_CHECKING:
    from rlplat import ActorHandle


SCALING = "scale rewards (normalize_rewards)"


class Learner(Saved, Generic[Config]):
    """An actor, one of a `LearnerGroup`. The subclass writes `update(*batches)`, and what it keeps beside `trainee`.

    report = get(learner.update.remote(*batches))       # trains; env_steps += ...; publish_next()
    """

    saved = {"version": "version", "env_steps": "env_steps"}
    trainee: Any
    """What holds the network, of a framework: weights(), non_finite_gradients() and, in a group, join_group()."""

    def __init__(self, config: Config, parameter_server: ActorHandle, rank: int = 0) -> None:
        """rank: the number of this learner in its group; learner 0 publishes. The subclass publishes the first weights
        when it has them (`publish`)."""
        keep_freed_memory()
        seed_process(config.seed, "learner", rank)
        self.config = config
        self._parameter_server = parameter_server
        self.rank, self.num_learners = rank, 1
        self._staged: tuple[Any, ...] = ()
        self.env_steps = self.version = 0

    def update(self, *batches: Any) -> UpdateReport:
        """One learning step on the batches of one round; publishes version + 1."""
        raise NotImplementedError

    def weights(self) -> Weights:
        """What is published: all that acts."""
        weights: Weights = self.trainee.weights() | self.beside()
        return weights

    def beside(self) -> Weights:
        """What travels with the network's weights: normaliser statistics, exploration."""
        return {}

    def value(self, schedule: Schedule) -> float:
        """Of a setting that changes over the run, now."""
        return schedule_value(schedule, self.env_steps, self.config.stop.env_steps)

    def step_metrics(self, trained: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics of a round. trained: figures of its gradient steps by name, `gradient_norm` among them; where that is
        finite they count in the means, where it is not the minibatch was skipped."""
        finite = [figures for figures in trained if math.isfinite(figures["gradient_norm"])]
        names = sorted({name for figures in finite for name in figures})
        return {
            "learner/skipped_minibatches": len(trained) - len(finite),
            "learner/learning_rate": self.value(self.config.learning_rate),
            "learner/weights_version": self.version,
        } | {
            f"learner/{name}": float(np.mean([figures[name] for figures in finite if name in figures]))
            for name in names
        }

    def non_finite(
        self,
        losses: Mapping[str, float],
        columns: Mapping[str, Obs],
        scaling: str = SCALING,
    ) -> NonFiniteError:
        """Where NaN or infinity is in a minibatch; losses: its terms; columns: what they were computed from; scaling:
        what makes such numbers smaller."""
        bad, place = self.trainee.non_finite_gradients(), f"at {self.env_steps} env steps"
        return non_finite_error(columns, losses, bad, place=place, version=self.version, scaling=scaling)

    def publish(self) -> None:
        """Returns when the parameter server has the weights."""
        weights = self.weights()
        if self.rank == 0:
            rlplat.get(self._parameter_server.set_weights.remote(self.version, weights))

    def publish_next(self) -> None:
        self.version += 1
        self.publish()

    def ready(self) -> None:
        """An answer says that the constructor is through."""

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"beside": self.beside()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where `get_state` was called. What a subclass has beside `saved` it restores before: the weights are
        published, under their version."""
        newer = self.version + 1  # the server takes no other
        super().set_state(state)
        self.version = max(self.version, newer)
        self.publish()

    # -- in a group

    def group_address(self) -> tuple[str, int]:
        """Where the learners of the group meet."""
        from rlplat.data_parallel.torch.process_group import open_store

        return open_store(rlplat.get_runtime_context().node_address)

    def join_group(self, address: tuple[str, int], rank: int, num_learners: int) -> None:
        """Share every minibatch with the other learners from now on."""
        self.trainee.join_group(address, rank, num_learners)
        self.rank, self.num_learners = rank, num_learners

    def stage(self, *batches: Any) -> None:
        """Keep the batches of a round for `update_staged`."""
        self._staged = batches

    def update_staged(self) -> UpdateReport:
        batches, self._staged = self._staged, ()
        return self.update(*batches)


class OnPolicyLearner(Learner[Rolling]):
    """An actor that learns from rollouts with values (PPO, IMPALA). The subclass writes `update`:

    rollout, config = self.rollout_of(batches), self.settings_now()
    if rollout.batch.weights_version >= self.first_measured:        # else there is nothing to learn from yet
        ...
        self.net.load(rollout)
        trained = [self.net.train(rows, config) for rows in rollout.minibatches(...)]
        metrics = self.means(trained, rollout)
    return self.publish_learnt(rollout, metrics)
    """

    saved = {
        "**": "trainee",
        "obs_statistics": "_obs_statistics",
        "reward_normalizer": "_learning_rewards",
        "rng": "_rng",
        "**rollouts": "rollouts",
    }
    rollouts: Any = None
    """`TensorRollouts`, where this learner samples by itself (`sample_here`)."""

    def __init__(
        self,
        computation: Computation,
        config: dict[str, Any],
        spec: PolicySpec,
        parameter_server: ActorHandle,
        rank: int = 0,
    ) -> None:
        super().__init__(computation.config_class.model_validate(config), parameter_server, rank)
        network_seed, order_seed = seed_sequences(self.config.seed, "learner")
        self.net = computation.net(computation.backend(self.config, spec), self.config, spec, network_seed)
        """What does the arithmetic (`nets` of the algorithm)."""
        self.trainee = self.net.trainee
        self._rng = np.random.Generator(np.random.PCG64(order_seed))
        self._obs_statistics = ObsStatistics(spec.obs if self.config.normalize_observations else None)
        self._learning_rewards = LearningRewards(self.config)
        self.first_measured: float = math.inf if self._obs_statistics.is_empty else 0
        """The first version whose weights have statistics of observations with them, where there are any. What was
        sampled before is for these alone: raw observations saturate the network, and log-probabilities of a policy that
        saw them are those of another one than that which sees them normalised."""
        self.publish()

    def sample_here(self) -> None:
        """From now on `update` is given no batches: this process steps a tensor environment, on its device."""
        from rlplat.rl.torch.tensor_rollouts import TensorRollouts

        self.rollouts = TensorRollouts(self.config, self.net.spec, self.net.network, self.net.device)

    def close_envs(self) -> None:
        if self.rollouts is not None:
            self.rollouts.close()

    def not_saved(self) -> str:
        """What `get_state` leaves out, or the empty string."""
        return "" if self.rollouts is None else str(self.rollouts.not_saved)

    def settings_now(self) -> Any:
        """The config, its schedules as the numbers that they have come to."""
        return config_at(self.config, self.env_steps, self.config.stop.env_steps)

    def rollout_of(self, batches: Sequence[SampleBatch]) -> Rollout:
        """All environments side by side, with rewards to be learnt from (in the order in which each worker sampled
        them) and observations as the network takes them. Without batches, what is sampled here."""
        if self.rollouts is not None:
            sampled: Rollout = self.rollouts.roll_out(self.net.network, self.version, self._obs_statistics.weights())
            return sampled
        rewards = np.concatenate([self._learning_rewards(each) for each in batches], axis=1)
        batch, normalize = join_envs(batches), self._obs_statistics.normalize
        if batch.last_obs is not None:
            final = None if batch.final_obs is None else normalize(batch.final_obs)
            batch = replace(batch, last_obs=normalize(batch.last_obs), final_obs=final)
        return Rollout(batch, rewards, normalize(batch.flat_obs()))

    def means(self, trained: Sequence[Any], rollout: Rollout) -> dict[str, float]:
        """Of the figures of gradient steps (`net.train`), waiting for them. NonFiniteError names where NaN or infinity
        is, unless such steps are to be left out."""
        figures = self.net.read(trained) if trained else []
        bad = [each for each in figures if not math.isfinite(each["gradient_norm"])]
        if bad and self.config.non_finite == "stop":
            terms = {name: number for name, number in bad[0].items() if name != "gradient_norm"}
            raise self.non_finite(terms, rollout.inputs)
        return self.step_metrics(figures)

    def publish_learnt(self, rollout: Rollout, metrics: Mapping[str, float] | None = None) -> UpdateReport:
        """Weights under version + 1. Statistics of observations come after the training: the log-probabilities in this
        batch are under those of before."""
        batch = rollout.batch
        rollout.lap("train")
        rollout.measure(self._obs_statistics)
        self.env_steps += batch.env_steps
        self.publish_next()
        rollout.lap("publish")
        told = {f"rollout/{name}": seconds for name, seconds in batch.timing.items()} | rollout.told
        metrics = told | (rollout.seconds | dict(metrics) if metrics else {})
        metrics["learner/weights_version"] = self.version
        return UpdateReport(batch.env_steps, batch.episodes, metrics, rollout.num_unlisted)

    def weights(self) -> Weights:
        if self.first_measured == math.inf and not self._obs_statistics.is_empty:
            self.first_measured = self.version
        return super().weights()

    def beside(self) -> Weights:
        """The statistics that observations are to be normalised with."""
        return self._obs_statistics.weights()


def non_finite_error(
    columns: Mapping[str, Obs],
    losses: Mapping[str, float],
    gradients: Sequence[str],
    *,
    place: str,
    version: int,
    scaling: str = SCALING,
) -> NonFiniteError:
    """columns: what the loss was computed from; losses: its terms; gradients: names of those that are not finite;
    place: of the minibatch, for the user; version: of the weights; scaling: what makes such numbers smaller."""
    inputs = [
        name
        for name, column in columns.items()
        for leaf in (column.values() if isinstance(column, dict) else [column])
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()
    ]
    terms = [name for name, value in losses.items() if not math.isfinite(value)]
    if inputs:
        where = f"batch columns {inputs}"
    elif terms:
        where = f"loss terms {terms}"
    else:
        where = f"gradients {gradients}"
    return NonFiniteError(
        f"NaN or infinity in the {where} {place}; weights of version {version} are unharmed. Lower learning_rate, "
        f"{scaling}, or omit such minibatches: --set non_finite=skip"
    )
