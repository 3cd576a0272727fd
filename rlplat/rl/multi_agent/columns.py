"""`PolicyColumns`: one policy acting for its columns of a `MultiAgentVectorEnv`.

    while not columns.rows.is_full:
        turns = env.step({name: columns.act()})[name]
        columns.take(turns)
    batch = columns.finish(weights_version=version)

A decision that is not answered when a batch is finished becomes the first row of the next one: nothing is lost, and
nothing is learnt from half a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs, Policy
from rlplat.rl.multi_agent.vector_env import Turns
from rlplat.rl.obs_tree import map_obs, take_obs
from rlplat.rl.sampling.rows import Answered, Rows
from rlplat.rl.spaces import ActionSpec


class PolicyColumns:
    def __init__(
        self, policy: Policy, rows: Rows, empty_obs: Obs, empty_actions: Array, *, has_core: bool
    ) -> None:
        """empty_obs, empty_actions: [B, ...]."""
        self.policy, self.rows = policy, rows
        self._num_columns, self._has_core = len(empty_actions), has_core
        self._obs: Obs = map_obs(np.array, empty_obs)
        """[B, ...]: what each column is to decide on, or decided on."""
        self._acting = np.zeros(0, np.int64)
        """Columns that are to act, in the order in which their actions are given."""
        self._is_waiting = np.zeros(self._num_columns, np.bool_)
        """bool[B]: the same."""
        self._actions = np.array(empty_actions)
        self._judgements = np.zeros((2, self._num_columns), np.float32)
        self._cores = np.zeros((self._num_columns, 0), np.float32)
        """What the core's state was before each column's last decision."""

    def act(self, *, deterministic: bool = False) -> Array:
        """Decide for the columns that are to act: actions [N, ...]."""
        columns = self._acting
        if not len(columns):
            return self._actions[:0]
        if self._has_core:
            actions, judgements = self._act_through_core(columns, deterministic)
        else:
            obs = take_obs(self._obs, columns)
            actions, *judgements = self.rows.decide(self.policy, obs, columns, deterministic=deterministic)
        self._actions[columns] = actions
        self._judgements[:, columns] = judgements
        self._is_waiting[columns] = False
        return actions

    def take(self, turns: Turns) -> None:
        """Write down the decisions that are answered; keep what is to be decided next."""
        columns = turns.answered
        if len(columns):
            first, second = self._judgements[:, columns]
            answered = Answered(
                columns,
                take_obs(self._obs, columns),
                self._actions[columns],
                (first, second),
                self._cores[columns],
                turns.rewards,
                turns.terminated,
                turns.truncated,
                turns.final_obs,
            )
            self.rows.write(answered, self._values_of)
            if self._has_core:
                ended = np.zeros(self._num_columns, np.bool_)
                ended[columns] = turns.terminated | turns.truncated
                self.policy.reset_core(ended)
        self._acting = turns.acting
        self._is_waiting[turns.acting] = True
        self._put_obs(self._obs, turns.acting, turns.obs)

    def finish(self, **metadata: Any) -> Any:
        """The rows since the last call; metadata: weights_version, worker_index, incarnation, ..."""
        return self.rows.finish(self._is_waiting, self._obs, self._judgements[1], self._values_of, metadata)

    def forget(self) -> None:
        """New games begin everywhere: decisions that are open stay unanswered."""
        self._acting = np.zeros(0, np.int64)
        self._is_waiting[:] = False
        if self._has_core and len(self.policy.core_state) == self._num_columns:
            self.policy.reset_core(np.ones(self._num_columns, np.bool_))

    def _act_through_core(self, columns: Array, deterministic: bool) -> tuple[Array, Any]:
        """All rows pass through the core; those that do not act keep the state that they had."""
        everyone = np.arange(self._num_columns)
        before = np.array(self.policy.core_state)
        if len(before) != self._num_columns:  # rows appear with the first decision
            before = np.zeros((self._num_columns, before.shape[1]), np.float32)
        decided = self.rows.decide(self.policy, self._obs, everyone, deterministic=deterministic)
        if len(columns) < self._num_columns:
            after = np.array(self.policy.core_state)
            others = ~self._is_waiting
            after[others] = before[others]
            self.policy.core_state = after
        if self._cores.shape != before.shape:
            self._cores = np.zeros_like(before)
        self._cores[columns] = before[columns]
        actions, *judgements = (each[columns] for each in decided)
        return actions, judgements

    def _values_of(self, columns: Array, obs: Obs) -> Array:
        """V of observations [K, ...] that these columns have now: float32[K]."""
        if not self._has_core:
            return self.policy.values(obs)
        everyone: Obs = map_obs(np.array, self._obs)
        self._put_obs(everyone, columns, obs)
        values: Array = self.policy.values(everyone)[columns]
        return values

    @staticmethod
    def _put_obs(target: Obs, columns: Array, obs: Obs) -> None:
        if isinstance(target, dict):
            assert isinstance(obs, dict)
            for path, leaf in target.items():
                leaf[columns] = obs[path]
        else:
            target[columns] = obs


def empty_actions(action: ActionSpec, num_rows: int) -> Array:
    """Zeros, shaped as `PolicyOutput.actions`."""
    if action.kind == "discrete":
        return np.zeros(num_rows, np.int64)
    is_whole = action.kind in ("multi_discrete", "multi_binary")
    return np.zeros((num_rows, action.flat_size), np.int64 if is_whole else np.float32)
