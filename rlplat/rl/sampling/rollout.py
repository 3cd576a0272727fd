"""What a learner makes of the batches of a round: a `Rollout`, and of that a `Minibatch` for every gradient step.

rollout = Rollout(join_envs(batches), rewards, obs)
rollout.advantages, rollout.returns = gae(**rollout.steps, discount=0.99, gae_lambda=0.95)
for rows in rollout.minibatches(256, rng, normalize=True):      # one pass, in random order
    trained.append(net.train(rows, config))                     # on a `Minibatch` of these rows
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.normalization import ObsStatistics
from rlplat.rl.sampling.returns import explained_variance
from rlplat.rl.sampling.sample_batch import SampleBatch, episode_starts


@dataclass(slots=True)
class Minibatch:
    """What a loss is computed from, as tensors of the learner's framework, on its device.

        log_probs, entropies, values = minibatch.evaluate(network)      # float32[M] each, with gradients

    Without a core: M rows in any order. With one: whole fragments, T steps of K environments, time first; M of these
    T * K rows count, those in which an agent decided something.
    """

    obs: Any
    """[M, ...] or [T*K, ...], normalised where that is asked for; of a Dict space a dict of such, by path."""
    actions: Any
    """int64 or float32 [M, ...] or [T*K, ...], as the policy gave them."""
    log_probs: Any
    """float32[M]: log pi_old(a|s), of the weights that acted."""
    values: Any
    """float32[M]: V_old(s), likewise."""
    advantages: Any = None
    """float32[M]: normalised where that is asked for."""
    returns: Any = None
    """float32[M]: what the critic is to learn."""
    state: Any = None
    """With a core, float32[K, S]: its state before the first step."""
    starts: Any = None
    """With a core, bool[T, K]: steps that begin an episode, before which it forgets."""
    counted: Any = None
    """int64[M]: which of the T * K rows count; None: all."""

    def evaluate(self, network: Any) -> tuple[Any, Any, Any]:
        """(log pi(a|s), entropy of pi(.|s), V(s)) by the network as it is."""
        distribution, values, _ = network(self.obs, self.state, self.starts)
        log_probs, entropies = distribution.log_prob(self.actions), distribution.entropy()
        if self.counted is None:
            return log_probs, entropies, values
        return log_probs[self.counted], entropies[self.counted], values[self.counted]


class Rows(NamedTuple):
    """Of a rollout: what a learner makes one gradient step from."""

    rows: Array
    """int64[N], in the order of time."""
    envs: Array | None = None
    """int64[K]: with a core, the environments of which these are the whole fragments."""
    share: float = 1.0
    """How much of the minibatch they are: 1 where there is one learner."""
    mean: float = 0.0
    scale: float = 1.0
    """(advantages - mean) * scale: what normalises those of the whole minibatch."""
    is_whole: bool = False
    """Whether they are all rows of the rollout, in order."""


_NONE = np.zeros((0, 0), np.float32)


@dataclass(slots=True)
class Rollout:
    """T steps of B environments, of all workers side by side."""

    batch: SampleBatch
    rewards: Array
    """float32[T, B]: to be learnt from (`LearningRewards`)."""
    obs: Obs
    """[T*B, ...], normalised where that is asked for."""
    advantages: Array = field(default_factory=lambda: _NONE)
    """float32[T, B]"""
    returns: Array = field(default_factory=lambda: _NONE)
    """float32[T, B]"""
    num_unlisted: int = 0
    """Episodes that finished before `batch.episodes`."""
    told: dict[str, float] = field(default_factory=dict)
    """Metrics of the sampling."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What the update took so far: `time/<lap>_s`."""
    _lapped: float = field(default_factory=perf_counter)

    @property
    def steps(self) -> dict[str, Array]:
        """By name, [T, B] each: what `gae` takes."""
        names = ("values", "next_values", "terminated", "truncated", "valid")
        return {"rewards": self.rewards} | {name: getattr(self.batch, name) for name in names}

    @property
    def columns(self) -> dict[str, Array]:
        """float32[T*B] by name: the fields of a `Minibatch` that are numbers."""
        of_learner = {"advantages": self.advantages, "returns": self.returns}
        return {name: self.batch.flat(name) for name in ("log_probs", "values")} | {
            name: column.reshape(-1) for name, column in of_learner.items() if len(column)
        }

    @property
    def starts(self) -> Array:
        """bool[T, B]"""
        return episode_starts(self.batch)

    @property
    def inputs(self) -> dict[str, Obs]:
        """Arrays by name: what a loss is computed from."""
        ends = {} if self.batch.last_obs is None else {"last_obs": self.batch.last_obs}
        return {"obs": self.obs, **ends, **self.columns}

    def explained_variance(self) -> float:
        """Of the values that acted, in the rows that count."""
        valid = self.batch.valid
        return explained_variance(self.batch.values[valid], self.returns[valid])

    def measure(self, statistics: ObsStatistics) -> None:
        """The observations, as the environments gave them."""
        statistics.update(self.batch.flat_obs(), self.batch.flat("valid"))

    def lap(self, name: str) -> None:
        """Of the update something is done: what it took is a metric."""
        now = perf_counter()
        self.seconds[f"time/{name}_s"] = now - self._lapped
        self._lapped = now

    def minibatches(
        self,
        size: int,
        rng: np.random.Generator,
        *,
        normalize: bool = False,
        learner: int = 0,
        num_learners: int = 1,
    ) -> Iterator[Rows]:
        """One pass over all rows that count, in random order and in equal parts of about `size`, of each this learner's
        share. normalize: the advantages, over the whole minibatch, whichever learner trains on them."""
        (T, _), valid = self.batch.shape, self.batch.valid
        has_core = self.batch.core_state.size > 0
        # Of several agents, some may have had no turn.
        chosen = np.flatnonzero(valid.any(axis=0)) if has_core else self.batch.valid_rows()
        if not len(chosen):
            return
        count = round(len(chosen) * (T if has_core else 1) / size)
        if has_core:  # every learner needs a fragment of each
            count = min(count, len(chosen) // num_learners)
        flat = valid.reshape(-1)
        for whole in np.array_split(rng.permutation(chosen), max(1, count)):
            rows = self._rows(whole, has_core)
            counted = rows[flat[rows]] if has_core else rows
            moments = self._moments(counted) if normalize else (0.0, 1.0)
            part, share = whole, 1.0 / num_learners  # too small to be cut: all of them compute all of it
            if 1 < num_learners <= len(whole):
                part = np.array_split(whole, num_learners)[learner]
                rows = self._rows(part, has_core)
                share = float(flat[rows].sum() / len(counted))
            yield Rows(rows, part if has_core else None, share, *moments)

    def whole(self, *, normalize: bool = False) -> Rows:
        """All rows, in order."""
        (T, B), has_core = self.batch.shape, self.batch.core_state.size > 0
        moments = self._moments(self.batch.valid_rows()) if normalize else (0.0, 1.0)
        return Rows(np.arange(T * B), np.arange(B) if has_core else None, 1.0, *moments, is_whole=True)

    def _rows(self, chosen: Array, has_core: bool) -> Array:
        """chosen: rows, or with a core the environments whose fragments are meant."""
        T, B = self.batch.shape
        return (np.arange(T)[:, None] * B + chosen).reshape(-1) if has_core else chosen

    def _moments(self, rows: Array) -> tuple[float, float]:
        """(mean, scale) of the advantages of these rows; a single one stays as it is."""
        chosen = self.advantages.reshape(-1)[rows]
        if len(chosen) < 2:
            return 0.0, 1.0
        return float(chosen.mean()), 1.0 / (float(chosen.std(ddof=1)) + 1e-8)
