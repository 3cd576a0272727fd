"""`PerturbedEpisodes`: episodes of many perturbed networks, side by side in one vector environment.

What many workers return is combined by few: in one process, or in a tree of tasks, with equal results bit for bit.

    refs = [worker.sample.remote() for worker in workers]               # 1,000 of them
    refs = joined_in_tasks(refs)                                        # 1,000 -> 63 -> 4, by tasks
    total = joined(get(refs))                                           # as if it had got all 1,000 itself

Floating-point addition is not associative, so both keep to one order: neighbours are combined two by two, level by
level, an odd last one goes up as it is. A group of 2^k neighbours is a subtree of that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import rlplat
from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.interfaces import Array
from rlplat.rl.normalization import RunningMeanVar
from rlplat.rl.policies.perturbed_mlp import PerturbedMLPs

if TYPE_CHECKING:
    from rlplat import ObjectRef


class ObsGatherer:
    """Sums over the observations of some episodes, less a reference near their mean, so that squares do not cancel."""

    def __init__(self, reference: Array) -> None:
        """reference: [*shape] of one observation."""
        self._reference = reference.astype(np.float64).reshape(-1)
        self._slots: list[int] = []
        self._sums = np.zeros(0)
        self._rows: list[Array] = []

    def begin(self, slot: int, is_gathered: bool) -> None:
        """An episode begins in `slot`."""
        if slot in self._slots:
            self._slots.remove(slot)
        if is_gathered:
            self._slots.append(slot)

    def add(self, obs: Array) -> None:
        """obs: [B, ...]; what is kept of it is a copy."""
        if self._slots:
            self._rows.append(obs[self._slots])
            if len(self._rows) == 1000:
                self.sums()

    def sums(self) -> Array:
        """float64[1 + 2 D]: number, sums, sums of squares; empty where there are none."""
        if self._rows:
            rows = np.concatenate(self._rows).reshape(-1, self._reference.size) - self._reference
            sums = np.concatenate([[len(rows)], rows.sum(axis=0), np.square(rows).sum(axis=0)])
            self._sums = self._sums + sums if self._sums.size else sums
            self._rows = []
        return self._sums


def merge_gathered(statistics: RunningMeanVar | None, sums: Array) -> None:
    """sums: `ObsGatherer.sums` around the mean that was published with the weights; statistics None: there are none."""
    if statistics is None or not sums.size:
        return
    shape, number = statistics.mean.shape, int(sums[0])
    offset, squares = np.split(sums[1:] / number, 2)
    reference = statistics.mean.astype(np.float32).astype(np.float64)
    variance = np.maximum(squares - np.square(offset), 0.0)
    statistics.merge(reference + offset.reshape(shape), variance.reshape(shape), number)


class EpisodeChance(NamedTuple):
    """All chance in one episode."""

    env: np.random.SeedSequence
    is_gathered: bool
    """Whether its observations are gathered."""


class Returns(NamedTuple):
    """What travels from a worker, or from several in the order of the population; E episodes per perturbation."""

    indices: Array
    """uint32[n]: where in the noise table the perturbation begins."""
    returns: Array
    """float32[n, 2, E]: with +perturbation, with -perturbation; raw and undiscounted."""
    lengths: Array
    """uint32[n, 2, E]: env steps."""
    obs_sums: Array
    """float64[1 + 2 D]: `ObsGatherer.sums`, of observations less the mean that they were normalised with; empty where
    none were gathered."""
    seconds: Array
    """float64[3]: stepping environments, acting, all; of the slowest worker."""
    env_metrics: dict[int, list[dict[str, float]]] = {}
    """By pair of the population, where something was told: the numbers of its 2 E infos, in the order of `returns`."""

    def episodes(self, finite: Array) -> Iterator[tuple[float, int, dict[str, float]]]:
        """(return, length, what the infos told) of these pairs: bool[n]. A perturbation's and its mirror image's come
        one after the other: the last 100 are as much of one as of the other."""
        for pair in np.flatnonzero(finite).tolist():
            returns, lengths = (
                self.returns[pair].reshape(-1).tolist(),
                self.lengths[pair].reshape(-1).tolist(),
            )
            yield from zip(returns, lengths, self.env_metrics.get(pair, [{}] * len(returns)), strict=True)


def join_returns(left: Returns, right: Returns) -> Returns:
    """Of neighbours in the population."""
    indices, returns, lengths = (np.concatenate(both) for both in zip(left[:3], right[:3], strict=True))
    sums = [each.obs_sums for each in (left, right) if each.obs_sums.size]
    obs_sums = sums[0] + sums[1] if len(sums) == 2 else np.concatenate([np.zeros(0), *sums])
    seconds, told = np.maximum(left.seconds, right.seconds), left.env_metrics | right.env_metrics
    return Returns(indices, returns, lengths, obs_sums, seconds, told)


class PerturbedEpisodes:
    """episodes = PerturbedEpisodes(env, mlps)           # a network for every slot of the environment
    returns = episodes.play_pairs(indices, pairs, noise_std, chances, ObsGatherer(reference))
    """

    def __init__(self, env: VectorEnv, mlps: PerturbedMLPs) -> None:
        self._env, self._mlps = env, mlps
        self._env_s = self._act_s = 0.0
        self.metrics: dict[int, dict[str, float]] = {}
        """What the infos of the episodes that `play` played last told, by k."""

    def play_pairs(
        self,
        indices: Array,
        pairs: range,
        noise_std: float,
        chances: Sequence[Sequence[EpisodeChance]],
        gatherer: ObsGatherer,
    ) -> Returns:
        """E episodes each with theta + noise_std * (the noise at indices[i]), and as many with minus.

        pairs: P places in the population; chances: of P * E episodes with plus, and of those with minus.
        """
        started, E = perf_counter(), len(chances[0]) // len(pairs)
        self._env_s = self._act_s = 0.0
        starts, outcomes, told = np.repeat(indices, E), [], []
        for own, scale in zip(chances, (noise_std, -noise_std), strict=True):
            outcomes.append(self.play(starts, np.full(len(starts), scale), own, gatherer))
            told.append(self.metrics)
        self._env.pop_episodes()  # counted here, without those that were not to the end
        both = np.stack(outcomes).reshape(2, len(pairs), E, 2)
        returns, lengths = (both[..., i].transpose(1, 0, 2) for i in range(2))
        metrics = {
            pairs[pair]: [each.get(pair * E + e, {}) for each in told for e in range(E)]
            for pair in sorted({k // E for k in (*told[0], *told[1])})
        }
        seconds = np.array([self._env_s, self._act_s, perf_counter() - started])
        floats, counts = returns.astype(np.float32), lengths.astype(np.uint32)
        return Returns(indices, floats, counts, gatherer.sums(), seconds, metrics)

    def play(self, starts: Array, scales: Array, chances: Sequence[EpisodeChance], gatherer: ObsGatherer) -> Array:
        """One episode with theta + scales[k] * (noise at starts[k]) for every k < K -> float64[K, 2], (return, length).

        Slot b plays episodes b, b + B, b + 2B and so on, one after another. Its share is fixed: if whoever is through
        first took another's, short episodes would be favoured. What an episode meets follows from `chances[k]` alone.
        """
        outcomes = np.zeros((len(starts), 2))
        self.metrics = {}
        # Where one slot alone cannot be reset, by its own end or with its own seed, all start each episode together.
        size = len(starts) if self._env.seeds_each else self._env.num_envs
        for first in range(0, len(starts), size):
            wave = slice(first, first + size)
            self._play_wave(starts[wave], scales[wave], chances[wave], gatherer, outcomes[wave], first)
        return outcomes

    def _play_wave(
        self,
        starts: Array,
        scales: Array,
        chances: Sequence[EpisodeChance],
        gatherer: ObsGatherer,
        outcomes: Array,
        first: int,
    ) -> None:
        """From one reset of all environments on; fills `outcomes`, and `metrics` from k = first on."""
        env, mlps = self._env, self._mlps
        num_slots, num_left = env.num_envs, len(starts)

        def begin(slot: int, k: int) -> None:
            """Slot plays episode k from its next observation on; where there is none, what it does does not count."""
            is_one, following = k < len(starts), k + num_slots
            if is_one:
                mlps.load(slot, starts[k], scales[k])
            if following < len(starts):
                env.seed_next(slot, chances[following].env)
            gatherer.begin(slot, is_one and chances[k].is_gathered)

        seeds = [chances[min(slot, len(starts) - 1)].env for slot in range(num_slots)]
        obs = env.reset(seeds)
        playing = np.arange(num_slots)
        for slot in range(num_slots):
            begin(slot, slot)
        returns, lengths = np.zeros(num_slots), np.zeros(num_slots, np.int64)
        before = perf_counter()
        while num_left:
            assert isinstance(obs, np.ndarray)
            gatherer.add(obs)
            actions = mlps.act(obs)
            between = perf_counter()
            step = env.step(actions)
            after = perf_counter()
            self._act_s += between - before
            self._env_s += after - between
            before = after
            obs = step.obs
            returns += step.rewards
            lengths += step.valid
            if step.final_obs is None:
                continue
            ended = step.terminated | step.truncated
            for slot in np.flatnonzero(ended).tolist():
                k = int(playing[slot])
                if k < len(starts):
                    outcomes[k] = returns[slot], lengths[slot]
                    if env.ended_metrics[slot]:
                        self.metrics[first + k] = env.ended_metrics[slot]
                    num_left -= 1
                returns[slot], lengths[slot] = 0.0, 0
                playing[slot] = k + num_slots
                begin(slot, k + num_slots)


FAN_IN = 16
"""Answers of more workers than this (a power of two) are joined by tasks, so many at a time."""


def joined(answers: Sequence[Returns]) -> Returns:
    """join(join(0, 1), join(2, 3)) and so on; one is returned as it is."""
    level = list(answers)
    while len(level) > 1:
        pairs = [join_returns(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def joined_in_tasks(refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """At most FAN_IN refs that `joined` makes the same of; returns at once. Of up to FAN_IN refs they are these
    themselves. A ref that fails makes every ref above it fail."""
    task, level = rlplat.remote(_reduce).options(num_cpus=0), list(refs)
    while len(level) > FAN_IN:
        level = [task.remote(*level[start : start + FAN_IN]) for start in range(0, len(level), FAN_IN)]
    return level


def _reduce(*answers: Returns) -> Returns:
    return joined(answers)
