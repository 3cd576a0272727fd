"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): a bonus for observations that are not like those
seen before, where the environment's rewards are too rare to be found by chance.

    bonus    i_t = mean (predictor(s_t+1) - target(s_t+1))^2 / deviation of the discounted sums of bonuses so far

The target stays as it was drawn, the predictor is trained to say what it says: where both agree, something like it was
seen. Observations are normalised by their running mean and deviation and clipped to +-5. What bonuses are worth is told
by values of their own, for which an episode has no end (section 2.3): after a death comes what was often seen.

    rnd = RND(config, spec, seed)
    advantages, figures = rnd.learn(rollout.batch, config)      # to be added to those of the rewards

Different from the paper: these values have a network of their own, not a head of the policy's; bonuses are learnt by
`num_epochs` passes of their own, by all rows; statistics of observations begin with the first round, not with random
steps before it; images are what the policy sees, stacks included; the last action of a fragment, of which the next
fragment tells what came of it, has no bonus.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import ObsStatistics, RewardNormalizer, vector_leaves
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.sampling.returns import discounted_sum
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.saved import Saved
from rlplat.rl.torch.device import resolve_device
from rlplat.rl.torch.encoders import initialize_orthogonally, make_encoder
from rlplat.rl.torch.optimizers import adam_of
from rlplat.rl.torch.tensor_rows import TensorRows, tensor_on

NUM_OUTPUTS = 64
OBS_CLIP = 5.0


class Outputs(nn.Module):
    """Observations, as the policy's network takes them -> float32[N, num_outputs]: an encoder like the policy's, then
    layers and a head; all initialised orthogonally, with gain sqrt(2)."""

    def __init__(self, spec: PolicySpec, num_outputs: int, num_layers: int = 0) -> None:
        super().__init__()
        self.encoder = make_encoder(spec.actor)
        size = int(self.encoder.num_features)
        layers = [layer for _ in range(num_layers) for layer in (nn.Linear(size, size), nn.ReLU())]
        self.head = nn.Sequential(*layers, nn.Linear(size, num_outputs))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                initialize_orthogonally(module, math.sqrt(2.0), keeps=False)

    def forward(self, obs: Any) -> Tensor:
        outputs: Tensor = self.head(self.encoder(obs))
        return outputs


def bonus_advantages(bonuses: Array, values: Array, valid: Array, discount: float, gae_lambda: float) -> Array:
    """float32[T, B]: generalised advantages of i_t = bonuses[t + 1], of an episode without end. Rows that are not valid
    are left out; the last one has none.

    bonuses, values: float32[T, B], of the observations of the rows; valid: bool[T, B].
    """
    discounts = np.where(valid, discount, 1.0).astype(np.float32)
    deltas = np.zeros_like(values)
    deltas[:-1] = valid[:-1] * bonuses[1:] + discounts[:-1] * values[1:] - values[:-1]
    return discounted_sum(deltas, discounts * np.where(valid, gae_lambda, 1.0))


class RND(Saved):
    """The networks, their optimizer, statistics of observations and of bonuses."""

    saved = {
        "target": "target",
        "trained": "trained",
        "optimizer": "_adam",
        "obs_statistics": "_obs_statistics",
        "bonuses": "_normalizer",
        "rng": "_rng",
    }

    def __init__(self, config: Any, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self._spec, self._device = spec, resolve_device(config.learner.device, spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed.generate_state(1)[0]))
            self.target = Outputs(spec, NUM_OUTPUTS).requires_grad_(False).to(self._device)
            nets = {"predictor": Outputs(spec, NUM_OUTPUTS, num_layers=1), "critic": Outputs(spec, 1)}
        self.trained = nn.ModuleDict(nets).to(self._device)
        self._adam = adam_of(config, self.trained)
        if isinstance(spec.obs, dict):
            is_measured = bool(vector_leaves(spec.obs))
        else:
            is_measured = spec.obs.kind == "vector" or (spec.obs.kind == "image" and spec.obs.dtype == "uint8")
        self._obs_statistics = ObsStatistics(spec.obs if is_measured else None, clip=OBS_CLIP)
        self._normalizer = RewardNormalizer(config.bonus_discount)
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def errors(self, obs: Any, wanted: Tensor) -> Tensor:
        """float32[N]; wanted: what the target says of these observations."""
        error: Tensor = (self.trained["predictor"](obs) - wanted).square().mean(dim=1)
        return error

    def learn(self, batch: SampleBatch, config: Any) -> tuple[Array, dict[str, float]]:
        """Advantages float32[T, B] of the bonuses in a round, from which networks and statistics learn -> and metrics.
        config: schedules in it are the numbers that they have come to."""
        raw, valid, shape = batch.flat_obs(), batch.valid, batch.shape
        if not valid.any():
            return np.zeros(shape, np.float32), {}
        self._obs_statistics.update(raw, valid.reshape(-1))
        self._obs_statistics.weights()  # what `normalize` uses from here on
        table = TensorRows(self._spec, self._obs_statistics.normalize(raw), valid.reshape(-1), {}, self._device)
        with torch.no_grad():
            obs = table.take()[0]
            wanted = self.target(obs)
            errors = self.errors(obs, wanted).numpy(force=True).reshape(shape)
            values = self.trained["critic"](obs).numpy(force=True).reshape(shape)
        bonuses = self._normalizer.normalize(errors, np.zeros_like(valid), valid)
        advantages = bonus_advantages(bonuses, values, valid, config.bonus_discount, config.gae_lambda)
        returns = tensor_on(self._device, (advantages + values).reshape(-1))
        for _ in range(config.num_epochs):
            order = self._rng.permutation(batch.valid_rows())
            for rows in np.array_split(order, max(1, round(len(order) / config.minibatch_size))):
                some, at = table.take(rows)[0], torch.from_numpy(rows).to(self._device)
                value_errors = self.trained["critic"](some)[:, 0] - returns[at]
                loss = self.errors(some, wanted[at]).mean() + 0.5 * value_errors.square().mean()
                self._adam.descend(loss, config.learning_rate)
        figures = {"bonus": bonuses[valid], "prediction_error": errors[valid]}
        return advantages, {f"learner/{name}": float(column.mean()) for name, column in figures.items()}
