"""`TransitionBatch`: what an off-policy rollout worker brings home, T time steps of B environments side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlplat.rl.interfaces import Array, Episode, Obs
from rlplat.rl.obs_tree import empty_columns, map_obs


@dataclass(slots=True)
class TransitionBatch:
    """A rollout fragment, time first: row `[t, b]` is one decision in environment b.

    There is no column of next observations: what followed row t is row t + 1, or the next fragment's first, or where
    the episode was cut off `final_obs`. So every observation travels, and is kept, once.
    """

    obs: Obs
    """[T, B, ...] (or a dict of such) as the environment gave them."""
    actions: Array
    """int64[T, B] (Discrete), int64[T, B, K] or float32[T, B, A], as `PolicyOutput.actions`."""
    rewards: Array
    """float32[T, B], raw."""
    terminated: Array
    """bool[T, B]"""
    truncated: Array
    """bool[T, B]"""
    valid: Array
    """bool[T, B]: False in rows where the environment only reset itself."""
    cut_rows: Array
    """int64[K]: t * B + b of the steps with which an episode was cut off, ascending; of all with which one ended, where
    every end is kept."""
    final_obs: Obs
    """[K, ...]: the last observations of these episodes."""
    core_states: Array
    """float32[T, B, S]: the policy's core before each step; S = 0 without a core."""

    q_taken: Array | None = None
    """float32[T, B]: Q(obs, action) under the weights that acted, where these act by Q-values."""
    q_max: Array | None = None
    """float32[T, B]: the largest Q(obs, .) of a legal action, likewise."""
    continues: bool = True
    """Whether row 0 follows the last row of the fragment before; False at a worker's beginning."""
    number: int | None = None
    """How many fragments this incarnation of the worker made before; says whether the replay has the last one."""
    episodes: list[Episode] = field(default_factory=list)
    weights_version: int = 0
    worker_index: int = 0
    incarnation: int = 0
    timing: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_valid()

    @classmethod
    def empty(cls, num_steps: int, obs: Obs, actions: Array) -> TransitionBatch:
        """Columns to be filled row by row, shaped after one step's `obs` [B, ...] and `actions` [B, ...]."""
        shape = (num_steps, len(actions))
        columns = empty_columns(num_steps, obs)
        return cls(
            obs=columns,
            actions=np.zeros((num_steps, *actions.shape), actions.dtype),
            rewards=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.zeros(shape, np.bool_),
            cut_rows=np.empty(0, np.int64),
            final_obs=map_obs(lambda leaf: leaf[:0, 0], columns),
            core_states=np.zeros((*shape, 0), np.float32),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)"""
        num_steps, num_envs = self.rewards.shape
        return num_steps, num_envs

    @property
    def env_steps(self) -> int:
        """Decisions of the agent in this batch."""
        return int(np.count_nonzero(self.valid))

    def check_valid(self) -> None:
        """Shapes and dtypes agree with the docstrings, or AssertionError naming the column."""
        shape = self.rewards.shape
        assert len(shape) == 2, f"rewards must be [T, B], got shape {shape}"
        for name in ("terminated", "truncated", "valid", "q_taken", "q_max"):
            column = getattr(self, name)
            assert column is None or column.shape == shape, (
                f"{name}: shape {column.shape}, expected [T, B] = {shape}"
            )
        assert self.actions.shape[:2] == shape, f"actions: shape {self.actions.shape}"
        assert self.core_states.shape[:2] == shape, f"core_states: shape {self.core_states.shape}"
        assert self.actions.dtype in (np.int64, np.float32), f"actions: dtype {self.actions.dtype}"
        kept, cut = len(self.cut_rows), self.truncated.sum()
        assert kept in (cut, cut + self.terminated.sum()), "one final observation per truncation, or per end"
        map_obs(self._check_leaf, self.obs, self.final_obs)

    def _check_leaf(self, leaf: Array, final: Array) -> Array:
        assert leaf.shape[:2] == self.rewards.shape, f"obs: shape {leaf.shape}"
        assert final.shape == (len(self.cut_rows), *leaf.shape[2:]), f"final_obs: shape {final.shape}"
        return leaf


def rollout_times(batches: Sequence[TransitionBatch]) -> dict[str, float]:
    """Seconds of one round by metric, `rollout/...`: those of the slowest worker."""
    return {f"rollout/{name}": max(batch.timing[name] for batch in batches) for name in batches[0].timing}
