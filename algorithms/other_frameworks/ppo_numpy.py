"""PPO's network, loss and optimizer in plain numpy, for plain MLPs: the numbers of `ppo_loss` and `TorchPPO` in
algorithms/ppo.py, with the gradient of the loss written out."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlplat.algorithms.ppo import PPOConfig
from rlplat.rl.interfaces import Array
from rlplat.rl.learning.numpy_learning import NumpyTrainee
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.rollout import Rollout, Rows

STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def numpy_ppo_loss(
    log_probs: Array, entropies: Array, values: Array, minibatch: Any, config: Any
) -> tuple[list[float], Array, Array, Array]:
    """The loss of one minibatch (Schulman et al. 2017, eq. 7 and 9, signs turned): (STATS, and its derivatives by
    log_probs, entropies and values, float32[M] each).

    Formulas as in `rlplat.algorithms.ppo.ppo_loss`; minibatch: with its log_probs, values, advantages and returns.
    """
    size, clip_range = np.float32(len(values)), config.clip_range
    advantages, returns = minibatch.advantages, minibatch.returns

    log_ratios = log_probs - minibatch.log_probs
    ratios = np.exp(log_ratios)
    gains = ratios * advantages
    clipped_gains = np.clip(ratios, 1.0 - clip_range, 1.0 + clip_range) * advantages
    policy_loss = -np.minimum(gains, clipped_gains).mean()
    # Beyond the clip range the smaller of the two does not move with the ratio where it is the clipped one. A product,
    # so that a ratio of infinity gives NaN, as it does in torch.
    d_log_probs = gains * (gains <= clipped_gains) / -size

    errors = values - returns
    value_errors = np.square(errors)
    if config.clip_value_loss:
        moves = values - minibatch.values
        clipped_errors = minibatch.values + np.clip(moves, -clip_range, clip_range) - returns
        clipped_squares = np.square(clipped_errors)
        inside = np.abs(moves) <= clip_range
        errors = np.where(value_errors >= clipped_squares, errors, clipped_errors * inside)
        value_errors = np.maximum(value_errors, clipped_squares)
    value_loss = np.float32(0.5) * value_errors.mean()
    d_values = errors * (np.float32(config.value_coef) / size)

    approx_kl = (ratios - np.float32(1.0) - log_ratios).mean()  # k3, see ppo_loss
    clip_fraction = (np.abs(ratios - np.float32(1.0)) > clip_range).mean()
    d_entropies = np.full(len(values), -config.entropy_coef / size, np.float32)
    stats = [policy_loss, value_loss, entropies.mean(), approx_kl, clip_fraction]
    return [float(stat) for stat in stats], d_log_probs, d_entropies, d_values


class NumpyPPO:
    """Network, optimizer and loss in numpy; what its methods mean is said by `ActorCriticNet`."""

    def __init__(self, config: PPOConfig, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self.trainee = NumpyTrainee(config, spec, seed)

    def load(self, rollout: Rollout) -> None:
        assert isinstance(rollout.obs, np.ndarray)
        self._obs = rollout.obs.reshape(len(rollout.obs), -1).astype(np.float32, copy=False)
        self._actions, self._columns = rollout.batch.flat("actions"), rollout.columns

    def train(self, rows: Rows, config: Any) -> dict[str, float]:
        chosen, network = rows.rows, self.trainee.network
        columns = {name: column[chosen] for name, column in self._columns.items()}
        minibatch = SimpleNamespace(**columns)
        minibatch.advantages = (minibatch.advantages - rows.mean) * rows.scale
        with np.errstate(all="ignore"):  # NaN and infinity show in the norm
            distribution, values = network.forward(self._obs[chosen])
            log_probs, entropies = distribution.evaluate(self._actions[chosen])
            stats, d_log_probs, d_entropies, d_values = numpy_ppo_loss(log_probs, entropies, values, minibatch, config)
            network.backward(*distribution.gradients(d_log_probs, d_entropies), d_values)
            norm = self.trainee.descend(config.learning_rate)
        return dict(zip(STATS, stats, strict=True)) | {"gradient_norm": norm}

    def read(self, trained: Sequence[dict[str, float]]) -> Sequence[dict[str, float]]:
        return trained
