"""PPO's network, loss and optimizer on TensorFlow: the numbers of `ppo_loss` and `TorchPPO` in algorithms/ppo.py."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlplat.algorithms.ppo import PPOConfig
from rlplat.errors import ConfigError
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.rollout import Rollout, Rows
from rlplat.rl.tf import tf
from rlplat.rl.tf.networks import check_network, make_network
from rlplat.rl.tf.tensors import FLOAT, action_signature, graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.trainee import Trainee

COLUMNS = ("log_probs", "values", "advantages", "returns")
SCALARS = ("clip_range", "value_coef", "entropy_coef", "mean", "scale")
STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def tf_ppo_loss(
    log_probs: tf.Tensor, entropies: tf.Tensor, values: tf.Tensor, minibatch: Any, config: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (loss, STATS float32[5]).

    Formulas as in `rlplat.algorithms.ppo.ppo_loss`; minibatch: with its log_probs, values, advantages and returns;
    config: numbers or float32[].
    """
    advantages, returns, clip_range = minibatch.advantages, minibatch.returns, config.clip_range

    log_ratios = log_probs - minibatch.log_probs
    ratios = tf.exp(log_ratios)
    clipped_ratios = tf.clip_by_value(ratios, 1.0 - clip_range, 1.0 + clip_range)
    policy_loss = -tf.reduce_mean(tf.minimum(ratios * advantages, clipped_ratios * advantages))

    value_errors = tf.square(values - returns)
    if config.clip_value_loss:
        moves = tf.clip_by_value(values - minibatch.values, -clip_range, clip_range)
        value_errors = tf.maximum(value_errors, tf.square(minibatch.values + moves - returns))
    value_loss = 0.5 * tf.reduce_mean(value_errors)

    entropy = tf.reduce_mean(entropies)
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    approx_kl = tf.reduce_mean(ratios - 1.0 - log_ratios)  # k3, see ppo_loss
    clip_fraction = tf.reduce_mean(tf.cast(tf.abs(ratios - 1.0) > clip_range, tf.float32))
    return loss, tf.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction])


class TfPPO:
    """Network, optimizer and loss on TensorFlow; what its methods mean is said by `ActorCriticNet`.

    A minibatch is one call of one graph, whatever its size: gathers, forward and backward pass, clipping, Adam.
    """

    def __init__(self, config: PPOConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        if config.learner.num_learners > 1:
            raise ConfigError(
                f"learner.num_learners={config.learner.num_learners} needs framework=torch (gradients are averaged by "
                "torch.distributed); with framework=tf set it to 1"
            )
        self.trainee = Trainee(
            config,
            spec,
            seed,
            lambda precision: make_network(spec, precision),
            lambda network: check_network(network, spec),
        )
        self._spec, self.device, self.network = spec, self.trainee.device, self.trainee.network
        self._clip_value_loss = config.clip_value_loss
        state_size = int(getattr(self.network, "state_size", 0))
        self._has_core = state_size > 0
        round_signature = {
            "obs": obs_signature(spec.obs),
            "actions": action_signature(spec.action),
            "columns": rows(len(COLUMNS)),
            "core_state": rows(state_size),
            "starts": rows(dtype=tf.bool),
            "valid": rows(dtype=tf.bool),
        }
        indices = tf.TensorSpec([None, None] if self._has_core else [None], tf.int64)
        scalars = dict.fromkeys(SCALARS, FLOAT)
        self._step = graph(self._train_rows, round_signature, indices, FLOAT, scalars)

    def load(self, rollout: Rollout) -> None:
        batch, columns = rollout.batch, rollout.columns
        arrays = {
            "actions": batch.flat("actions"),
            "columns": np.stack([columns[name] for name in COLUMNS], axis=1).astype(np.float32, copy=False),
            "core_state": batch.core_state if self._has_core else np.zeros((0, 0), np.float32),
            "starts": rollout.starts.reshape(-1),
            "valid": batch.flat("valid"),
        }
        with tf.device(self.device):
            self._round = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
            self._round["obs"] = obs_tensors(rollout.obs, self._spec)

    def train(self, chosen: Rows, config: Any) -> tuple[tf.Tensor, tf.Tensor]:
        assert chosen.share == 1.0, "one learner trains on whole minibatches"
        assert config.clip_value_loss == self._clip_value_loss, "this switch is part of the graph"
        indices = chosen.rows if chosen.envs is None else chosen.rows.reshape(-1, len(chosen.envs))
        scalars = {name: np.float32(getattr(chosen if name in ("mean", "scale") else config, name)) for name in SCALARS}
        trained: tuple[tf.Tensor, tf.Tensor] = self._step(
            self._round, indices, np.float32(config.learning_rate), scalars
        )
        return trained

    def read(self, trained: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> list[dict[str, float]]:
        stats, norms = (np.stack([each.numpy() for each in column]) for column in zip(*trained, strict=True))
        both = np.column_stack([stats, self.trainee.norms_of(norms)]).tolist()
        return [dict(zip((*STATS, "gradient_norm"), each, strict=True)) for each in both]

    def _train_rows(
        self,
        round_: dict[str, Any],
        indices: tf.Tensor,
        learning_rate: tf.Tensor,
        scalars: dict[str, tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(stats, the norms of `Adam.apply`)"""
        with tf.device(self.device):
            stats, gradients = self.gradients(round_, indices, scalars)
            return stats, self.trainee.descend(gradients, learning_rate)

    def gradients(
        self, round_: dict[str, Any], indices: tf.Tensor, scalars: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """(stats, gradients in the order of the variables) of the minibatch with these rows of the round."""
        chosen = tf.reshape(indices, [-1])
        obs = tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), round_["obs"])
        actions, columns = tf.gather(round_["actions"], chosen), tf.gather(round_["columns"], chosen)
        state = starts = None
        if self._has_core:
            state = tf.gather(round_["core_state"], indices[0])  # row of t = 0: the environment
            starts = tf.gather(round_["starts"], indices)
        with tf.GradientTape() as tape:
            distribution, values, _ = self.network(obs, state, starts)
            log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
            if self._has_core:  # without one, rows that do not count were never chosen
                count = tf.gather(round_["valid"], chosen)
                log_probs, entropies, values, columns = (
                    tf.boolean_mask(each, count) for each in (log_probs, entropies, values, columns)
                )
            minibatch = SimpleNamespace(**dict(zip(COLUMNS, tf.unstack(columns, axis=1), strict=True)))
            minibatch.advantages = (minibatch.advantages - scalars["mean"]) * scalars["scale"]
            config = SimpleNamespace(clip_value_loss=self._clip_value_loss, **scalars)
            loss, stats = tf_ppo_loss(log_probs, entropies, values, minibatch, config)
        return stats, self.trainee.gradients(tape, loss)
