"""`PerturbedEpisodes`: episodes of many perturbed networks, side by side in one vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from rlplat.rl.envs.vector_env import VectorEnv
from rlplat.rl.interfaces import Array
from rlplat.rl.policies.perturbed_mlp import PerturbedMLPs
from rlplat.rl.sampling.obs_gatherer import NullGatherer, ObsGatherer


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
