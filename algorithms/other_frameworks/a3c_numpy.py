"""A3C's network and loss in plain numpy, for plain MLPs: the numbers of `a3c_loss` and `TorchA3C` in algorithms/a3c.py,
with the gradient of the loss written out."""

from __future__ import annotations

import numpy as np

from rlplat.algorithms.a3c import LOSS_STATS, A3CConfig
from rlplat.rl.interfaces import Array, Obs, Weights
from rlplat.rl.learning.numpy_learning import NumpyTrainee
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.sample_batch import SampleBatch


class NumpyA3C:
    """Network and gradient in numpy; what its methods mean is said by `TorchA3C`."""

    def __init__(
        self, config: A3CConfig, spec: PolicySpec, seed: np.random.SeedSequence, num_threads: int
    ) -> None:
        self.trainee = NumpyTrainee(config, spec, seed)

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
        assert isinstance(obs, np.ndarray)
        rows = batch.valid_rows()
        size = np.float32(max(1, len(rows)))
        network = self.trainee.network
        with np.errstate(all="ignore"):  # NaN and infinity show in the gradients
            inputs = obs.reshape(len(obs), -1)[rows].astype(np.float32, copy=False)
            distribution, values = network.forward(inputs)
            log_probs, entropies = distribution.evaluate(batch.flat("actions")[rows])
            advantages, errors = advantages.reshape(-1)[rows], values - returns.reshape(-1)[rows]
            stats = (
                -(log_probs * advantages).sum() / size,
                np.float32(0.5) * np.square(errors).sum() / size,
                entropies.sum() / size,
            )
            d_entropies = np.full(len(rows), -entropy_coef / size, np.float32)
            d_params, d_log_std = distribution.gradients(advantages / -size, d_entropies)
            network.backward(d_params, d_log_std, errors * (np.float32(value_coef) / size))
        gradients = {name: array.copy() for name, array in network.gradients.items()}
        return gradients, dict(zip(LOSS_STATS, map(float, stats), strict=True))
