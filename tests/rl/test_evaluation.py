from __future__ import annotations

import numpy as np

from rlplat.rl.evaluation import play_episodes
from rlplat.rl.interfaces import Episode, PolicyOutput, Step


class CyclingEnv:
    """Environment b's episodes last b + 1 steps and give reward b + 1 each; NEXT_STEP autoreset, with its idle rows."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.lengths = np.arange(1, num_envs + 1)
        self.age = np.zeros(num_envs, np.int64)
        self.popped = 0

    def reset(self, seed: int) -> np.ndarray:
        self.age[:] = 0
        return np.zeros((self.num_envs, 1), np.float32)

    def step(self, actions: np.ndarray) -> Step:
        valid = self.age < self.lengths
        self.age = np.where(valid, self.age + 1, 0)
        ended = valid & (self.age == self.lengths)
        rewards = np.where(valid, self.lengths, 1e6).astype(np.float32)
        obs = np.zeros((self.num_envs, 1), np.float32)
        return Step(obs, rewards, ended, np.zeros_like(ended), valid, obs if ended.any() else None)

    def pop_episodes(self) -> list[Episode]:
        self.popped += 1
        return []


class NullPolicy:
    def act(self, obs: np.ndarray, *, deterministic: bool = False) -> PolicyOutput:
        assert deterministic
        zeros = np.zeros(len(obs), np.float32)
        return PolicyOutput(zeros.astype(np.int64), zeros, zeros)


def test_every_environment_plays_its_share_however_long_its_episodes_are() -> None:
    episodes = play_episodes(NullPolicy(), CyclingEnv(3), 7, seed=0)  # type: ignore[arg-type]
    # 3 + 2 + 2: the first to finish would have been environment 0 nearly always.
    assert episodes == [Episode(1.0, 1)] * 3 + [Episode(4.0, 2)] * 2 + [Episode(9.0, 3)] * 2


def test_fewer_episodes_than_environments() -> None:
    episodes = play_episodes(NullPolicy(), CyclingEnv(3), 2, seed=0)  # type: ignore[arg-type]
    assert episodes == [Episode(1.0, 1), Episode(4.0, 2)]
