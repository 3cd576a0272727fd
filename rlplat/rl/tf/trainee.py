"""`Trainee`: a network that is trained on TensorFlow, with what every algorithm keeps beside it; see rl/torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Weights
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.adam import Adam
from rlplat.rl.tf.device import resolve_device, resolve_precision, seeded, set_up
from rlplat.rl.tf.weights import load_weights, named_variables, weights_of


class Trainee:
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
            epsilon = getattr(config, "adam_epsilon", None)
            self._adam = None if epsilon is None else Adam(self.variables, epsilon=epsilon)
        self._max_norm = config.max_gradient_norm or math.inf
        self._non_finite: list[str] = []

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        """In the order of the variables."""
        gradients = tape.gradient(loss, list(self.variables.values()))
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def descend(self, gradients: list[tf.Tensor], learning_rate: tf.Tensor) -> tf.Tensor:
        """The norms of `Adam.apply`. One of all together that is not finite changed nothing."""
        assert self._adam is not None, "a config without adam_epsilon has no optimizer here"
        return self._adam.apply(gradients, learning_rate, self._max_norm)

    def norms_of(self, norms: Array) -> Array:
        """The norms of all gradients before clipping, float32[K], of K steps. norms: float32[K, P + 1] of `descend`."""
        for parts in norms[~np.isfinite(norms[:, -1])][:1]:
            named = zip(self.variables, parts, strict=False)  # the last norm is that of all together
            self._non_finite = [name for name, norm in named if not math.isfinite(norm)]
        total: Array = norms[:, -1]
        return total

    def non_finite_gradients(self) -> list[str]:
        """Names of the parameters whose gradients held NaN or infinity in the first step with such that `norms_of` was
        last told of."""
        return self._non_finite

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
