"""How a policy's decisions are written down: as a `SampleBatch` (PPO), as a `TransitionBatch` (DQN), or not at all.

A row is one decision of an agent: what it saw and did, the reward it collected until it was to decide again or ended.
Rows are filled from the top of every column without gaps, in an agent's own time: row t + 1 is its next decision,
however many turns of others lie between. `valid` is False below the last row: agents decide at different rates, and
those that are out decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import concat_obs, map_obs, take_obs
from rlplat.rl.sampling.sample_batch import SampleBatch
from rlplat.rl.sampling.transition_batch import TransitionBatch

ValuesOf = Callable[[Array, Obs], Array]
"""(columns int64[K], observations [K, ...] that they have now) -> float32[K]"""


class Answered(NamedTuple):
    """Decisions that are complete now, one per column in `columns`."""

    columns: Array
    """int64[M]"""
    obs: Obs
    """[M, ...]"""
    actions: Array
    """[M, ...]"""
    judgements: tuple[Array, Array]
    """float32[M] each: (log_probs, values), or (q_taken, q_max)."""
    core_state: Array
    """float32[M, S]: of the policy's core before each decision."""
    rewards: Array
    terminated: Array
    truncated: Array
    final_obs: Obs
    """[M, ...]: the last observation where `truncated`."""


class Rows(Protocol):
    """One policy's decisions.

    actions, *judgements = rows.decide(policy, obs, columns, deterministic=False)
    rows.write(answered, values_of)
    batch = rows.finish(is_waiting, obs, values, values_of, metadata)       # and begin anew
    """

    @property
    def is_full(self) -> bool:
        """Whether a column has its T rows."""
        ...

    def decide(
        self, policy: Any, obs: Obs, columns: Array, *, deterministic: bool
    ) -> tuple[Array, Array, Array]: ...

    def write(self, answered: Answered, values_of: ValuesOf) -> None: ...

    def finish(
        self, is_waiting: Array, obs: Obs, values: Array, values_of: ValuesOf, metadata: dict[str, Any]
    ) -> Any:
        """is_waiting: bool[B], columns that have seen `obs` [B, ...] and are to decide; values: float32[B], of the
        decisions that are not answered yet, elsewhere."""
        ...


class NoRows:
    """Of a frozen policy, and in evaluation."""

    is_full = False

    def decide(
        self, policy: Any, obs: Obs, columns: Array, *, deterministic: bool
    ) -> tuple[Array, Array, Array]:
        actions, log_probs, values = policy.act(obs, deterministic=deterministic)
        return actions, log_probs, values

    def write(self, answered: Answered, values_of: ValuesOf) -> None:
        pass

    def finish(
        self, is_waiting: Array, obs: Obs, values: Array, values_of: ValuesOf, metadata: dict[str, Any]
    ) -> None:
        pass


class SampleRows:
    """`SampleBatch[T, B]`s."""

    def __init__(self, num_steps: int, empty_obs: Obs, empty_actions: Array) -> None:
        """empty_obs, empty_actions: [B, ...]; what rows that are not valid hold."""
        self._num_steps, self._num_columns = num_steps, len(empty_actions)
        self._empty_obs, self._empty_actions = empty_obs, empty_actions
        self._begin()

    @property
    def is_full(self) -> bool:
        return bool(self._count.max() >= self._num_steps)

    def decide(
        self, policy: Any, obs: Obs, columns: Array, *, deterministic: bool
    ) -> tuple[Array, Array, Array]:
        actions, log_probs, values = policy.act(obs, deterministic=deterministic)
        return actions, log_probs, values

    def write(self, answered: Answered, values_of: ValuesOf) -> None:
        batch, columns = self._batch, answered.columns
        t = self._count[columns]
        _put(batch.obs, (t, columns), answered.obs)
        batch.actions[t, columns] = answered.actions
        batch.log_probs[t, columns], batch.values[t, columns] = answered.judgements
        batch.rewards[t, columns] = answered.rewards
        batch.terminated[t, columns] = answered.terminated
        batch.truncated[t, columns] = answered.truncated
        batch.valid[t, columns] = True
        if answered.core_state.shape[1]:
            if not batch.core_state.size:
                batch.core_state = np.zeros((self._num_columns, answered.core_state.shape[1]), np.float32)
            batch.core_state[columns[t == 0]] = answered.core_state[t == 0]
        cut = np.flatnonzero(answered.truncated)
        if len(cut):  # at once: a core's state is that of now
            batch.next_values[t[cut], columns[cut]] = values_of(
                columns[cut], take_obs(answered.final_obs, cut)
            )
        self._count[columns] += 1

    def finish(
        self, is_waiting: Array, obs: Obs, values: Array, values_of: ValuesOf, metadata: dict[str, Any]
    ) -> SampleBatch:
        batch = self._batch
        # Rows with a successor in the batch have its value; those that were cut off have theirs already.
        followed = batch.valid[1:] & ~batch.truncated[:-1]
        batch.next_values[:-1][followed] = batch.values[1:][followed]
        columns = np.flatnonzero(self._count)
        last = self._count[columns] - 1
        goes_on = ~(batch.terminated[last, columns] | batch.truncated[last, columns])
        columns, last = columns[goes_on], last[goes_on]
        next_values = values[columns]
        waiting = np.flatnonzero(is_waiting[columns])
        if len(waiting):
            rows = columns[waiting]
            next_values[waiting] = values_of(rows, take_obs(obs, rows))
        batch.next_values[last, columns] = next_values
        for name, value in metadata.items():
            setattr(batch, name, value)
        self._begin()
        return batch

    def _begin(self) -> None:
        self._count = np.zeros(self._num_columns, np.int64)
        batch = SampleBatch.empty(self._num_steps, self._empty_obs, self._empty_actions)
        _put(batch.obs, slice(None), self._empty_obs)
        for name in ("log_probs", "values", "next_values", "rewards", "terminated", "truncated", "valid"):
            getattr(batch, name)[:] = 0
        batch.actions[:] = self._empty_actions
        self._batch = batch


class TransitionRows:
    """`TransitionBatch[T, B]`s, epsilon-greedy."""

    def __init__(
        self,
        num_steps: int,
        empty_obs: Obs,
        empty_actions: Array,
        *,
        epsilons: Array | None = None,
    ) -> None:
        """epsilons: float[B], one per column; None: the one that comes with the weights."""
        self._num_steps, self._num_columns = num_steps, len(empty_actions)
        self._empty_obs, self._empty_actions = empty_obs, empty_actions
        self._epsilons = epsilons
        self._core_states: Array
        self.continues = False
        """Whether the next batch's first rows follow the last ones of the one before."""
        self._begin()

    @property
    def is_full(self) -> bool:
        return bool(self._count.max() >= self._num_steps)

    def decide(
        self, policy: Any, obs: Obs, columns: Array, *, deterministic: bool
    ) -> tuple[Array, Array, Array]:
        if self._epsilons is not None:
            policy.epsilon, policy.follows_weights = self._epsilons[columns], False
        actions, q_taken, q_max = policy.choose(obs, deterministic=deterministic)
        return actions, q_taken, q_max

    def write(self, answered: Answered, values_of: ValuesOf) -> None:
        columns = answered.columns
        t = self._count[columns]
        _put(self._obs, (t, columns), answered.obs)
        self._actions[t, columns] = answered.actions
        self._numbers[:, t, columns] = answered.rewards, *answered.judgements
        self._flags[:2, t, columns] = answered.terminated, answered.truncated
        self._flags[2, t, columns] = True
        if not self._core_states.size and answered.core_state.shape[1]:
            shape = (self._num_steps, self._num_columns, answered.core_state.shape[1])
            self._core_states = np.zeros(shape, np.float32)
        self._core_states[t, columns] = answered.core_state
        cut = np.flatnonzero(answered.truncated)
        if len(cut):
            self._cut_rows.append(t[cut] * self._num_columns + columns[cut])
            self._final_obs.append(take_obs(answered.final_obs, cut))
        self._count[columns] += 1

    def finish(
        self, is_waiting: Array, obs: Obs, values: Array, values_of: ValuesOf, metadata: dict[str, Any]
    ) -> TransitionBatch:
        cut_rows, final_obs = np.empty(0, np.int64), take_obs(obs, slice(0, 0))
        if self._cut_rows:
            cut_rows = np.concatenate(self._cut_rows)
            order = np.argsort(cut_rows)
            cut_rows, final_obs = cut_rows[order], take_obs(concat_obs(self._final_obs), order)
        (rewards, q_taken, q_max), (terminated, truncated, valid) = self._numbers, self._flags
        batch = TransitionBatch(
            obs=self._obs,
            actions=self._actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            q_taken=q_taken,
            q_max=q_max,
            cut_rows=cut_rows,
            final_obs=final_obs,
            core_states=self._core_states,
            continues=self.continues,
            **metadata,
        )
        self.continues = True
        self._begin()
        return batch

    def _begin(self) -> None:
        shape = (self._num_steps, self._num_columns)
        self._count = np.zeros(self._num_columns, np.int64)
        self._obs: Obs = map_obs(lambda leaf: np.repeat(leaf[None], self._num_steps, axis=0), self._empty_obs)
        self._actions = np.repeat(self._empty_actions[None], self._num_steps, axis=0)
        self._numbers = np.zeros((3, *shape), np.float32)
        self._flags = np.zeros((3, *shape), np.bool_)
        self._core_states = np.zeros((*shape, 0), np.float32)
        self._cut_rows: list[Array] = []
        self._final_obs: list[Obs] = []


def _put(target: Any, where: Any, rows: Obs) -> None:
    if isinstance(rows, dict):
        for path, leaf in rows.items():
            target[path][where] = leaf
    else:
        target[where] = rows
