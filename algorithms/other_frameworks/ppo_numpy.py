"""PPO's network, loss and optimizer in plain numpy, for plain MLPs: the numbers of `ppo_loss` and `TorchPPO` in
algorithms/ppo.py, with the gradient of the loss written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlplat.algorithms.ppo import PPOConfig
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.learning.numpy_learning import NumpyNetwork, NumpyTrainee
from rlplat.rl.policies.spec import PolicySpec


def numpy_ppo_loss(
    log_probs: Array,
    entropies: Array,
    values: Array,
    columns: Mapping[str, Array],
    *,
    clip_range: float,
    value_coef: float,
    entropy_coef: float,
    clip_value_loss: bool,
    advantage_mean: float = 0.0,
    advantage_scale: float = 1.0,
) -> tuple[list[float], Array, Array, Array]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (stats, and its derivatives by
    log_probs, entropies and values, float32[M] each).

    Formulas, arguments and stats as in `rlplat.algorithms.ppo.ppo_loss`.
    """
    size = np.float32(len(values))
    advantages = (columns["advantages"] - advantage_mean) * advantage_scale
    returns = columns["returns"]

    log_ratios = log_probs - columns["log_probs"]
    ratios = np.exp(log_ratios)
    gains = ratios * advantages
    clipped_gains = np.clip(ratios, 1.0 - clip_range, 1.0 + clip_range) * advantages
    policy_loss = -np.minimum(gains, clipped_gains).mean()
    # Beyond the clip range the smaller of the two does not move with the ratio where it is the clipped one. A product,
    # so that a ratio of infinity gives NaN, as it does in torch.
    d_log_probs = gains * (gains <= clipped_gains) / -size

    errors = values - returns
    value_errors = np.square(errors)
    if clip_value_loss:
        moves = values - columns["values"]
        clipped_errors = columns["values"] + np.clip(moves, -clip_range, clip_range) - returns
        clipped_squares = np.square(clipped_errors)
        inside = np.abs(moves) <= clip_range
        errors = np.where(value_errors >= clipped_squares, errors, clipped_errors * inside)
        value_errors = np.maximum(value_errors, clipped_squares)
    value_loss = np.float32(0.5) * value_errors.mean()
    d_values = errors * (np.float32(value_coef) / size)

    approx_kl = (ratios - np.float32(1.0) - log_ratios).mean()  # k3, see ppo_loss
    clip_fraction = (np.abs(ratios - np.float32(1.0)) > clip_range).mean()
    d_entropies = np.full(len(values), -entropy_coef / size, np.float32)
    stats = [policy_loss, value_loss, entropies.mean(), approx_kl, clip_fraction]
    return [float(stat) for stat in stats], d_log_probs, d_entropies, d_values


class NumpyPPO:
    """Network, optimizer and loss in numpy; what its methods mean is said by `TorchPPO`."""

    def __init__(self, config: PPOConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self.trainee = NumpyTrainee(config, spec, seed)

    def load_round(
        self,
        obs: Obs,
        actions: Array,
        columns: Mapping[str, Array],
        core_state: Array,
        starts: Array,
        valid: Array,
    ) -> None:
        assert isinstance(obs, np.ndarray)
        self._obs = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        self._actions, self._columns = actions, columns

    def train_minibatch(
        self, indices: Array, share: float, learning_rate: float, loss_arguments: dict[str, Any]
    ) -> tuple[list[float], float]:
        """One gradient step -> what `read` takes.

        indices: int64[M] rows; share: 1.0.
        """
        with np.errstate(all="ignore"):  # NaN and infinity show in the norm
            return self._train_minibatch(self.trainee.network, indices, learning_rate, loss_arguments)

    def read(self, trained: Sequence[tuple[list[float], float]]) -> tuple[Array, Array]:
        stats, norms = zip(*trained, strict=True)
        return np.array(stats), np.array(norms)

    def _train_minibatch(
        self, network: NumpyNetwork, indices: Array, learning_rate: float, loss_arguments: dict[str, Any]
    ) -> tuple[list[float], float]:
        distribution, values = network.forward(self._obs[indices])
        log_probs, entropies = distribution.evaluate(self._actions[indices])
        columns = {name: column[indices] for name, column in self._columns.items()}
        stats, d_log_probs, d_entropies, d_values = numpy_ppo_loss(
            log_probs, entropies, values, columns, **loss_arguments
        )
        network.backward(*distribution.gradients(d_log_probs, d_entropies), d_values)
        return stats, self.trainee.descend(learning_rate)
