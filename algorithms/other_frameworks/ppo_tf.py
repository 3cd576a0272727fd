"""PPO's network, loss and optimizer on TensorFlow: the numbers of `ppo_loss` and `TorchPPO` in algorithms/ppo.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlplat.algorithms.ppo import PPOConfig
from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.networks import check_network, make_network
from rlplat.rl.tf.tensors import FLOAT, action_signature, graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.trainee import Trainee

COLUMNS = ("log_probs", "values", "advantages", "returns")
LOSS_SCALARS = ("clip_range", "value_coef", "entropy_coef", "advantage_mean", "advantage_scale")


def tf_ppo_loss(
    log_probs: tf.Tensor,
    entropies: tf.Tensor,
    values: tf.Tensor,
    columns: Mapping[str, tf.Tensor],
    *,
    clip_range: Any,
    value_coef: Any,
    entropy_coef: Any,
    clip_value_loss: bool,
    advantage_mean: Any = 0.0,
    advantage_scale: Any = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (loss, stats float32[5]).

    Formulas, arguments and stats as in `rlplat.algorithms.ppo.ppo_loss`; coefficients are numbers or float32[].
    """
    advantages = (columns["advantages"] - advantage_mean) * advantage_scale
    returns = columns["returns"]

    log_ratios = log_probs - columns["log_probs"]
    ratios = tf.exp(log_ratios)
    clipped_ratios = tf.clip_by_value(ratios, 1.0 - clip_range, 1.0 + clip_range)
    policy_loss = -tf.reduce_mean(tf.minimum(ratios * advantages, clipped_ratios * advantages))

    value_errors = tf.square(values - returns)
    if clip_value_loss:
        moves = tf.clip_by_value(values - columns["values"], -clip_range, clip_range)
        value_errors = tf.maximum(value_errors, tf.square(columns["values"] + moves - returns))
    value_loss = 0.5 * tf.reduce_mean(value_errors)

    entropy = tf.reduce_mean(entropies)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    approx_kl = tf.reduce_mean(ratios - 1.0 - log_ratios)  # k3, see ppo_loss
    clip_fraction = tf.reduce_mean(tf.cast(tf.abs(ratios - 1.0) > clip_range, tf.float32))
    return loss, tf.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction])


class TfPPO:
    """Network, optimizer and loss on TensorFlow; what its methods mean is said by `TorchPPO`.

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
        scalars = dict.fromkeys(LOSS_SCALARS, FLOAT)
        self._step = graph(self._train_rows, round_signature, indices, FLOAT, scalars)

    def load_round(
        self,
        obs: Obs,
        actions: Array,
        columns: Mapping[str, Array],
        core_state: Array,
        starts: Array,
        valid: Array,
    ) -> None:
        """Take a round onto the device. obs, actions, columns: [N, ...], N = T*B; core_state: float32[B, S]; starts,
        valid: bool[N]."""
        arrays = {
            "actions": actions,
            "columns": np.stack([columns[name] for name in COLUMNS], axis=1).astype(np.float32, copy=False),
            "core_state": core_state if self._has_core else np.zeros((0, 0), np.float32),
            "starts": starts,
            "valid": valid,
        }
        with tf.device(self.device):
            self._round = {name: tf.convert_to_tensor(array) for name, array in arrays.items()}
            self._round["obs"] = obs_tensors(obs, self._spec)

    def train_minibatch(
        self, indices: Array, share: float, learning_rate: float, loss_arguments: dict[str, Any]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One gradient step -> what `read` takes.

        indices: int64[M] rows, or int64[T, M] whole fragments (with a core); share: 1.0.
        """
        assert share == 1.0, "one learner trains on whole minibatches"
        assert loss_arguments["clip_value_loss"] == self._clip_value_loss, "this switch is part of the graph"
        scalars = {"advantage_mean": 0.0, "advantage_scale": 1.0} | loss_arguments
        trained: tuple[tf.Tensor, tf.Tensor] = self._step(
            self._round,
            indices,
            np.float32(learning_rate),
            {name: np.float32(scalars[name]) for name in LOSS_SCALARS},
        )
        return trained

    def read(self, trained: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[Array, Array]:
        stats, norms = (np.stack([each.numpy() for each in column]) for column in zip(*trained, strict=True))
        return stats, self.trainee.norms_of(norms)

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
            loss, stats = tf_ppo_loss(
                log_probs,
                entropies,
                values,
                dict(zip(COLUMNS, tf.unstack(columns, axis=1), strict=True)),
                clip_value_loss=self._clip_value_loss,
                **scalars,
            )
        return stats, self.trainee.gradients(tape, loss)
