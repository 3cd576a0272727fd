"""`PolicyColumns`: one policy acting for its columns of a `MultiAgentVectorEnv`.

    while not columns.is_full:
        turns = env.step({name: columns.act()})[name]
        columns.take(turns)
    batch = columns.finish(weights_version=version)

A decision that is not answered when a batch is finished becomes the first row of the next one: nothing is lost, and
nothing is learnt from half a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Policy, PolicyOutput
from rlplat.rl.multi_agent.vector_env import Turns
from rlplat.rl.obs_tree import copy_obs, put_obs, take_obs
from rlplat.rl.sampling.recorders import Record, make_recorder, values_in_columns
from rlplat.rl.spaces import ActionSpec, empty_actions


class PolicyColumns:
    def __init__(
        self,
        policy: Policy,
        empty_obs: Obs,
        action: ActionSpec,
        num_columns: int,
        *,
        has_core: bool,
        record: Record | None = None,
        num_steps: int = 0,
    ) -> None:
        """empty_obs: [B, ...]; record: as what batches, of num_steps rows; None: a frozen policy, or evaluation."""
        self.policy = policy
        self._num_columns, self._num_steps, self._has_core = num_columns, num_steps, has_core
        self._obs = copy_obs(empty_obs)
        """[B, ...]: what each column is to decide on, or decided on."""
        self._acting = np.zeros(0, np.int64)
        """Columns that are to act, in the order in which their actions are given."""
        self._is_waiting = np.zeros(num_columns, np.bool_)
        """bool[B]: the same."""
        core_size = policy.core_state.shape[1]
        self._cores = np.zeros((num_columns, core_size), np.float32)
        """What the core's state was before each column's last decision."""
        zeros = np.zeros(num_columns, np.float32)
        self._last = PolicyOutput(empty_actions(action, num_columns), zeros, zeros.copy())
        """Each column's last decision."""
        self._count = np.zeros(num_columns, np.int64)
        """int64[B]: rows recorded since the last batch."""
        self._recorder = None
        if record is not None:
            self._recorder = make_recorder(
                record,
                num_steps,
                self._obs,
                action,
                core_size,
                values_of=self._values_of,
                values_at_once=True,
            )

    @property
    def is_full(self) -> bool:
        """Whether a column has its T rows."""
        return bool(self._count.max() >= self._num_steps)

    def act(self, *, deterministic: bool = False) -> Array:
        """Decide for the columns that are to act: actions [N, ...]."""
        columns = self._acting
        if not len(columns):
            return self._last.actions[:0]
        if self._has_core:
            output = self._act_through_core(columns, deterministic)
        else:
            output = self.policy.act(take_obs(self._obs, columns), deterministic=deterministic)
        if output.q_taken is not None and self._last.q_taken is None:
            self._last = self._last._replace(q_taken=np.zeros(self._num_columns, np.float32))
        for last, new in zip(self._last, output, strict=True):
            if last is not None:
                last[columns] = new
        self._is_waiting[columns] = False
        return output.actions

    def take(self, turns: Turns) -> None:
        """Record the decisions that are answered; keep what is to be decided next."""
        columns = turns.answered
        if len(columns):
            if self._recorder is not None:
                where = self._count[columns], columns
                obs, decided = take_obs(self._obs, columns), _rows(self._last, columns)
                self._recorder.decided(where, obs, decided, self._cores[columns])
                self._recorder.answered(
                    where, turns.rewards, turns.terminated, turns.truncated, True, turns.final_obs
                )
                self._count[columns] += 1
            if self._has_core:
                ended = np.zeros(self._num_columns, np.bool_)
                ended[columns] = turns.terminated | turns.truncated
                self.policy.reset_core(ended)
        self._acting = turns.acting
        self._is_waiting[turns.acting] = True
        put_obs(self._obs, turns.acting, turns.obs)

    def finish(self, **metadata: Any) -> Any:
        """The rows since the last call; metadata: weights_version, worker_index, incarnation, ..."""
        assert self._recorder is not None
        batch = self._recorder.finish(self._following, **metadata)
        self._count[:] = 0
        return batch

    def forget(self) -> None:
        """New games begin everywhere: decisions that are open stay unanswered."""
        self._acting = np.zeros(0, np.int64)
        self._is_waiting[:] = False
        self._count[:] = 0
        if self._recorder is not None:
            self._recorder.drop()
        if self._has_core and len(self.policy.core_state) == self._num_columns:
            self.policy.reset_core(np.ones(self._num_columns, np.bool_))

    def _act_through_core(self, columns: Array, deterministic: bool) -> PolicyOutput:
        """All rows pass through the core; those that do not act keep the state that they had."""
        before = np.array(self.policy.core_state)
        if len(before) != self._num_columns:  # rows appear with the first decision
            before = np.zeros_like(self._cores)
        output = self.policy.act(self._obs, deterministic=deterministic)
        if len(columns) < self._num_columns:
            after = np.array(self.policy.core_state)
            others = ~self._is_waiting
            after[others] = before[others]
            self.policy.core_state = after
        self._cores[columns] = before[columns]
        return _rows(output, columns)

    def _following(self, batch: Any) -> tuple[tuple[Array, Array], Array]:
        """The last rows that no end follows, and the values of what comes after them."""
        columns = np.flatnonzero(self._count)
        last = self._count[columns] - 1
        goes_on = ~(batch.terminated[last, columns] | batch.truncated[last, columns])
        columns, last = columns[goes_on], last[goes_on]
        values = self._last.values[columns]  # of decisions that are not answered yet
        waiting = np.flatnonzero(self._is_waiting[columns])
        if len(waiting):
            undecided = columns[waiting]
            values[waiting] = self._values_of(undecided, take_obs(self._obs, undecided))
        return (last, columns), values

    def _values_of(self, columns: Array, obs: Obs) -> Array:
        """V of observations [K, ...] that these columns have now: float32[K]."""
        if self._has_core:
            return values_in_columns(self.policy, self._obs, columns, obs)
        return self.policy.values(obs)


def _rows(output: PolicyOutput, rows: Array) -> PolicyOutput:
    actions, log_probs, values, q_taken = output
    return PolicyOutput(
        actions[rows], log_probs[rows], values[rows], None if q_taken is None else q_taken[rows]
    )
