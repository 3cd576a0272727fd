"""`TransitionBatch`: what an off-policy rollout worker brings home, T time steps of B environments side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlplat.rl.interfaces import Array, Episode, Obs
from rlplat.rl.obs_tree import map_obs


@dataclass(slots=True)
class TransitionBatch:
    """A rollout fragment, time first: row `[t, b]` is one decision in environment b.

    There is no column of next observations: what followed row t is row t + 1, or the next fragment's first, or where
    the episode was cut off `final_obs`. So every observation travels, and is kept, once.
    """

    obs: Obs
    """[T, B, ...] (or a dict of such) as the environment gave them."""
    actions: Array
    """int64[T, B]"""
    rewards: Array
    """float32[T, B], raw."""
    terminated: Array
    """bool[T, B]"""
    truncated: Array
    """bool[T, B]"""
    valid: Array
    """bool[T, B]: False in rows where the environment only reset itself."""
    q_taken: Array
    """float32[T, B]: Q(obs, action) under the weights that acted."""
    q_max: Array
    """float32[T, B]: the largest Q(obs, .) of a legal action under the weights that acted."""
    cut_rows: Array
    """int64[K]: t * B + b of the steps with which an episode was cut off, ascending."""
    final_obs: Obs
    """[K, ...]: the last observations of these episodes."""
    core_states: Array
    """float32[T, B, S]: the policy's core before each step; S = 0 without a core."""

    continues: bool = True
    """Whether row 0 follows the last row of the fragment before; False at a worker's beginning."""
    episodes: list[Episode] = field(default_factory=list)
    weights_version: int = 0
    worker_index: int = 0
    incarnation: int = 0
    timing: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_valid()

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
        for name in ("actions", "terminated", "truncated", "valid", "q_taken", "q_max"):
            column = getattr(self, name)
            assert column.shape == shape, f"{name}: shape {column.shape}, expected [T, B] = {shape}"
        assert self.core_states.shape[:2] == shape, f"core_states: shape {self.core_states.shape}"
        assert self.actions.dtype == np.int64, f"actions: dtype {self.actions.dtype}"
        assert self.truncated.sum() == len(self.cut_rows), "one final observation per truncation"
        map_obs(self._check_leaf, self.obs, self.final_obs)

    def _check_leaf(self, leaf: Array, final: Array) -> Array:
        assert leaf.shape[:2] == self.rewards.shape, f"obs: shape {leaf.shape}"
        assert final.shape == (len(self.cut_rows), *leaf.shape[2:]), f"final_obs: shape {final.shape}"
        return leaf
