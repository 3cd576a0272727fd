"""`NumpyTrainee`: a `NumpyNetwork` that is trained, with what every algorithm keeps beside it; see rl/torch/trainee.py.

Weights and Adam's moments have the names, shapes and layout that torch's have: a checkpoint of one goes on under the
other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Weights
from rlplat.rl.learning.numpy_optimizers import Adam, clip_by_global_norm
from rlplat.rl.policies.numpy_network import NumpyNetwork, views
from rlplat.rl.policies.spec import PolicySpec

FLAT = "all"
"""By which the optimizer knows the array of all parameters."""


class NumpyTrainee:
    """distribution, values = trainee.network.forward(obs)
    trainee.network.backward(...)
    norm = trainee.descend(learning_rate)
    """

    def __init__(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        """config: of an algorithm; without `adam_epsilon` there is no optimizer: gradients go elsewhere."""
        self.network = NumpyNetwork(spec, np.random.Generator(np.random.PCG64(seed)))
        self._max_norm = config.max_gradient_norm or math.inf
        epsilon = getattr(config, "adam_epsilon", None)
        self._adam = None if epsilon is None else Adam(epsilon=epsilon)
        self._non_finite: list[str] = []

    def descend(self, learning_rate: float) -> float:
        """One step along the network's gradients -> their norm before clipping. One that is not finite changed
        nothing."""
        assert self._adam is not None, "a config without adam_epsilon has no optimizer here"
        gradients = {FLAT: self.network.flat_gradients}
        norm = clip_by_global_norm(gradients, self._max_norm)
        if math.isfinite(norm):
            self._adam.step({FLAT: self.network.flat}, gradients, learning_rate)
        else:
            named = self.network.gradients.items()
            self._non_finite = [name for name, array in named if not np.isfinite(array).all()]
        return norm

    def non_finite_gradients(self) -> list[str]:
        """Names of the parameters whose gradients held NaN or infinity in the last step with such."""
        return self._non_finite

    def weights(self) -> Weights:
        """A copy."""
        return {name: array.copy() for name, array in self.network.weights.items()}

    def set_weights(self, weights: Weights) -> None:
        """Further names (normaliser statistics) are left alone."""
        for name, array in self.network.weights.items():
            if name not in weights or weights[name].shape != array.shape:
                has = f"has shape {weights[name].shape}" if name in weights else "is missing"
                raise CheckpointError(
                    f"weights: {name!r} {has}, but the network of the config has {array.shape}"
                )
            array[...] = weights[name]

    def get_state(self) -> dict[str, Any]:
        assert self._adam is not None
        state = self._adam.get_state()
        step = np.array(state["steps"], np.float32)
        zeros = np.zeros_like(self.network.flat)
        means, squares = (
            views(state["slots"][slot].get(FLAT, zeros), self.network.shapes) for slot in ("means", "squares")
        )
        optimizer = {
            name: {"step": step.copy(), "exp_avg": means[name].copy(), "exp_avg_sq": squares[name].copy()}
            for name in means
        }
        return {"weights": self.weights(), "optimizer": optimizer}

    def set_state(self, state: dict[str, Any]) -> None:
        assert self._adam is not None
        self.set_weights(state["weights"])
        slots = {}
        for slot, key in (("means", "exp_avg"), ("squares", "exp_avg_sq")):
            flat = np.zeros_like(self.network.flat)
            for name, array in views(flat, self.network.shapes).items():
                array[...] = state["optimizer"][name][key]
            slots[slot] = {FLAT: flat}
        steps = max(int(kept["step"]) for kept in state["optimizer"].values())
        self._adam.set_state({"slots": slots, "steps": steps})
