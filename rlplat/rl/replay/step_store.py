"""`StepStore`: the steps that a replay remembers, every observation once, and what n steps from each of them came to.

Every environment has a lane, rows in order of time of which the newest stay. Beside the steps a lane holds the last
observation of every episode that was cut off (with hindsight: of every one), and a gap where a worker was replaced:

    step step step(terminated) step step(truncated) FINAL step step GAP step ...

so that what an n-step window needs is always ahead in the same lane. When a window is complete, its return, discount
and bootstrap row are computed, once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlplat.errors import CheckpointError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import concat_obs, map_obs, take_obs
from rlplat.rl.replay.frame_storage import make_storage
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.spaces import ActionSpec, ObsSpec, empty_actions, obs_leaves

GOES_ON, TERMINATED, TRUNCATED, FINAL, GAP = range(5)
"""Kinds of rows; up to TRUNCATED they are decisions of the agent."""


class Written(NamedTuple):
    """What `add` changed."""

    completed: Array
    """int64[N]: rows whose windows are complete now."""
    dropped: Array
    """int64[N]: rows that were, and are gone."""


class StepStore:
    """`num_lanes` lanes of `lane_capacity` rows; row = lane * lane_capacity + place.

    returns[row]     float32: R = r_t + ... + discount^(m-1) r_(t+m-1), m = n_step or fewer where the episode ends
    discounts[row]   float32: discount^m, 0 where it terminated
    is_start[row]    bool: an episode begins, or the core's state is zero, as at a beginning
    num_steps[row]   m: the bootstrap row is m ahead: the final observation where the episode was cut off
    """

    def __init__(
        self,
        obs: ObsSpec | dict[str, ObsSpec],
        action: ActionSpec,
        *,
        num_lanes: int,
        lane_capacity: int,
        n_step: int,
        discount: float,
        clip_rewards: bool = False,
    ) -> None:
        """clip_rewards: learn from their sign."""
        assert lane_capacity > n_step + 1, f"a lane of {lane_capacity} rows has no room for {n_step} steps"
        self.num_lanes, self.lane_capacity, self.n_step = num_lanes, lane_capacity, n_step
        num_rows = num_lanes * lane_capacity
        self.is_tree = isinstance(obs, dict)
        self._storages = {path: make_storage(leaf, num_lanes, lane_capacity) for path, leaf in obs_leaves(obs).items()}
        self._clip_rewards = clip_rewards
        self.powers = discount ** np.arange(n_step + 1)
        """float64[n_step + 1]: discount^m"""
        self.heads = np.zeros(num_lanes, np.int64)
        """int64[lanes]: rows ever written."""
        self.tails = np.zeros(num_lanes, np.int64)
        """int64[lanes]: the oldest that is still there."""
        self.newest = np.full((num_lanes, 2), -1, np.int64)
        """int64[lanes, 2]: incarnation of the worker, and number, of the fragment that was added last."""
        self.stamps = np.full(num_rows, -1, np.int64)
        """int64[rows]: the number of the row in its lane; another one says that the row was overwritten."""
        self.kinds = np.full(num_rows, GAP, np.int8)
        self.is_start = np.zeros(num_rows, np.bool_)
        self.actions = empty_actions(action, num_rows)
        self.rewards = np.zeros(num_rows, np.float32)
        self.q_taken = np.zeros(num_rows, np.float32)
        self.q_max = np.zeros(num_rows, np.float32)
        self.is_complete = np.zeros(num_rows, np.bool_)
        self.returns = np.zeros(num_rows, np.float32)
        self.discounts = np.zeros(num_rows, np.float32)
        self.num_steps = np.zeros(num_rows, np.int16)

    def add(self, batch: TransitionBatch, first_lane: int) -> Written:
        """The batch's environments are the lanes from `first_lane` on."""
        T, B = batch.shape
        lanes = np.arange(first_lane, first_lane + B)
        old_tails = self.tails[lanes]
        before_gaps = self.heads[lanes]
        continues = batch.continues and self._is_next(batch, lanes)
        self.newest[lanes] = batch.incarnation, -1 if batch.number is None else batch.number
        gaps = [] if continues else [self._add_gap(int(lane)) for lane in lanes]
        old_heads = self.heads[lanes]

        # Lane by lane, in order of time; the final observation right after the step that was cut off.
        env, t = np.nonzero(batch.valid.T)
        source = t * B + env
        num_real = len(source)
        if len(batch.cut_rows):
            cut_env, cut_t = batch.cut_rows % B, batch.cut_rows // B
            order = np.argsort(np.concatenate([2 * (env * T + t), 2 * (cut_env * T + cut_t) + 1]), kind="stable")
            env = np.concatenate([env, cut_env])[order]
            is_real = order < num_real
            source = np.concatenate([source, batch.cut_rows])[order]
        else:
            order, is_real = np.arange(num_real), np.ones(num_real, np.bool_)
        counts = np.bincount(env, minlength=B)
        num_new = old_heads - before_gaps + counts
        assert (num_new <= self.lane_capacity).all(), (
            f"{num_new.max()} rows at once do not fit a lane of {self.lane_capacity}"
        )
        within = np.arange(len(env)) - np.repeat(counts.cumsum() - counts, counts)
        stamps = old_heads[env] + within
        row_lanes = lanes[env]
        rows = row_lanes * self.lane_capacity + stamps % self.lane_capacity

        dropped = rows[self.is_complete[rows]]
        kinds = self._kinds(batch, source, is_real)
        previous = np.empty_like(kinds)
        previous[1:] = kinds[:-1]
        firsts = within == 0
        before = row_lanes * self.lane_capacity + (stamps - 1) % self.lane_capacity
        previous[firsts] = np.where(stamps[firsts] > 0, self.kinds[before[firsts]], GAP)

        def put(column: Array, values: Array) -> None:
            column[rows] = values.reshape(T * B, *values.shape[2:])[source]

        put(self.actions, batch.actions)
        put(self.rewards, self.learnt_rewards(batch.rewards))
        if batch.q_taken is not None and batch.q_max is not None:
            put(self.q_taken, batch.q_taken)
            put(self.q_max, batch.q_max)
        self.kinds[rows], self.stamps[rows] = kinds, stamps
        starts = np.isin(previous, (TERMINATED, FINAL, GAP))
        if batch.core_states.shape[2]:
            # The state was forgotten also after a row that is dropped because it is not valid (FIRE after a lost life).
            starts |= ~batch.core_states.any(axis=2).reshape(-1)[source]
        self.is_start[rows] = is_real & starts
        self.is_complete[rows] = False
        obs: Obs = map_obs(lambda leaf: leaf.reshape(T * B, *leaf.shape[2:]), batch.obs)
        obs = take_obs(obs, source[is_real])
        if len(batch.cut_rows):
            obs = take_obs(concat_obs([obs, batch.final_obs]), order)
        for path, storage in self._storages.items():
            storage.put(rows, row_lanes, obs[path] if isinstance(obs, dict) else obs)
        self.heads[lanes] += counts
        self.tails[lanes] = np.maximum(self.tails[lanes], self.heads[lanes] - self.lane_capacity)
        dropped = np.concatenate([dropped, *gaps])

        starts = np.maximum(old_heads - self.n_step, np.maximum(old_tails, self.tails[lanes]))
        return Written(self._complete(lanes, starts), dropped)

    def get_obs(self, rows: Array) -> Obs:
        """rows: int64[...] -> [..., *shape] or a dict of such."""
        if self.is_tree:
            return {path: storage.get(rows) for path, storage in self._storages.items()}
        return self._storages[""].get(rows)

    def get_leaf(self, path: str, rows: Array) -> Array:
        """One leaf of the observations of these rows."""
        return self._storages[path].get(rows)

    def learnt_rewards(self, rewards: Array) -> Array:
        """float32[...]: what is learnt from, of raw rewards."""
        return np.sign(rewards) if self._clip_rewards else rewards

    def discounted(self, rewards: Array) -> Array:
        """float[N, n_step] -> float[N]: their discounted sums."""
        total: Array = rewards @ self.powers[: self.n_step]
        return total

    def bootstrap_rows(self, rows: Array) -> Array:
        """The rows at the ends of these rows' windows."""
        return self.ahead(rows, self.num_steps[rows])

    def ahead(self, rows: Array, num_rows: Any) -> Array:
        """The rows that come `num_rows` later in the same lanes."""
        places = rows % self.lane_capacity
        return rows - places + (places + num_rows) % self.lane_capacity

    def rows_in_use(self) -> Array:
        """int64[N], lane by lane, oldest first."""
        parts = [
            lane * self.lane_capacity + np.arange(self.tails[lane], self.heads[lane]) % self.lane_capacity
            for lane in range(self.num_lanes)
        ]
        return np.concatenate(parts)

    def get_state(self) -> dict[str, Any]:
        """The filled part only."""
        rows = self.rows_in_use()
        return {
            "shape": [self.num_lanes, self.lane_capacity, self.n_step],
            "heads": self.heads.copy(),
            "tails": self.tails.copy(),
            "newest": self.newest.copy(),
            "columns": {name: getattr(self, name)[rows] for name in _COLUMNS},
            "obs": {path or "obs": storage.get_state(rows) for path, storage in self._storages.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Into a store of the same shape; what it held is forgotten."""
        shape = [self.num_lanes, self.lane_capacity, self.n_step]
        if list(state["shape"]) != shape:
            raise CheckpointError(
                f"the saved replay (environments, steps of each, n_step: {list(state['shape'])}) does not fit this one "
                f"({shape}): begin with an empty one, --set save_replay=false"
            )
        self.heads[:], self.tails[:] = state["heads"], state["tails"]
        self.newest[:] = state.get("newest", -1)
        self.stamps[:], self.kinds[:], self.is_complete[:] = -1, GAP, False
        rows = self.rows_in_use()
        for name in _COLUMNS:
            getattr(self, name)[rows] = state["columns"][name]
        for path, storage in self._storages.items():
            storage.set_state(rows, state["obs"][path or "obs"])

    def _is_next(self, batch: TransitionBatch, lanes: Array) -> bool:
        """Whether it comes right behind what the lanes have: a fragment between them may have been lost on its way."""
        if batch.number is None:
            return True
        return bool((self.newest[lanes] == (batch.incarnation, batch.number - 1)).all())

    def _kinds(self, batch: TransitionBatch, source: Array, is_real: Array) -> Array:
        terminated, truncated = batch.terminated.reshape(-1)[source], batch.truncated.reshape(-1)[source]
        kinds = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, GOES_ON))
        return np.where(is_real, kinds, FINAL).astype(np.int8)

    def _add_gap(self, lane: int) -> Array:
        """Nothing that waits for what comes next will get it -> the row that made room, where it was complete."""
        stamp = int(self.heads[lane])
        row = lane * self.lane_capacity + stamp % self.lane_capacity
        before = lane * self.lane_capacity + (stamp - 1) % self.lane_capacity
        if stamp == 0 or self.kinds[before] in (TERMINATED, FINAL):
            return np.empty(0, np.int64)
        dropped = np.full(int(self.is_complete[row]), row, np.int64)
        self.is_complete[row] = False
        self.kinds[row], self.stamps[row], self.is_start[row] = GAP, stamp, False
        self.rewards[row] = 0.0
        for storage in self._storages.values():
            storage.put_gap(row, lane)
        self.heads[lane] += 1
        return dropped

    def _complete(self, lanes: Array, starts: Array) -> Array:
        """Compute the windows that became complete, of rows from `starts` (stamps, one per lane) on."""
        n, heads = self.n_step, self.heads[lanes]
        counts = heads - starts
        each = np.repeat(np.arange(len(lanes)), counts)
        stamps = np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)
        lane_heads = heads[each]
        base = lanes[each] * self.lane_capacity
        rows = base + stamps % self.lane_capacity

        ahead = stamps[:, None] + np.arange(n)
        is_there = ahead < lane_heads[:, None]
        window = base[:, None] + ahead % self.lane_capacity
        kinds = self.kinds[window]
        is_end = (kinds == TERMINATED) | (kinds == TRUNCATED)
        is_used = np.ones(window.shape, np.bool_)
        if n > 1:
            is_used[:, 1:] = ~np.logical_or.accumulate(is_end[:, :-1], axis=1)
        num_steps = is_used.sum(axis=1)
        terminated = kinds[np.arange(len(rows)), num_steps - 1] == TERMINATED
        bootstrap = base + (stamps + num_steps) % self.lane_capacity
        has_bootstrap = (stamps + num_steps < lane_heads) & (self.kinds[bootstrap] != GAP)
        is_sound = ((is_there & (kinds <= TRUNCATED)) | ~is_used).all(axis=1)
        is_now = is_sound & (terminated | has_bootstrap) & ~self.is_complete[rows]

        rows, num_steps = rows[is_now], num_steps[is_now]
        rewards = self.rewards[window[is_now]] * is_used[is_now]
        self.returns[rows] = self.discounted(rewards)
        self.discounts[rows] = self.powers[num_steps] * ~terminated[is_now]
        self.num_steps[rows] = num_steps
        self.is_complete[rows] = True
        return rows


_COLUMNS = (
    "stamps", "kinds", "is_start", "actions", "rewards", "q_taken", "q_max", "is_complete", "returns", "discounts",
    "num_steps",
)  # fmt: skip
