"""Adam on TensorFlow's fused kernel; the numbers, the clipping and the state of rl/torch/optimizers.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlplat.rl.tf import tf


class Adam:
    """Kingma & Ba 2015, algorithm 1 (no weight decay), for named variables (`weights.named_variables`)."""

    def __init__(
        self, variables: dict[str, tf.Variable], *, epsilon: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self._variables = variables
        self._epsilon, self._betas = epsilon, betas
        self._means = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables.values()]
        self._squares = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables.values()]
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def apply(
        self, gradients: Sequence[tf.Tensor], learning_rate: Any, max_norm: Any = math.inf
    ) -> tf.Tensor:
        """Clip the gradients to the global norm `max_norm` (Pascanu et al. 2013) and descend; for use in a tf.function.

        Returns float32[P + 1]: the norm of every gradient before clipping, and the global one; when that is not finite
        nothing is changed. learning_rate, max_norm: numbers or float32[].
        """
        norms = tf.stack([tf.norm(gradient) for gradient in gradients])
        norm = tf.norm(norms)
        scale = tf.maximum((norm + 1e-6) / max_norm, 1.0)
        tf.cond(
            tf.math.is_finite(norm),
            lambda: self._descend([gradient / scale for gradient in gradients], learning_rate),
            lambda: False,
        )
        return tf.concat([norms, norm[None]], axis=0)

    def _descend(self, gradients: Sequence[tf.Tensor], learning_rate: Any) -> tf.Tensor:
        step = tf.cast(self._step.assign_add(1), tf.float64)
        powers = [tf.constant(beta, tf.float64) ** step for beta in self._betas]
        # The kernel adds epsilon to sqrt(v) before v's bias is corrected, the paper after: hence the factor.
        epsilon = tf.cast(self._epsilon * tf.sqrt(1.0 - powers[1]), tf.float32)
        for variable, mean, square, gradient in zip(
            self._variables.values(), self._means, self._squares, gradients, strict=True
        ):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=tf.cast(powers[0], tf.float32),
                beta2_power=tf.cast(powers[1], tf.float32),
                lr=learning_rate,
                beta1=self._betas[0],
                beta2=self._betas[1],
                epsilon=epsilon,
                grad=gradient,
            )
        return True

    def get_state(self) -> dict[str, dict[str, Any]]:
        """`step`, `exp_avg` (first moment), `exp_avg_sq` (second) by parameter name, as numpy."""
        step = np.array(self._step.numpy())
        return {
            name: {"step": step.copy(), "exp_avg": mean.numpy(), "exp_avg_sq": square.numpy()}
            for name, mean, square in zip(self._variables, self._means, self._squares, strict=True)
        }

    def set_state(self, state: dict[str, dict[str, Any]]) -> None:
        for name, mean, square in zip(self._variables, self._means, self._squares, strict=True):
            mean.assign(state[name]["exp_avg"])
            square.assign(state[name]["exp_avg_sq"])
            self._step.assign(int(state[name]["step"]))  # the same for all: they step together
