"""`DynamicsEnsemble`: probabilistic networks that predict what an action does (PETS: Chua et al. 2018, 1805.12114).

    (s, a) -> Gaussian over (s' - s, r), diagonal, and the probability that the episode terminates

E networks differ by their initialisation and by the rows that each is trained on (a bootstrap sample). Inputs and
targets are scaled to mean 0 and deviation 1 over the data. The weights of all lie side by side, [E, in, out], so that a
layer of all is one `baddbmm`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.interfaces import Array
from rlplat.rl.saved import Saved
from rlplat.rl.torch.optimizers import Adam

BOUNDS_COEF = 0.01
"""What the width between the bounds of the log-variance costs (PETS, appendix A.1)."""
FIRST_MIN_LOG_VAR, FIRST_MAX_LOG_VAR = -10.0, 0.5
LEAST_GAIN = 0.01
"""An epoch counts as better where it lowers a member's validation loss by this share."""
MOST_VALIDATION_ROWS = 5_000
LEAST_STD = 1e-6
"""A column that deviates by less is taken as constant, and not scaled."""


class Predicted(NamedTuple):
    """What happens in N states when N actions are taken."""

    next_obs: Array
    """float32[N, D]"""
    rewards: Array
    """float32[N]"""
    terminated: Array
    """bool[N]"""


class EnsembleNetwork(nn.Module):
    """float32[E, N, in] -> (means float32[E, N, out], log-variances likewise, logits of termination float32[E, N])."""

    def __init__(self, num_members: int, num_in: int, hidden_sizes: list[int], num_out: int) -> None:
        super().__init__()
        self.num_out = num_out
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for size_in, size_out in pairwise((num_in, *hidden_sizes, 2 * num_out + 1)):
            weight = torch.empty(num_members, size_in, size_out)
            nn.init.trunc_normal_(weight, std=0.5 / math.sqrt(size_in), a=-1.0, b=1.0)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(num_members, 1, size_out)))
        self.min_log_var = nn.Parameter(torch.full((num_out,), FIRST_MIN_LOG_VAR))
        self.max_log_var = nn.Parameter(torch.full((num_out,), FIRST_MAX_LOG_VAR))

    def forward(self, x: Tensor, members: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """members: int64[E'], whose networks are asked; all of them by default."""
        last = len(self.weights) - 1
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if members is not None:
                weight, bias = weight[members], bias[members]
            x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = F.silu(x)
        means, log_vars, logits = x.split([self.num_out, self.num_out, 1], dim=-1)
        log_vars = self.max_log_var - F.softplus(self.max_log_var - log_vars)
        log_vars = self.min_log_var + F.softplus(log_vars - self.min_log_var)
        return means, log_vars, logits.squeeze(-1)


def gaussian_nll(means: Tensor, log_vars: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """float32[E]: mean over the known targets of ((mean - target)^2 / var + log var) / 2. All [E, N, out]; known: 1, or
    0 where there is no target."""
    errors = (means - targets).square() * (-log_vars).exp() + log_vars
    return 0.5 * (errors * known).sum(dim=(1, 2)) / known.sum(dim=(1, 2))


class Rows(NamedTuple):
    """Experience as the networks take it, of one row or one for each member: [..., N, ...]."""

    inputs: Tensor
    targets: Tensor
    known: Tensor
    """1, or 0 where there is no target: where the episode terminated nobody kept the state that it ended in."""
    terminated: Tensor

    def take(self, rows: Tensor) -> Rows:
        return Rows(*(column[rows] for column in self))


class DynamicsEnsemble(Saved):
    """figures = ensemble.fit(obs, actions, rewards, next_obs, terminated)      # float32[N, D], ...
    next_obs, rewards, terminated = ensemble.predict(obs, actions)
    """

    saved = {
        "weights": "network",
        "optimizer": "_adam",
        "elites": "elites",
        "scales": "_scales",
        "knows_terminations": "_knows_terminations",
        "generator": "_generator",
    }

    def __init__(
        self, config: Any, num_obs: int, num_actions: int, device: torch.device, seed: np.random.SeedSequence
    ) -> None:
        """config: with the fields of `algorithms.mbpo.ModelConfig`; num_obs, num_actions: D and A."""
        self._config, self._num_obs, self._device = config, num_obs, device
        network_seed, draw_seed = (int(each) for each in seed.generate_state(2))
        num_in, num_out = num_obs + num_actions, num_obs + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(network_seed)
            self.network = EnsembleNetwork(config.ensemble_size, num_in, config.hidden_sizes, num_out)
        self.network.to(device)
        self._adam = Adam(self.network, epsilon=1e-8)
        self._generator = torch.Generator().manual_seed(draw_seed)
        self.elites = np.arange(config.num_elites)
        """int64[K]: the members that predict: those of the least validation loss."""
        self._scales = {"inputs": _Scale(num_in), "targets": _Scale(num_out)}
        self._knows_terminations = False

    # -- learning

    def fit(self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array) -> dict[str, float]:
        """Train on all of this experience, from the weights of the last time on, until no member has got better for
        `patience` epochs; each takes its best epoch, and the best members become the elites.

        obs, next_obs: float32[N, D]; actions: float32[N, A]; rewards: float32[N]; terminated: bool[N]. Figures: `loss`
        (validation loss of the elites), `epochs`, `skipped_minibatches` (whose gradient was not finite).
        """
        config, size = self._config, len(obs)
        rows = self._rows(obs, actions, rewards, next_obs, terminated)
        order = torch.randperm(size, generator=self._generator)
        num_held_out = min(int(size * config.validation_share), MOST_VALIDATION_ROWS)
        held_out, train = order[:num_held_out], order[num_held_out:]
        validation = rows.take(held_out if num_held_out else train)
        # Each member sees a bootstrap sample, in another order in every epoch.
        draws = torch.randint(len(train), (config.ensemble_size, len(train)), generator=self._generator)
        mine = train[draws]
        best = torch.full((config.ensemble_size,), math.inf, device=self._device)
        kept = [part.detach().clone() for part in self._members()]
        epochs = since_best = skipped = 0
        while since_best < config.patience and epochs < config.max_epochs:
            shuffle = torch.rand(mine.shape, generator=self._generator).argsort(dim=1)
            for part in mine.gather(1, shuffle).split(config.batch_size, dim=1):
                skipped += not self._descend(rows.take(part))
            losses = self._validation_losses(validation)
            is_better = losses < best - LEAST_GAIN * best.abs().nan_to_num(posinf=0.0)
            best = torch.where(is_better, losses, best)
            for part, keep in zip(self._members(), kept, strict=True):
                keep[is_better] = part.detach()[is_better]
            epochs, since_best = epochs + 1, 0 if bool(is_better.any()) else since_best + 1
        with torch.no_grad():
            for part, keep in zip(self._members(), kept, strict=True):
                part.copy_(keep)
        self.elites = best.cpu().argsort(stable=True)[: config.num_elites].numpy()
        loss = float(best.cpu()[self.elites].mean())
        return {"loss": loss, "epochs": float(epochs), "skipped_minibatches": float(skipped)}

    def _rows(self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array) -> Rows:
        """Scaled, after the scales have been measured anew."""
        inputs = np.concatenate([obs, actions], axis=1)
        targets = np.concatenate([next_obs - obs, rewards[:, None]], axis=1)
        known = np.ones_like(targets)
        known[terminated, : self._num_obs] = 0.0
        goes_on = targets[~terminated] if not terminated.all() else targets
        self._scales["inputs"].measure(inputs)
        self._scales["targets"].measure(goes_on)
        self._scales["targets"].measure_column(self._num_obs, rewards)
        self._knows_terminations = bool(terminated.any())
        columns = (
            self._scales["inputs"].scaled(inputs),
            self._scales["targets"].scaled(targets),
            known,
            terminated.astype(np.float32),
        )
        return Rows(*(torch.from_numpy(column).to(self._device) for column in columns))

    def _descend(self, rows: Rows) -> bool:
        """One gradient step of every member on its own rows -> whether the gradient was finite; else nothing was
        changed. The sum over members of: NLL, cross entropy of the termination, L2 of the weights."""
        means, log_vars, logits = self.network(rows.inputs)
        loss = gaussian_nll(means, log_vars, rows.targets, rows.known).sum()
        if self._knows_terminations:
            cross_entropy = F.binary_cross_entropy_with_logits(logits, rows.terminated, reduction="none")
            loss = loss + cross_entropy.mean(dim=1).sum()
        loss = loss + BOUNDS_COEF * (self.network.max_log_var - self.network.min_log_var).sum()
        squares = torch.stack([weight.square().sum() for weight in self.network.weights]).sum()
        loss = loss + 0.5 * self._config.weight_decay * squares
        return math.isfinite(self._adam.descend(loss, self._config.learning_rate))

    def _validation_losses(self, rows: Rows) -> Tensor:
        """float32[E]: mean squared error of the scaled targets, and the cross entropy of the termination."""
        with torch.no_grad():
            means, _, logits = self.network(rows.inputs.expand(self._config.ensemble_size, -1, -1))
            losses = ((means - rows.targets).square() * rows.known).sum(dim=(1, 2)) / rows.known.sum()
            if self._knows_terminations:
                target = rows.terminated.expand_as(logits)
                losses += F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean(dim=1)
        return losses

    def _members(self) -> list[Tensor]:
        """The parameters that each member has of its own, [E, ...]."""
        return [*self.network.weights, *self.network.biases]

    # -- predicting

    def predict(self, obs: Array, actions: Array) -> Predicted:
        """obs: float32[N, D]; actions: float32[N, A]. Each row is asked of an elite drawn at random, and a
        sample of its Gaussian taken; the episode terminates where that is the likelier."""
        N, K = len(obs), len(self.elites)
        inputs = torch.from_numpy(self._scales["inputs"].scaled(np.concatenate([obs, actions], axis=1)))
        order = torch.randperm(N, generator=self._generator)
        per_member = -(-N // K)
        asked = order[torch.arange(K * per_member) % N]  # rounded up to as many for each; the first N count
        with torch.no_grad():
            x = inputs[asked].view(K, per_member, -1).to(self._device)
            elites = torch.from_numpy(self.elites).to(self._device)
            means, log_vars, logits = (each.cpu() for each in self.network(x, elites))
            noise = torch.randn(means.shape, generator=self._generator)
            drawn = (means + (0.5 * log_vars).exp() * noise).view(K * per_member, -1)
            targets, ends = torch.empty(N, drawn.shape[1]), torch.empty(N, dtype=torch.bool)
            targets[order] = drawn[:N]
            ends[order] = logits.view(-1)[:N] > 0
        change = self._scales["targets"].unscaled(targets.numpy())
        terminated = ends.numpy() & self._knows_terminations
        return Predicted(obs + change[:, : self._num_obs], change[:, self._num_obs], terminated)


class _Scale(Saved):
    """Mean and deviation of columns."""

    saved = {"mean": "_mean", "std": "_std"}

    def __init__(self, size: int) -> None:
        self._mean, self._std = np.zeros(size, np.float32), np.ones(size, np.float32)

    def measure(self, columns: Array) -> None:
        """columns: [N, size]"""
        for index, column in enumerate(columns.T):
            self.measure_column(index, column)

    def measure_column(self, index: int, column: Array) -> None:
        std = column.std(dtype=np.float64)
        self._mean[index], self._std[index] = column.mean(dtype=np.float64), 1.0 if std < LEAST_STD else std

    def scaled(self, columns: Array) -> Array:
        scaled: Array = ((columns - self._mean) / self._std).astype(np.float32, copy=False)
        return scaled

    def unscaled(self, columns: Array) -> Array:
        unscaled: Array = columns * self._std + self._mean
        return unscaled
