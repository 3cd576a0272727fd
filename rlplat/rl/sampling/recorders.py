"""Recorders: how decisions of a policy become a batch, a `SampleBatch` (PPO, A3C) or a `TransitionBatch` (DQN).

A row is one decision: what was seen and done, the reward until the next decision, and whether the episode ended with
it. Two workers write them, for one agent and for several:

    for t in range(T):
        output = policy.act(obs)
        recorder.decided(t, obs, output, core_state)
        step = env.step(output.actions)
        recorder.answered(t, step.rewards, step.terminated, step.truncated, step.valid, step.final_obs)
        obs = step.obs
    batch = recorder.finish(lambda batch: (T - 1, policy.values(obs)), weights_version=3, ...)        # and begin anew

With one agent a row is the same moment in all columns, and `valid` is False where an environment only reset itself.
With several each column is in its agent's own time: row t + 1 is its next decision, however many turns of others lie
between, and `valid` is False below a column's last row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Policy, PolicyOutput
from rlplat.rl.obs_tree import concat_obs, copy_obs, obs_rows, put_obs, take_obs
from rlplat.rl.sampling.sample_batch import SampleBatch, TransitionBatch
from rlplat.rl.spaces import ActionSpec, empty_actions

Where = int | tuple[Array, Array]
"""Row t of all columns, or rows int64[M] of columns int64[M]."""
ValuesOf = Callable[[Array, Obs], Array]
"""(columns int64[K], observations [K, ...] that they have now) -> float32[K]"""
Following = Callable[[Any], tuple[Where, Array]]
"""The batch -> its last rows, and the values float32 of what comes after them; asked for where values are recorded."""
Record = Literal["samples", "samples_and_ends", "transitions", "transitions_and_ends"]


class Recorder:
    """What both have in common: obs, actions, rewards, ends, the core's states, and who was cut off."""

    needs_every_core = False
    """Whether `decided` is to be given the core's state in every row, or in row 0 only."""

    def __init__(
        self, num_steps: int, obs: Obs, action: ActionSpec, core_size: int, *, keeps_every_end: bool = False
    ) -> None:
        """obs: [B, ...], for shapes and dtypes; core_size: S of the policy's core, 0 without one; keeps_every_end: the
        last observation of an episode is kept where it terminated as well."""
        self._keeps_every_end = keeps_every_end
        self._num_steps, self._obs_like = num_steps, obs
        self._num_columns = obs_rows(obs)
        self._actions_like = empty_actions(action, self._num_columns)
        self._core_size = core_size
        self.continues = False
        """Whether the next batch's first rows follow the last ones of the one before."""
        self.number = 0
        """Of batches made so far; what a batch is called by."""
        self._begin()

    def decided(self, where: Where, obs: Obs, output: PolicyOutput, core_state: Array | None) -> None:
        """Before the environment steps: it may write its next observation into the memory of `obs`.

        core_state: float32[columns, S] before the decision, where there is a core and it is asked for.
        """
        put_obs(self._batch.obs, where, obs)
        self._batch.actions[where] = output.actions
        if core_state is not None:
            self._cores[where] = core_state

    def answered(
        self,
        where: Where,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        valid: Any,
        final_obs: Obs | None,
    ) -> None:
        """What came of a decision; final_obs: the last observations where an episode ended, None if none did."""
        batch = self._batch
        batch.rewards[where] = rewards
        batch.terminated[where] = terminated
        batch.truncated[where] = truncated
        batch.valid[where] = valid
        kept = truncated | terminated if self._keeps_every_end else truncated
        if final_obs is not None and len(cut := np.flatnonzero(kept)):
            t, columns = (where, cut) if isinstance(where, int) else (where[0][cut], where[1][cut])
            self._cut_rows.append(t * self._num_columns + columns)
            self._cut(columns, take_obs(final_obs, cut))

    def forced(self, where: Where, forced: Array) -> None:
        """After `answered`: where FIRE was pressed, bool. A replay holds no such rows."""

    def finish(self, following: Following, **metadata: Any) -> Any:
        """The batch; metadata: weights_version, worker_index, incarnation, episodes, timing."""
        batch = self._batch
        self._complete(batch, following)
        for name, value in metadata.items():
            setattr(batch, name, value)
        batch.check_valid()
        self.continues = True
        self.number += 1
        self._begin()
        return batch

    def drop(self) -> None:
        """What was written since the last batch is lost: the next one follows nothing."""
        self.continues = False
        self._begin()

    def _begin(self) -> None:
        self._batch: Any = self._empty()
        self._cores = np.zeros((self._num_steps, self._num_columns, self._core_size), np.float32)
        self._cut_rows: list[Array] = []
        """t * B + b of episodes that were cut off"""
        self._last_obs: list[Obs] = []

    def _empty(self) -> Any:
        raise NotImplementedError

    def _cut(self, columns: Array, last_obs: Obs) -> None:
        self._last_obs.append(last_obs)

    def _complete(self, batch: Any, following: Following) -> None:
        raise NotImplementedError


class Samples(Recorder):
    """`SampleBatch[T, B]`s."""

    def __init__(
        self,
        num_steps: int,
        obs: Obs,
        action: ActionSpec,
        core_size: int,
        *,
        values_of: ValuesOf | None,
        values_at_once: bool,
    ) -> None:
        """values_of: V of last observations, None: these are in the batch, in place of their values under the weights
        that acted; values_at_once: when an episode is cut off, as a core's state is that of now; else of all in the
        end, in one pass."""
        self._values_of, self._values_at_once = values_of, values_at_once
        super().__init__(num_steps, obs, action, core_size)

    def decided(self, where: Where, obs: Obs, output: PolicyOutput, core_state: Array | None) -> None:
        super().decided(where, obs, output, core_state)
        self._batch.log_probs[where] = output.log_probs
        self._batch.values[where] = output.values

    def _empty(self) -> SampleBatch:
        self._cut_columns: list[Array] = []
        self._cut_values: list[Array] = []
        return SampleBatch.empty(self._num_steps, self._obs_like, self._actions_like)

    def _cut(self, columns: Array, last_obs: Obs) -> None:
        if self._values_of is not None and self._values_at_once:
            self._cut_values.append(self._values_of(columns, last_obs))
        else:
            self._cut_columns.append(columns)
            self._last_obs.append(last_obs)

    def _complete(self, batch: SampleBatch, following: Following) -> None:
        if self._core_size:
            batch.core_state = self._cores[0].copy()
        if self._values_of is None:
            if self._cut_rows:
                batch.cut_rows, batch.final_obs = np.concatenate(self._cut_rows), concat_obs(self._last_obs)
            return
        batch.next_values[:-1] = batch.values[1:]
        last, values = following(batch)
        batch.next_values[last] = values
        if self._last_obs:
            columns = np.concatenate(self._cut_columns)
            self._cut_values = [self._values_of(columns, concat_obs(self._last_obs))]
        if self._cut_rows:
            batch.next_values.reshape(-1)[np.concatenate(self._cut_rows)] = np.concatenate(self._cut_values)

    def forced(self, where: Where, forced: Array) -> None:
        batch: SampleBatch = self._batch
        if batch.forced is None:
            batch.forced = np.zeros(batch.shape, np.bool_)
        batch.forced[where] = forced


class Transitions(Recorder):
    """`TransitionBatch[T, B]`s; with Q-values where the policy acts by them."""

    needs_every_core = True

    def decided(self, where: Where, obs: Obs, output: PolicyOutput, core_state: Array | None) -> None:
        super().decided(where, obs, output, core_state)
        if output.q_taken is None:
            return
        batch: TransitionBatch = self._batch
        if batch.q_taken is None or batch.q_max is None:
            batch.q_taken, batch.q_max = (np.zeros(batch.shape, np.float32) for _ in range(2))
        batch.q_taken[where] = output.q_taken
        batch.q_max[where] = output.values

    def _empty(self) -> TransitionBatch:
        return TransitionBatch.empty(self._num_steps, self._obs_like, self._actions_like)

    def _complete(self, batch: TransitionBatch, following: Following) -> None:
        if self._cut_rows:
            rows = np.concatenate(self._cut_rows)
            order = np.argsort(rows)
            batch.cut_rows, batch.final_obs = rows[order], take_obs(concat_obs(self._last_obs), order)
        batch.core_states = self._cores
        batch.continues, batch.number = self.continues, self.number


def make_recorder(
    record: Record,
    num_steps: int,
    obs: Obs,
    action: ActionSpec,
    core_size: int,
    *,
    values_of: ValuesOf,
    values_at_once: bool,
) -> Recorder:
    """See `Samples`; transitions need no values."""
    if record.startswith("transitions"):
        is_every = record == "transitions_and_ends"
        return Transitions(num_steps, obs, action, core_size, keeps_every_end=is_every)
    wanted = values_of if record == "samples" else None
    return Samples(num_steps, obs, action, core_size, values_of=wanted, values_at_once=values_at_once)


def values_in_columns(policy: Policy, obs: Obs, columns: Array, of: Obs) -> Array:
    """V of observations `of` [K, ...] in these columns of a policy with a core, whose state has a row for each column.

    obs: [B, ...], for its shape.
    """
    everyone = copy_obs(obs)
    put_obs(everyone, columns, of)
    return policy.values(everyone)[columns]


def has_core(policy: dict[str, Any]) -> bool:
    """policy: a config's section. A network of the user's own may carry a state, too."""
    return policy["core"] != "none" or bool(policy["custom"])
