"""A3C's network and the gradient of its loss on TensorFlow: the numbers of `a3c_loss` and `TorchA3C` in
algorithms/a3c.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.algorithms.a3c import LOSS_STATS, A3CConfig
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import CPU
from rlplat.rl.tf.networks import check_network, make_network
from rlplat.rl.tf.tensors import FLOAT, action_signature, graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.trainee import Trainee


def tf_a3c_loss(
    log_probs: tf.Tensor,
    entropies: tf.Tensor,
    values: tf.Tensor,
    advantages: tf.Tensor,
    returns: tf.Tensor,
    *,
    value_coef: Any,
    entropy_coef: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss whose gradient is that of the paper (section 4.3; signs turned): (loss, stats float32[3]).

    Formulas, arguments and stats as in `rlplat.algorithms.a3c.a3c_loss`; coefficients are numbers or float32[].
    """
    policy_loss = -tf.reduce_mean(log_probs * advantages)
    value_loss = 0.5 * tf.reduce_mean(tf.square(values - returns))
    entropy = tf.reduce_mean(entropies)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    return loss, tf.stack([policy_loss, value_loss, entropy])


class TfA3C:
    """The network on TensorFlow and the gradient of its loss; arrays in, arrays out, as in `TorchA3C`."""

    def __init__(
        self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence, num_threads: int
    ) -> None:
        """num_threads: of the framework, for one worker; 0 leaves it to the framework's own rule."""
        self.trainee = Trainee(
            config,
            spec,
            seed,
            lambda precision: make_network(spec, precision),
            lambda network: check_network(network, spec),
            device=CPU,
            num_threads=num_threads,
        )
        self._spec, self._network = spec, self.trainee.network
        state_size = int(getattr(self._network, "state_size", 0))
        self._has_core = state_size > 0
        self._gradients = graph(
            self._gradients_of_rows,
            obs_signature(spec.obs),
            action_signature(spec.action),
            rows(2),
            rows(state_size),
            tf.TensorSpec([None, None], tf.bool),
            rows(dtype=tf.bool),
            FLOAT,
            FLOAT,
        )

    def gradients(
        self,
        obs: Obs,
        batch: SampleBatch,
        advantages: Array,
        returns: Array,
        *,
        value_coef: float,
        entropy_coef: float,
    ) -> tuple[Weights, dict[str, float]]:
        """(gradients by name, float32 and contiguous; LOSS_STATS by name).

        obs: [T*B, ...], normalised; advantages, returns: float32[T, B]. The batch brings actions, the core's state and
        which rows count: all rows go through the network, in order, the loss is over the valid ones.
        """
        stats, gradients = self._gradients(
            obs_tensors(obs, self._spec),
            batch.flat("actions"),
            np.stack([advantages.reshape(-1), returns.reshape(-1)], axis=1).astype(np.float32, copy=False),
            batch.core_state if self._has_core else np.zeros((0, 0), np.float32),
            episode_starts(batch),
            batch.flat("valid"),
            np.float32(value_coef),
            np.float32(entropy_coef),
        )
        names = self.trainee.variables
        arrays = {name: gradient.numpy() for name, gradient in zip(names, gradients, strict=True)}
        return arrays, dict(zip(LOSS_STATS, stats.numpy().tolist(), strict=True))

    def _gradients_of_rows(
        self,
        obs: Any,
        actions: tf.Tensor,
        targets: tf.Tensor,
        core_state: tf.Tensor,
        starts: tf.Tensor,
        valid: tf.Tensor,
        value_coef: tf.Tensor,
        entropy_coef: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """(stats, gradients in the order of the variables); targets: float32[N, 2], advantages and returns."""
        with tf.device(CPU):
            state = core_state if self._has_core else None
            with tf.GradientTape() as tape:
                distribution, values, _ = self._network(obs, state, starts)
                log_probs, entropies = distribution.log_prob(actions), distribution.entropy()
                log_probs, entropies, values, targets = (
                    tf.boolean_mask(each, valid) for each in (log_probs, entropies, values, targets)
                )
                advantages, returns = tf.unstack(targets, axis=1)
                loss, stats = tf_a3c_loss(
                    log_probs,
                    entropies,
                    values,
                    advantages,
                    returns,
                    value_coef=value_coef,
                    entropy_coef=entropy_coef,
                )
            return stats, self.trainee.gradients(tape, loss)
