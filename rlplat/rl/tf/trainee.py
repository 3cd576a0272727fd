"""`Trainee`: a network that is trained on TensorFlow, with what every algorithm keeps beside it; see rl/torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlplat.rl.algorithm_config import weight_decay_of
from rlplat.rl.interfaces import Weights
from rlplat.rl.policies.framework_check import GradientNorms
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import resolve_device, resolve_precision, seeded, set_up
from rlplat.rl.tf.tensors import load_weights, named_variables, weights_of


class Adam:
    """Kingma & Ba 2015, algorithm 1, or AdamW (weight_decay), for named variables (`weights.named_variables`)."""

    def __init__(
        self,
        variables: dict[str, tf.Variable],
        *,
        epsilon: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        self._variables = variables
        self._epsilon, self._betas, self._weight_decay = epsilon, betas, weight_decay
        self._means = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables.values()]
        self._squares = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables.values()]
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor], learning_rate: Any, max_norm: Any = math.inf) -> tf.Tensor:
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
            if self._weight_decay:
                variable.assign(variable * (1.0 - learning_rate * self._weight_decay))
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


class Trainee(GradientNorms):
    """The network on its device and in its precision; Adam; weights and state as numpy.

    trainee = Trainee(config, spec, seed, lambda precision: make_network(spec, precision), check)
    norms = trainee.descend(trainee.gradients(tape, loss), learning_rate)       # in a tf.function
    total_norms = trainee.norms_of(the norms of several such steps)
    """

    def __init__(
        self,
        config: Any,
        spec: PolicySpec,
        seed: np.random.SeedSequence,
        make: Callable[[tf.DType], Any],
        check: Callable[[Any], None],
        *,
        device: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        """config: of an algorithm; device, num_threads: others than `learner` says. check: raises where the network
        does not fit, and builds what is built at the first call. Without `adam_epsilon` in the config there is no
        optimizer: gradients go elsewhere."""
        learner = config.learner
        set_up(
            learner.num_threads if num_threads is None else num_threads,
            spec,
            deterministic=config.deterministic,
        )
        self.device = device or resolve_device(learner.device, spec)
        with tf.device(self.device):
            with seeded(seed):
                self.network = make(resolve_precision(learner.precision, spec, self.device))
                check(self.network)
            self.variables = named_variables(self.network)
            self.names = list(self.variables)
            epsilon = getattr(config, "adam_epsilon", None)
            decay = weight_decay_of(config)
            self._adam = None if epsilon is None else Adam(self.variables, epsilon=epsilon, weight_decay=decay)
        self._max_norm = config.max_gradient_norm or math.inf

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        """In the order of the variables."""
        gradients = tape.gradient(loss, list(self.variables.values()))
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def descend(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """The norms of `Adam.apply`. One of all together that is not finite changed nothing."""
        assert self._adam is not None, "a config without adam_epsilon has no optimizer here"
        return self._adam.apply(gradients, learning_rate, self._max_norm)

    def weights(self) -> Weights:
        return weights_of(self.network)

    def set_weights(self, weights: Weights) -> None:
        load_weights(self.network, weights)

    def get_state(self) -> dict[str, Any]:
        assert self._adam is not None
        return {"weights": self.weights(), "optimizer": self._adam.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        assert self._adam is not None
        self.set_weights(state["weights"])
        self._adam.set_state(state["optimizer"])
