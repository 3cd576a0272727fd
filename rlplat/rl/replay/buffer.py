"""Replay: what rollout workers saw, drawn again uniformly or in proportion to priorities (Schaul et al. 2016).

    P(i) = p_i^alpha / sum_k p_k^alpha           alpha = 0: uniform
    w_i  = (N P(i))^-beta, divided by the largest of the minibatch

`ReplayBuffer` draws single transitions, `SequenceReplay` stretches of time for policies with a core. Both are plain
objects: within the learner in the synchronous ring, actors (replay shards) in the asynchronous one.

    replay = ReplayBuffer(store, alpha=0.6, seed=seed)
    replay.add(batch, first_lane=0)
    minibatch = replay.sample(32, beta=0.4)
    replay.update_priorities(minibatch.rows, minibatch.stamps, abs(td_errors))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import psutil

from rlplat.errors import ConfigError
from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import take_obs
from rlplat.rl.replay.frame_storage import new_frames
from rlplat.rl.replay.hindsight import Hindsight, Relabeller
from rlplat.rl.replay.step_store import FINAL, GAP, StepStore
from rlplat.rl.replay.sum_tree import SumTree
from rlplat.rl.sampling.sample_batch import TransitionBatch
from rlplat.rl.saved import Saved
from rlplat.rl.spaces import ActionSpec, ObsSpec, obs_leaves
from rlplat.rl.spread import is_one_machine

BYTES_BESIDE_OBS = 64
"""Of a row: action, rewards, returns, marks, its share of a sum tree."""
MIN_PRIORITY = 1e-6
"""Added to every priority: what has no error today may have one tomorrow."""


@dataclass(slots=True)
class Minibatch:
    """M transitions of up to n steps."""

    obs: Obs
    """[M, ...]"""
    actions: Array
    """[M, ...], as `PolicyOutput.actions`"""
    returns: Array
    """float32[M]: the discounted rewards of the window."""
    discounts: Array
    """float32[M]: what the value of `next_obs` counts; 0 where the episode terminated."""
    next_obs: Obs
    """[M, ...]: n steps later, or the final observation where the episode was cut off before."""
    weights: Array
    """float32[M]: importance weights."""
    rows: Array
    """int64[M]: where it is in the replay."""
    stamps: Array
    """int64[M]: what was there when it was drawn."""

    def with_obs(self, change: Callable[[Obs], Obs]) -> Minibatch:
        """The same with all observations changed."""
        return replace(self, obs=change(self.obs), next_obs=change(self.next_obs))

    def part(self, start: int, stop: int) -> Minibatch:
        """The transitions from `start` to `stop`, without a copy."""
        names = (f.name for f in fields(self))
        parts: Any = {name: take_obs(getattr(self, name), slice(start, stop)) for name in names}
        return Minibatch(**parts)


@dataclass(slots=True)
class SequenceMinibatch:
    """M stretches of L = burn_in + U + n_step rows of a lane, time first (Kapturowski et al. 2019)."""

    obs: Obs
    """[L, M, ...]"""
    starts: Array
    """bool[L, M]: the core's state is forgotten before this row, as where an episode begins."""
    core_states: Array
    """float32[M, S]: of the policy when it acted on row 0."""
    actions: Array
    """[U, M, ...]: of the rows after the burn-in, as are the next ones."""
    returns: Array
    """float32[U, M]"""
    discounts: Array
    """float32[U, M]"""
    bootstraps: Array
    """int64[U, M]: the row (0..L-1) at the end of the window."""
    mask: Array
    """float32[U, M]: 1 for what is to be learnt from; 0 for final observations and where a window breaks off."""
    weights: Array
    """float32[M]: importance weights."""
    rows: Array
    """int64[M]: which stretch it is in the replay."""
    stamps: Array
    """int64[M]: what was there when it was drawn."""

    def with_obs(self, change: Callable[[Obs], Obs]) -> SequenceMinibatch:
        return replace(self, obs=change(self.obs))

    def part(self, start: int, stop: int) -> SequenceMinibatch:
        """The sequences from `start` to `stop`, without a copy."""
        names = (f.name for f in fields(self))
        by_sequence = ("core_states", "weights", "rows", "stamps")
        columns = slice(start, stop)
        parts: Any = {
            name: take_obs(getattr(self, name), columns if name in by_sequence else (slice(None), columns))
            for name in names
        }
        return SequenceMinibatch(**parts)


class TargetsAhead:
    """A target network's outputs for many minibatches at once: half the work, as long as that network stays the same.

    ahead = TargetsAhead(net.target_outputs)
    next_outputs = ahead.of(drawn, start, size, num_steps)
    """

    def __init__(self, outputs_of: Callable[[Obs], Any]) -> None:
        self._outputs_of, self._first, self._stop = outputs_of, 0, 0

    def of(self, drawn: Any, start: int, size: int, num_steps: int) -> Any:
        """For `size` rows from `start` on; num_steps: minibatches from here to the next change of the network."""
        if start >= self._stop:
            self._first, self._stop = start, start + num_steps * size
            self._outputs = self._outputs_of(drawn.part(self._first, self._stop).next_obs)
        return self._outputs[start - self._first : start - self._first + size]


class ReplayBuffer(Saved):
    """Single transitions."""

    saved = {"store": "store", "rng": "_rng"}

    def __init__(
        self,
        store: StepStore,
        *,
        alpha: float,
        seed: np.random.SeedSequence,
        hindsight: Hindsight | None = None,
    ) -> None:
        """alpha: 0 draws uniformly; hindsight: uniform draws only, of environments with goals."""
        assert alpha == 0 or hindsight is None, "a priority is of one goal"
        self.store = store
        self._relabeller = Relabeller(hindsight, store) if hindsight is not None else None
        num_rows = store.num_lanes * store.lane_capacity
        self._priorities = Priorities(num_rows, alpha) if alpha > 0 else None
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._num_complete = 0

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._num_complete

    def add(self, batch: TransitionBatch, first_lane: int, *, priorities_by_actor: bool = False) -> None:
        """priorities_by_actor: new ones get the error under the weights that acted (Horgan et al. 2018), else the
        largest priority so far (Schaul et al. 2016)."""
        store = self.store
        completed, dropped = store.add(batch, first_lane)
        self._num_complete += len(completed) - len(dropped)
        if self._relabeller is not None:
            self._relabeller.spans.extend()
        if self._priorities is None:
            return
        self._priorities.remove(dropped)
        if not priorities_by_actor:
            self._priorities.add(completed)
            return
        ends = store.bootstrap_rows(completed)
        has_future = store.discounts[completed] > 0
        futures = np.where(has_future, store.discounts[completed] * store.q_max[ends], 0.0)
        errors = np.abs(store.returns[completed] + futures - store.q_taken[completed])
        is_known = ~has_future | (store.kinds[ends] < FINAL)  # at a final observation nobody acted
        self._priorities.add(completed[~is_known])
        self._priorities.set(completed[is_known], errors[is_known])

    def sample(self, batch_size: int, beta: float = 0.0) -> Minibatch:
        """`batch_size` independent draws."""
        assert self._num_complete > 0, "nothing to draw yet"
        if self._priorities is None:
            rows, weights = self._draw_uniformly(batch_size), np.ones(batch_size, np.float32)
        else:
            rows, weights = self._priorities.draw(self._rng, batch_size, self._num_complete, beta)
        drawn = self._minibatch(rows, weights)
        if self._relabeller is not None:
            self._relabeller.relabel(drawn, self._rng)
        return drawn

    def everything(self) -> Minibatch:
        """Each transition that can be drawn, once, lane by lane, the oldest first."""
        rows = self.store.rows_in_use()
        rows = rows[self.store.is_complete[rows]]
        return self._minibatch(rows, np.ones(len(rows), np.float32))

    def _minibatch(self, rows: Array, weights: Array) -> Minibatch:
        store = self.store
        return Minibatch(
            obs=store.get_obs(rows),
            actions=store.actions[rows],
            returns=store.returns[rows],
            discounts=store.discounts[rows],
            next_obs=store.get_obs(np.where(store.discounts[rows] > 0, store.bootstrap_rows(rows), rows)),
            weights=weights,
            rows=rows,
            stamps=store.stamps[rows],
        )

    def update_priorities(self, rows: Array, stamps: Array, priorities: Array) -> None:
        """New priorities (errors, any sign) of what was drawn; those that were overwritten meanwhile are left out."""
        if self._priorities is not None:
            same = self.store.is_complete[rows] & (self.store.stamps[rows] == stamps)
            self._priorities.set(rows[same], priorities[same])

    def get_state(self) -> dict[str, Any]:
        kept = self._priorities.get_state(self.store.rows_in_use()) if self._priorities is not None else None
        return super().get_state() | {"priorities": kept}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._num_complete = int(self.store.is_complete.sum())
        if self._relabeller is not None:
            self._relabeller.spans.begin_anew()
        if self._priorities is not None:
            self._priorities.set_state(self.store.rows_in_use(), state["priorities"])

    def _draw_uniformly(self, size: int) -> Array:
        """Rows until they are complete ones: few are not, so this is quick; every complete row is equally likely."""
        store = self.store
        span = int(min(store.heads.max(), store.lane_capacity))
        rows = np.empty(0, np.int64)
        while len(rows) < size:
            draws = self._rng.integers(store.num_lanes * span, size=size - len(rows))
            if store.num_lanes > 1:
                draws = draws // span * store.lane_capacity + draws % span
            rows = np.concatenate([rows, draws[store.is_complete[draws]]])
        return rows


class SequenceReplay(Saved):
    """Stretches of a lane that begin at every `stride`-th row, with the core's state kept there."""

    saved = {
        "store": "store",
        "rng": "_rng",
        "core_states": "_core_states",
        "is_complete": "_is_complete",
        "stamps": "_stamps",
    }

    def __init__(
        self,
        store: StepStore,
        *,
        burn_in: int,
        unroll: int,
        stride: int,
        alpha: float,
        seed: np.random.SeedSequence,
    ) -> None:
        """burn_in: rows that only warm the core's state up; unroll: rows that are learnt from."""
        assert store.lane_capacity % stride == 0, f"a lane of {store.lane_capacity} rows is no multiple of {stride}"
        self.store = store
        self._burn_in, self._unroll, self._stride = burn_in, unroll, stride
        self._length = burn_in + unroll + store.n_step
        assert store.lane_capacity >= self._length + stride, (
            f"a lane of {store.lane_capacity} rows has no room for a sequence of {self._length}"
        )
        self._lane_blocks = store.lane_capacity // stride
        num_blocks = store.num_lanes * self._lane_blocks
        self._core_states = np.zeros((num_blocks, 0), np.float32)  # the first batch says how wide
        self._is_complete = np.zeros(num_blocks, np.bool_)
        self._stamps = np.full(num_blocks, -1, np.int64)  # number of the block in its lane
        # Uniform draws through the same tree, with priorities that stay 1.
        self._is_uniform = alpha == 0
        self._priorities = Priorities(num_blocks, alpha or 1.0)
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        """Stretches that can be drawn."""
        return int(self._is_complete.sum())

    def add(self, batch: TransitionBatch, first_lane: int, *, priorities_by_actor: bool = False) -> None:
        """New stretches get the largest priority so far."""
        store, stride = self.store, self._stride
        B = batch.shape[1]
        if not self._core_states.shape[1]:
            self._core_states = np.zeros((len(self._stamps), batch.core_states.shape[2]), np.float32)
        old_heads = store.heads.copy()
        store.add(batch, first_lane)
        for b in range(B):
            lane = first_lane + b
            old_head, head, tail = int(old_heads[lane]), int(store.heads[lane]), int(store.tails[lane])
            first_block = -(-old_head // stride)
            new_blocks = np.arange(first_block, -(-head // stride))
            slots = lane * self._lane_blocks + new_blocks % self._lane_blocks
            self._is_complete[slots], self._stamps[slots] = False, new_blocks
            self._priorities.remove(slots)
            # Rows of the lane in this batch are its valid steps, with pseudo-rows between them.
            rows = lane * store.lane_capacity + np.arange(old_head, head) % store.lane_capacity
            is_step = store.kinds[rows] < FINAL
            step_of_row = is_step.cumsum() - 1
            states = batch.core_states[batch.valid[:, b], b]
            for slot, block in zip(slots, new_blocks, strict=True):
                place = block * stride - old_head
                # After a pseudo-row an episode begins, and the state is forgotten.
                self._core_states[slot] = states[step_of_row[place]] if is_step[place] else 0.0
            first_complete = max(0, -(-(old_head - self._length + 1) // stride), -(-tail // stride))
            complete = np.arange(first_complete, (head - self._length) // stride + 1)
            slots = lane * self._lane_blocks + complete % self._lane_blocks
            slots = slots[[self._has_learnable(lane, int(block)) for block in complete]]
            slots = slots[~self._is_complete[slots]]
            self._is_complete[slots] = True
            self._priorities.add(slots)
            self._drop_lost(lane, tail)

    def sample(self, batch_size: int, beta: float = 0.0) -> SequenceMinibatch:
        store = self.store
        blocks, weights = self._priorities.draw(self._rng, batch_size, len(self), beta)
        lanes, stamps = blocks // self._lane_blocks, self._stamps[blocks]
        ahead = stamps * self._stride + np.arange(self._length)[:, None]  # [L, M]
        rows = lanes * store.lane_capacity + ahead % store.lane_capacity
        learnt = rows[self._burn_in : self._burn_in + self._unroll]
        times = np.arange(self._burn_in, self._burn_in + self._unroll)[:, None]
        mask = store.is_complete[learnt]
        return SequenceMinibatch(
            obs=store.get_obs(rows),
            starts=store.is_start[rows] | (store.kinds[rows] == GAP),
            core_states=self._core_states[blocks],
            actions=store.actions[learnt] * mask,
            returns=store.returns[learnt] * mask,
            discounts=store.discounts[learnt] * mask,
            bootstraps=np.where(mask & (store.discounts[learnt] > 0), times + store.num_steps[learnt], times),
            mask=mask.astype(np.float32),
            weights=weights,
            rows=blocks,
            stamps=stamps,
        )

    def update_priorities(self, rows: Array, stamps: Array, priorities: Array) -> None:
        if not self._is_uniform:
            same = self._is_complete[rows] & (self._stamps[rows] == stamps)
            self._priorities.set(rows[same], priorities[same])

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"priorities": self._priorities.get_state(np.arange(len(self._stamps)))}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._priorities.set_state(np.arange(len(self._stamps)), state["priorities"])

    def _has_learnable(self, lane: int, block: int) -> bool:
        """Whether any row after the burn-in can be learnt from."""
        first = block * self._stride + self._burn_in
        places = np.arange(first, first + self._unroll) % self.store.lane_capacity
        return bool(self.store.is_complete[lane * self.store.lane_capacity + places].any())

    def _drop_lost(self, lane: int, tail: int) -> None:
        slots = np.arange(lane * self._lane_blocks, (lane + 1) * self._lane_blocks)
        lost = slots[self._is_complete[slots] & (self._stamps[slots] * self._stride < tail)]
        self._is_complete[lost] = False
        self._priorities.remove(lost)


class Priorities:
    """p^alpha in a sum tree, and the largest p so far, which newcomers get: everything is seen at least about once."""

    def __init__(self, size: int, alpha: float) -> None:
        self.tree = SumTree(size)
        self._alpha = alpha
        self._largest = 1.0

    def add(self, indices: Array) -> None:
        if len(indices):
            self.tree.set(indices, self._largest**self._alpha)

    def set(self, indices: Array, errors: Array) -> None:
        if len(indices):
            priorities = np.abs(errors) + MIN_PRIORITY
            self._largest = max(self._largest, float(priorities.max()))
            self.tree.set(indices, priorities**self._alpha)

    def remove(self, indices: Array) -> None:
        if len(indices):
            self.tree.set(indices, 0.0)

    def draw(self, rng: np.random.Generator, size: int, population: int, beta: float) -> tuple[Array, Array]:
        """One draw from each of `size` equal parts of the mass, in random order (so that a part of them is a draw from
        the whole mass too) -> (indices, importance weights float32)."""
        total = self.tree.total
        assert total > 0, "nothing to draw yet"
        indices = self.tree.find((rng.permutation(size) + rng.random(size)) * (total / size))
        probabilities = self.tree.get(indices) / total
        weights = (population * probabilities) ** -beta
        return indices, (weights / weights.max()).astype(np.float32)

    def get_state(self, indices: Array) -> dict[str, Any]:
        return {"leaves": self.tree.get(indices), "largest": self._largest}

    def set_state(self, indices: Array, state: dict[str, Any]) -> None:
        self.tree.clear()
        self.tree.set(indices, state["leaves"])
        self._largest = float(state["largest"])


@dataclass(frozen=True)
class ReplayShape:
    """How large a replay is and what it draws; `make_replay` builds it, in whatever process."""

    capacity: int
    """Rows in all lanes together."""
    num_lanes: int
    """Environments that fill it."""
    n_step: int
    discount: float
    alpha: float = 0.0
    clip_rewards: bool = False
    burn_in: int = 0
    unroll: int = 0
    """Rows of a sequence that are learnt from; 0: single transitions."""
    hindsight: Hindsight | None = None
    """Single transitions: how some of them get other goals."""

    @property
    def stride(self) -> int:
        """Rows between the beginnings of sequences, which overlap by half, as in R2D2."""
        return max(1, self.unroll // 2)

    @property
    def lane_capacity(self) -> int:
        """Rows of a lane."""
        return max(1, self.capacity // self.num_lanes // self.stride) * self.stride

    def part(self, num_lanes: int) -> ReplayShape:
        """Some of the lanes, each as long as in the whole."""
        return replace(self, capacity=self.capacity * num_lanes // self.num_lanes, num_lanes=num_lanes)


def make_replay(
    shape: ReplayShape,
    obs: ObsSpec | dict[str, ObsSpec],
    action: ActionSpec,
    seed: np.random.SeedSequence,
) -> ReplayBuffer | SequenceReplay:
    """ConfigError where this machine's memory cannot hold it."""
    require_memory(shape, obs)
    store = StepStore(
        obs,
        action,
        num_lanes=shape.num_lanes,
        lane_capacity=shape.lane_capacity,
        n_step=shape.n_step,
        discount=shape.discount,
        clip_rewards=shape.clip_rewards,
    )
    if not shape.unroll:
        return ReplayBuffer(store, alpha=shape.alpha, seed=seed, hindsight=shape.hindsight)
    return SequenceReplay(
        store,
        burn_in=shape.burn_in,
        unroll=shape.unroll,
        stride=shape.stride,
        alpha=shape.alpha,
        seed=seed,
    )


def require_memory(shape: ReplayShape, obs: ObsSpec | dict[str, ObsSpec]) -> None:
    """ConfigError where the memory that is free on this machine cannot hold the full replay."""
    needed_bytes, free_bytes = bytes_of_replay(shape, obs), psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"a replay of {shape.capacity} steps of {obs} takes {needed_bytes / 2**30:.1f} GiB, and "
            f"{free_bytes / 2**30:.1f} GiB are free on {os.uname().nodename}: lower replay_capacity"
        )


def bytes_of_replay(shape: ReplayShape, obs: ObsSpec | dict[str, ObsSpec]) -> int:
    """What the replay takes once it is full."""
    num_bytes = 0
    for leaf in obs_leaves(obs).values():
        size = leaf.flat_size
        if num_new := new_frames(leaf):
            size = size // leaf.shape[0] * num_new
        num_bytes += size * np.dtype(leaf.dtype).itemsize
    return shape.capacity * (num_bytes + BYTES_BESIDE_OBS)


def require_room(shape: ReplayShape, obs: ObsSpec | dict[str, ObsSpec], rollout_length: int) -> None:
    """In the driver, before any actor starts: ConfigError where `replay_capacity` is too small for a fragment of
    `rollout_length` steps, or for a sequence, or too large for this machine."""
    lane_capacity = shape.lane_capacity
    needed = shape.burn_in + 2 * shape.unroll + shape.n_step + 2
    # Every step may be cut off, which brings a final observation each, and a gap may come before.
    needed = max(needed, 2 * rollout_length + 1)
    if lane_capacity < needed:
        raise ConfigError(
            f"replay_capacity={shape.capacity} leaves {lane_capacity} steps for each of {shape.num_lanes} "
            f"environments, and a fragment of rollout_length={rollout_length}, or a sequence, needs {needed}: raise "
            "replay_capacity"
        )
    if is_one_machine():  # else the actor that will hold it looks
        require_memory(shape, obs)
