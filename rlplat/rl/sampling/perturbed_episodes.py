"""`PerturbedEpisodes`: episodes of many perturbed networks, side by side in one vector environment.

What many workers return is combined by few: in one process, or in a tree of tasks, with equal results bit for bit.

    refs = [worker.sample.remote() for worker in workers]               # 1,000 of them
    refs = reduce_in_tasks(refs, join, fan_in=16)                       # 1,000 -> 63 -> 4, by tasks
    total = reduce_pairs(get(refs), join)                               # as if it had got all 1,000 itself

Floating-point addition is not associative, so both keep to one order: neighbours are combined two by two, level by
level, an odd last one goes up as it is. A group of 2^k neighbours is a subtree of that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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


class NullGatherer:
    """Where observations are taken as they are."""

    def begin(self, slot: int, is_gathered: bool) -> None: ...

    def add(self, obs: Array) -> None: ...

    def sums(self) -> Array:
        return np.zeros(0)


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
    actions: np.random.Generator
    is_gathered: bool
    """Whether its observations are gathered."""


class PerturbedEpisodes:
    """episodes = PerturbedEpisodes(env, mlps)           # a network for every slot of the environment
    outcomes = episodes.play(starts, scales, env_seed, rng, gatherer)
    env_s, act_s = episodes.pop_seconds()
    """

    def __init__(self, env: VectorEnv, mlps: PerturbedMLPs, max_episode_steps: int | None = None) -> None:
        """max_episode_steps: an episode counts up to there and no further."""
        self._env, self._mlps, self._max_episode_steps = env, mlps, max_episode_steps
        self._env_s = self._act_s = 0.0
        self.metrics: dict[int, dict[str, float]] = {}
        """What the infos of the episodes that `play` played last told, by k; of those that were not cut off here."""

    def play(
        self,
        starts: Array,
        scales: Array,
        chances: Sequence[EpisodeChance],
        gatherer: ObsGatherer | NullGatherer,
    ) -> Array:
        """One episode with theta + scales[k] * (noise at starts[k]) for every k < K -> float64[K, 2], (return, length).

        Slot b plays episodes b, b + B, b + 2B and so on, one after another. Its share is fixed: if whoever is through
        first took another's, short episodes would be favoured. What an episode meets follows from `chances[k]` alone.
        """
        outcomes = np.zeros((len(starts), 2))
        self.metrics = {}
        # Where one slot alone cannot be reset, by its own end or with its own seed, all start each episode together.
        goes_on = self._max_episode_steps is None and self._env.seeds_each
        size = len(starts) if goes_on else self._env.num_envs
        for first in range(0, len(starts), size):
            wave = slice(first, first + size)
            self._play_wave(starts[wave], scales[wave], chances[wave], gatherer, outcomes[wave], first)
        return outcomes

    def _play_wave(
        self,
        starts: Array,
        scales: Array,
        chances: Sequence[EpisodeChance],
        gatherer: ObsGatherer | NullGatherer,
        outcomes: Array,
        first: int,
    ) -> None:
        """From one reset of all environments on; fills `outcomes`, and `metrics` from k = first on."""
        env, mlps = self._env, self._mlps
        limit = self._max_episode_steps
        num_slots, num_left = env.num_envs, len(starts)

        def begin(slot: int, k: int) -> None:
            """Slot plays episode k from its next observation on; where there is none, what it does does not count."""
            is_one, following = k < len(starts), k + num_slots
            if is_one:
                mlps.load(slot, starts[k], scales[k], chances[k].actions)
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
            if step.final_obs is None and limit is None:
                continue
            ended = step.terminated | step.truncated
            if limit is not None:
                ended = ended | (lengths >= limit)
            for slot in np.flatnonzero(ended).tolist():
                k = int(playing[slot])
                if k < len(starts):
                    outcomes[k] = returns[slot], lengths[slot]
                    if env.ended_metrics[slot] and (step.terminated[slot] or step.truncated[slot]):
                        self.metrics[first + k] = env.ended_metrics[slot]
                    num_left -= 1
                returns[slot], lengths[slot] = 0.0, 0
                playing[slot] = k + num_slots
                begin(slot, k + num_slots)

    def pop_seconds(self) -> tuple[float, float]:
        """Of stepping environments and of acting, since the last call of this."""
        seconds = self._env_s, self._act_s
        self._env_s = self._act_s = 0.0
        return seconds


T = TypeVar("T")


def reduce_pairs(items: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """combine(combine(0, 1), combine(2, 3)) and so on; one item is returned as it is."""
    assert items, "nothing to reduce"
    level = list(items)
    while len(level) > 1:
        pairs = [combine(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def reduce_in_tasks(
    refs: Sequence[ObjectRef], combine: Callable[[Any, Any], Any], fan_in: int
) -> list[ObjectRef]:
    """At most `fan_in` refs (a power of two) that `reduce_pairs` makes the same of; returns at once.

    Of up to `fan_in` refs they are these themselves. A ref that fails makes every ref above it fail.
    """
    assert fan_in >= 2 and fan_in & (fan_in - 1) == 0, f"fan_in is {fan_in}, expected a power of two"
    task = rlplat.remote(_reduce).options(num_cpus=0)
    level = list(refs)
    while len(level) > fan_in:
        level = [
            task.remote(combine, *level[start : start + fan_in]) for start in range(0, len(level), fan_in)
        ]
    return level


def _reduce(combine: Callable[[Any, Any], Any], *items: Any) -> Any:
    return reduce_pairs(items, combine)
