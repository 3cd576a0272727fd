"""Where a replay keeps one leaf of the observations: as it is, or for stacks of frames every frame once.

A stack of the last C frames repeats each of them C times; with `FrameStorage`, a million Atari observations take
7 instead of 28 GB (and 56 where the next observation is kept beside them). Both storages have lanes: one per
environment, a ring of rows each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import ObsSpec


class PlainStorage:
    """Rows as they are."""

    def __init__(self, leaf: ObsSpec, num_lanes: int, lane_capacity: int) -> None:
        # Pages of zeros take no memory until they are written.
        self._rows = np.zeros((num_lanes * lane_capacity, *leaf.shape), leaf.dtype)

    def put(self, rows: Array, lanes: Array, obs: Array) -> None:
        self._rows[rows] = obs

    def put_gap(self, row: int, lane: int) -> None:
        pass

    def get(self, rows: Array) -> Array:
        """rows: int64[...] -> [..., *shape], a copy."""
        taken: Array = self._rows[rows]
        return taken

    def is_lost(self, row: int, lane: int) -> bool:
        """Whether the row's memory has been taken by newer ones."""
        return False

    def get_state(self, rows: Array) -> dict[str, Any]:
        """rows: all that are in use."""
        return {"rows": self._rows[rows]}

    def set_state(self, rows: Array, state: dict[str, Any]) -> None:
        self._rows[rows] = state["rows"]


class FrameStorage:
    """Stacks of frames uint8[C, H, W], newest last; a frame that is in several stacks is kept once.

    Frames of a lane are numbered as they come. A stack that continues the one before it brings one new frame; any other
    (a new episode) brings C. Either way a stack is C frames with consecutive numbers, so that one number per row, that
    of its newest frame, is all there is to know. Nothing is assumed about how an environment begins its episodes.

    The ring of frames has room for one per row and a sixteenth more. Where episodes are so short that this is not
    enough, the oldest rows are lost a little before their turn (`is_lost`).
    """

    def __init__(self, leaf: ObsSpec, num_lanes: int, lane_capacity: int) -> None:
        self.num_frames, *frame_shape = leaf.shape
        self.lane_frames = lane_capacity + lane_capacity // 16 + 4 * self.num_frames
        self._frames = np.zeros((num_lanes * self.lane_frames, *frame_shape), leaf.dtype)
        self._newest = np.full(num_lanes * lane_capacity, -1, np.int64)
        self._heads = np.zeros(num_lanes, np.int64)  # number of the next frame
        self._last = np.zeros((num_lanes, *leaf.shape), leaf.dtype)  # the lane's newest stack
        self._back = np.arange(1 - self.num_frames, 1)

    def put(self, rows: Array, lanes: Array, obs: Array) -> None:
        """rows, lanes: int64[N], the rows of a lane one after another in order of time; obs: [N, C, H, W]."""
        if not len(rows):
            return
        C = self.num_frames
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = lanes[1:] != lanes[:-1]
        continues = np.zeros(len(rows), np.bool_)
        for i in range(len(rows)):
            before = self._last[lanes[i]] if is_first[i] else obs[i - 1]
            # Bytes are compared from the start on: stacks that do not continue each other differ soon.
            continues[i] = np.array_equal(before[1:], obs[i, :-1])
        continues[is_first & (self._heads[lanes] == 0)] = False

        brought = np.where(continues, 1, C)
        total = brought.cumsum()
        firsts = np.flatnonzero(is_first)
        before_lane = total[firsts] - brought[firsts]
        counts = np.diff(np.append(firsts, len(rows)))
        newest = self._heads[lanes] + total - np.repeat(before_lane, counts) - 1
        lasts = np.append(firsts[1:], len(rows)) - 1
        if (newest[lasts] - self._heads[lanes[lasts]] >= self.lane_frames).any():
            # More frames at once than a lane holds: of what is put in the first half some is lost to the second.
            half = len(rows) // 2
            self.put(rows[:half], lanes[:half], obs[:half])
            self.put(rows[half:], lanes[half:], obs[half:])
            return
        self._frames[lanes * self.lane_frames + newest % self.lane_frames] = obs[:, -1]
        anew = np.flatnonzero(~continues)
        for c in range(C - 1):
            places = (newest[anew] - (C - 1 - c)) % self.lane_frames
            self._frames[lanes[anew] * self.lane_frames + places] = obs[anew, c]
        self._newest[rows] = newest
        self._heads[lanes[lasts]] = newest[lasts] + 1
        self._last[lanes[lasts]] = obs[lasts]

    def put_gap(self, row: int, lane: int) -> None:
        """A row without an observation."""
        self._newest[row] = self._heads[lane] - 1

    def get(self, rows: Array) -> Array:
        """rows: int64[...] -> uint8[..., C, H, W]."""
        lanes = rows // (len(self._newest) // len(self._heads))
        numbers = self._newest[rows][..., None] + self._back
        taken: Array = self._frames[lanes[..., None] * self.lane_frames + numbers % self.lane_frames]
        return taken

    def is_lost(self, row: int, lane: int) -> bool:
        oldest = self._newest[row] - self.num_frames + 1
        return bool(oldest < self._heads[lane] - self.lane_frames)

    def get_state(self, rows: Array) -> dict[str, Any]:
        held = np.minimum(self._heads, self.lane_frames)
        return {
            "newest": self._newest[rows],
            "heads": self._heads.copy(),
            "last": self._last.copy(),
            "frames": np.concatenate([
                self._frames[lane * self.lane_frames : lane * self.lane_frames + held[lane]]
                for lane in range(len(held))
            ]),
        }  # fmt: skip

    def set_state(self, rows: Array, state: dict[str, Any]) -> None:
        self._newest[rows] = state["newest"]
        self._heads[:] = state["heads"]
        self._last[:] = state["last"]
        held = np.minimum(self._heads, self.lane_frames)
        parts = np.split(state["frames"], held.cumsum()[:-1])
        for lane, part in enumerate(parts):
            self._frames[lane * self.lane_frames : lane * self.lane_frames + held[lane]] = part


def is_frame_stack(leaf: ObsSpec, *, frame_stacks: bool) -> bool:
    """`frame_stacks`: channels of uint8[C, H, W] are frames in time; three channels are taken for colours."""
    return frame_stacks and leaf.kind == "image" and leaf.layout == "CHW" and leaf.shape[0] not in (1, 3)


def make_storage(
    leaf: ObsSpec, num_lanes: int, lane_capacity: int, *, frame_stacks: bool
) -> PlainStorage | FrameStorage:
    storage = FrameStorage if is_frame_stack(leaf, frame_stacks=frame_stacks) else PlainStorage
    return storage(leaf, num_lanes, lane_capacity)
