"""A3C's network and loss in plain numpy, for plain MLPs: the numbers of `a3c_loss` and `TorchA3C` in algorithms/a3c.py,
with the gradient of the loss written out."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.algorithms.a3c import A3CConfig
from rlplat.rl.interfaces import Weights
from rlplat.rl.learning.numpy_learning import NumpyTrainee
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.rollout import Rollout, Rows


class NumpyA3C:
    """Network and gradient in numpy; what its methods mean is said by `ActorCriticNet`."""

    def __init__(self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self.trainee = NumpyTrainee(config, spec, seed)

    def load(self, rollout: Rollout) -> None:
        self._rollout = rollout

    def gradients(self, chosen: Rows, config: Any) -> tuple[Weights, dict[str, float]]:
        rollout, network = self._rollout, self.trainee.network
        assert isinstance(rollout.obs, np.ndarray)
        rows = rollout.batch.valid_rows()
        size = np.float32(max(1, len(rows)))
        with np.errstate(all="ignore"):  # NaN and infinity show in the gradients
            obs = rollout.obs.reshape(len(rollout.obs), -1)[rows].astype(np.float32, copy=False)
            distribution, values = network.forward(obs)
            log_probs, entropies = distribution.evaluate(rollout.batch.flat("actions")[rows])
            columns = {name: column[rows] for name, column in rollout.columns.items()}
            advantages = (columns["advantages"] - chosen.mean) * chosen.scale
            errors = values - columns["returns"]
            stats = {
                "policy_loss": -(log_probs * advantages).sum() / size,
                "value_loss": np.float32(0.5) * np.square(errors).sum() / size,
                "entropy": entropies.sum() / size,
            }
            d_entropies = np.full(len(rows), -config.entropy_coef / size, np.float32)
            d_params, d_log_std = distribution.gradients(advantages / -size, d_entropies)
            network.backward(d_params, d_log_std, errors * (np.float32(config.value_coef) / size))
        gradients = {name: array.copy() for name, array in network.gradients.items()}
        return gradients, {name: float(number) for name, number in stats.items()}
