"""A3C's network and the gradient of its loss on TensorFlow: the numbers of `a3c_loss` and `TorchA3C` in
algorithms/a3c.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.algorithms.a3c import A3CConfig
from rlplat.rl.interfaces import Weights
from rlplat.rl.policies.spec import PolicySpec, worker_threads
from rlplat.rl.sampling.rollout import Rollout, Rows
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import CPU
from rlplat.rl.tf.networks import check_network, make_network
from rlplat.rl.tf.tensors import FLOAT, action_signature, graph, obs_signature, obs_tensors, rows
from rlplat.rl.tf.trainee import Trainee

STATS = ("policy_loss", "value_loss", "entropy")


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
    """The loss whose gradient is that of the paper (section 4.3; signs turned): (loss, STATS float32[3]).

    Formulas as in `rlplat.algorithms.a3c.a3c_loss`; coefficients are numbers or float32[].
    """
    policy_loss = -tf.reduce_mean(log_probs * advantages)
    value_loss = 0.5 * tf.reduce_mean(tf.square(values - returns))
    entropy = tf.reduce_mean(entropies)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    return loss, tf.stack([policy_loss, value_loss, entropy])


class TfA3C:
    """The network on TensorFlow and the gradient of its loss; what its methods mean is said by `ActorCriticNet`."""

    def __init__(self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self.trainee = Trainee(
            config,
            spec,
            seed,
            lambda precision: make_network(spec, precision),
            lambda network: check_network(network, spec),
            device=CPU,
            num_threads=worker_threads(config, spec),
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

    def load(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def gradients(self, chosen: Rows, config: Any) -> tuple[Weights, dict[str, float]]:
        batch, rollout = self._rollout.batch, self._rollout
        advantages = (rollout.advantages - chosen.mean) * chosen.scale
        targets = np.stack([advantages.reshape(-1), rollout.returns.reshape(-1)], axis=1)
        stats, gradients = self._gradients(
            obs_tensors(rollout.obs, self._spec),
            batch.flat("actions"),
            targets.astype(np.float32, copy=False),
            batch.core_state if self._has_core else np.zeros((0, 0), np.float32),
            rollout.starts,
            batch.flat("valid"),
            np.float32(config.value_coef),
            np.float32(config.entropy_coef),
        )
        names = self.trainee.variables
        arrays = {name: gradient.numpy() for name, gradient in zip(names, gradients, strict=True)}
        return arrays, dict(zip(STATS, stats.numpy().tolist(), strict=True))

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
