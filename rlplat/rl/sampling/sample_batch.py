"""What rollout workers bring home, T time steps of B environments side by side: `SampleBatch`es of those whose learner
wants log-probabilities and values, `TransitionBatch`es where a replay keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from rlplat.rl.interfaces import Array, Episode, Obs
from rlplat.rl.obs_tree import concat_obs, empty_columns, map_obs

COLUMNS = (
    "obs", "actions", "log_probs", "values", "next_values", "rewards", "terminated", "truncated", "valid",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Batch:
    """A rollout fragment, one array per column, time first: row `[t, b]` is one decision in environment b.

    Arrays are contiguous, so that pickle protocol 5 hands them over out of band, without a copy. What came through
    the object store is read-only; nobody writes into a batch.
    """

    obs: Obs
    """[T, B, ...] (or a dict of such) as the environment gave them: neither scaled nor normalised."""
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

    episodes: list[Episode] = field(default_factory=list)
    """Episodes that ended within the fragment."""
    weights_version: int = 0
    worker_index: int = 0
    incarnation: int = 0
    """How many workers had this index before (a worker that died is replaced by the next incarnation)."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by activity, e.g. `act_s`, `env_s`."""

    def __post_init__(self) -> None:
        self.check_valid()

    @classmethod
    def empty(cls, num_steps: int, obs: Obs, actions: Array, **more: Any) -> Self:
        """Columns to be filled row by row, shaped after one step's `obs` [B, ...] and `actions` [B, ...]; more: those
        of a subclass, and metadata."""
        shape = (num_steps, len(actions))
        return cls(
            obs=empty_columns(num_steps, obs),
            actions=np.zeros((num_steps, *actions.shape), actions.dtype),
            rewards=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.zeros(shape, np.bool_),
            **more,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(T, B)"""
        num_steps, num_envs = self.rewards.shape
        return num_steps, num_envs

    @property
    def env_steps(self) -> int:
        """Decisions of the agent in this batch; rows in which an environment reset itself are none."""
        return int(np.count_nonzero(self.valid))

    def check_valid(self) -> None:
        """Shapes and dtypes agree with the docstrings, or AssertionError naming the column."""
        assert self.rewards.ndim == 2, f"rewards must be [T, B], got shape {self.rewards.shape}"
        map_obs(self._check_obs_leaf, self.obs)
        assert self.actions.shape[:2] == self.shape, f"actions: shape {self.actions.shape}"
        assert self.actions.dtype in (np.int64, np.float32), f"actions: dtype {self.actions.dtype}"
        self._check("rewards", np.float32)
        for name in ("terminated", "truncated", "valid"):
            self._check(name, np.bool_)

    def _check(self, name: str, dtype: Any) -> None:
        array = getattr(self, name)
        assert array.shape == self.shape, f"{name}: shape {array.shape}, expected [T, B] = {self.shape}"
        assert array.dtype == dtype, f"{name}: dtype {array.dtype}, expected {dtype}"

    def _check_obs_leaf(self, leaf: Array) -> Array:
        assert leaf.shape[:2] == self.shape, f"obs: shape {leaf.shape}, expected [T, B, ...] = {self.shape}"
        return leaf


@dataclass(slots=True, kw_only=True)
class SampleBatch(Batch):
    """With what the weights that acted thought of each decision.

    batch = worker.sample()
    advantages, returns = gae(batch.rewards, batch.values, batch.next_values, ...)
    rows = batch.valid_rows()                       # indices into the flattened columns
    obs = batch.flat("obs")[rows]                   # [N, ...]
    """

    log_probs: Array
    """float32[T, B]: log pi(actions | obs) under the weights that acted."""
    values: Array
    """float32[T, B]: V(obs) under the weights that acted."""
    next_values: Array
    """float32[T, B]: V of the true successor: of the final observation where the episode was cut off, of the next
    observation elsewhere. Where `terminated`, there is no successor and the number means nothing."""
    core_state: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """float32[B, S]: the policy's core before the first step; zeros where an episode begins. S = 0 without a core."""

    forced: Array | None = None
    """bool[T, B], or None where it is nowhere: rows that are not valid because FIRE was pressed; a core remembers over
    them."""

    last_obs: Obs | None = None
    """[B, ...] after the last step, for learners that bootstrap with values of their own; `next_values` are 0 then."""
    cut_rows: Array | None = None
    """int64[K]: t * B + b of episodes that were cut off, and in `final_obs` [K, ...] their last observations; None
    where there are none, or where they are not asked for."""
    final_obs: Obs | None = None

    @classmethod
    def empty(cls, num_steps: int, obs: Obs, actions: Array, **more: Any) -> Self:
        shape = (num_steps, len(actions))
        own = {name: np.zeros(shape, np.float32) for name in ("log_probs", "values", "next_values")}
        return super(SampleBatch, cls).empty(num_steps, obs, actions, **own, **more)

    def flat_obs(self) -> Obs:
        """Observations as [T*B, ...], without a copy."""
        return map_obs(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.obs)

    def flat(self, column: str) -> Array:
        """Any other column as [T*B, ...], without a copy."""
        array: Array = getattr(self, column)
        return array.reshape(-1, *array.shape[2:])

    def valid_rows(self) -> Array:
        """int64[N]: indices of the rows of `flat(...)` that hold a decision of the agent."""
        return np.flatnonzero(self.valid)

    def check_valid(self) -> None:
        super(SampleBatch, self).check_valid()
        for name in ("log_probs", "values", "next_values"):
            self._check(name, np.float32)
        assert self.core_state.size == 0 or len(self.core_state) == self.shape[1], (
            f"core_state: shape {self.core_state.shape}, expected [B, S] with B = {self.shape[1]}"
        )


@dataclass(slots=True, kw_only=True)
class TransitionBatch(Batch):
    """What an off-policy rollout worker brings home.

    There is no column of next observations: what followed row t is row t + 1, or the next fragment's first, or where
    the episode was cut off `final_obs`. So every observation travels, and is kept, once.
    """

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

    @classmethod
    def empty(cls, num_steps: int, obs: Obs, actions: Array, **more: Any) -> Self:
        own = {
            "cut_rows": np.empty(0, np.int64),
            "final_obs": map_obs(lambda leaf: leaf[:0], obs),
            "core_states": np.zeros((num_steps, len(actions), 0), np.float32),
        }
        return super(TransitionBatch, cls).empty(num_steps, obs, actions, **own, **more)

    def check_valid(self) -> None:
        super(TransitionBatch, self).check_valid()
        for name in ("q_taken", "q_max"):
            if getattr(self, name) is not None:
                self._check(name, np.float32)
        assert self.core_states.shape[:2] == self.shape, f"core_states: shape {self.core_states.shape}"
        kept, cut = len(self.cut_rows), self.truncated.sum()
        assert kept in (cut, cut + self.terminated.sum()), "one final observation per truncation, or per end"
        map_obs(self._check_final, self.obs, self.final_obs)

    def _check_final(self, leaf: Array, final: Array) -> Array:
        assert final.shape == (len(self.cut_rows), *leaf.shape[2:]), f"final_obs: shape {final.shape}"
        return leaf


def rollout_times(batches: Sequence[Batch]) -> dict[str, float]:
    """Seconds of one round by metric, `rollout/...`: those of the slowest worker."""
    return {f"rollout/{name}": max(batch.timing[name] for batch in batches) for name in batches[0].timing}


def episode_starts(batch: SampleBatch) -> Array:
    """bool[T, B]: whether a step begins an episode. Row 0 is False: `core_state` is zero there where one begins.

    After an end comes a beginning; a row in which the environment only reset itself stands between the two, and what a
    core makes of it is forgotten again (`Step.forgets`).
    """
    starts = np.zeros(batch.shape, np.bool_)
    starts[1:] = batch.terminated[:-1] | batch.truncated[:-1] | ~batch.valid[:-1]
    if batch.forced is not None:
        starts[1:] &= ~batch.forced[:-1]
    return starts


def join_envs(batches: Sequence[SampleBatch]) -> SampleBatch:
    """[T, B1, ...], [T, B2, ...] of several workers side by side: [T, B1 + B2, ...]; one alone is not copied.

    Episodes are joined, seconds are those of the slowest; other metadata are of the first.
    """
    if len(batches) == 1:
        return batches[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name) for batch in batches], axis=1) for name in COLUMNS[1:]
    }
    columns["obs"] = map_obs(lambda *leaves: np.concatenate(leaves, axis=1), *(batch.obs for batch in batches))
    columns["core_state"] = np.concatenate([batch.core_state for batch in batches])
    forced = [batch.forced for batch in batches]
    if any(each is not None for each in forced):
        nowhere = [np.zeros_like(batch.valid) for batch in batches]
        whole = [own if own is not None else zeros for own, zeros in zip(forced, nowhere, strict=True)]
        columns["forced"] = np.concatenate(whole, axis=1)
    if batches[0].last_obs is not None:
        columns |= _join_ends(batches)
    return replace(
        batches[0],
        **columns,
        episodes=[episode for batch in batches for episode in batch.episodes],
        timing={name: max(batch.timing[name] for batch in batches) for name in batches[0].timing},
    )


def _join_ends(batches: Sequence[SampleBatch]) -> dict[str, Any]:
    """`last_obs`, and `cut_rows` and `final_obs` where some batch has them."""
    num_envs = sum(batch.shape[1] for batch in batches)
    ends: dict[str, Any] = {"last_obs": concat_obs([batch.last_obs for batch in batches if batch.last_obs is not None])}
    rows, final, first = [], [], 0
    for batch in batches:
        B = batch.shape[1]
        if batch.cut_rows is not None and batch.final_obs is not None:
            rows.append(batch.cut_rows // B * num_envs + first + batch.cut_rows % B)
            final.append(batch.final_obs)
        first += B
    return ends | ({"cut_rows": np.concatenate(rows), "final_obs": concat_obs(final)} if rows else {})
