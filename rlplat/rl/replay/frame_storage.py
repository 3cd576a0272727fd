"""Where a replay keeps one leaf of the observations: as it is, or for stacks of frames every frame once.

A stack of the last C frames repeats each of them C times; with `FrameStorage`, a million Atari observations take
7 instead of 28 GB (and 56 where the next observation is kept beside them). Both storages have lanes: one per
environment, with the newest rows of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil

from rlplat.errors import CheckpointError, ConfigError
from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import ObsSpec

PAGE = 16
"""Frames that a lane takes and gives back at a time."""


class PlainStorage:
    """Rows as they are."""

    def __init__(self, leaf: ObsSpec, num_lanes: int, lane_capacity: int) -> None:
        # Pages of zeros take no memory until they are written.
        self._rows = np.zeros((num_lanes * lane_capacity, *leaf.shape), leaf.dtype)

    def put(self, rows: Array, lanes: Array, obs: Array) -> None:
        self._rows[rows] = obs

    def put_gap(self, row: int, lane: int) -> None:
        """There is nothing to put."""

    def get(self, rows: Array) -> Array:
        """rows: int64[...] -> [..., *shape], a copy."""
        taken: Array = self._rows[rows]
        return taken

    def get_state(self, rows: Array) -> dict[str, Any]:
        """rows: all that are in use."""
        return {"rows": self._rows[rows]}

    def set_state(self, rows: Array, state: dict[str, Any]) -> None:
        self._rows[rows] = state["rows"]


class FrameStorage:
    """Stacks of frames [C, ...], newest last; a frame that is in several stacks is kept once.

    Frames of a lane are numbered as they come. A stack that goes on from the one before it, k frames further, brings k
    new ones; any other (a new episode) brings C. Either way a stack is C frames with consecutive numbers, so that one
    number per row, that of its newest frame, is all there is to know. Nothing is assumed about how an environment
    begins its episodes, nor that it is true to k: whatever it does, no row is lost before its turn.

    Frames lie in pages, which a lane gives back when the last row that needs them is overwritten. There are as many as
    rows that bring k frames each need; where they bring more (short episodes, no stacks at all) pages are added.
    """

    def __init__(self, leaf: ObsSpec, num_lanes: int, lane_capacity: int, num_new: int) -> None:
        """num_new: k, as far as is known (`new_frames`)."""
        self.num_frames, *frame_shape = leaf.shape
        self._num_new = num_new
        self._lane_capacity = lane_capacity
        self._frame = np.zeros(frame_shape, leaf.dtype)
        self._newest = np.full(num_lanes * lane_capacity, -1, np.int64)
        self._written = np.zeros(num_lanes, np.int64)  # rows
        self._heads = np.zeros(num_lanes, np.int64)  # number of the next frame
        self._last = np.zeros((num_lanes, *leaf.shape), leaf.dtype)  # the lane's newest stack
        self._back = np.arange(1 - self.num_frames, 1)
        # Page p of a lane (frames p * PAGE and on) is page table[lane, p % length] of all.
        most = (lane_capacity + 1) * self.num_frames // PAGE + 3
        self._table = np.full((num_lanes, most), -1, np.int64)
        self._held = np.zeros((num_lanes, 2), np.int64)  # the lane's pages that it has: from, up to
        self._segments: list[Array] = []
        self._starts = [0]  # of the segments, and the end of the last
        self._free: list[int] = []
        self._most_used = 0
        self._add_pages(num_lanes * ((lane_capacity * num_new + self.num_frames) // PAGE + 2))

    @property
    def num_bytes(self) -> int:
        """Memory of the frames that has been written to."""
        return self._most_used * PAGE * self._frame.nbytes

    def put(self, rows: Array, lanes: Array, obs: Array) -> None:
        """rows, lanes: int64[N], the rows of a lane one after another in order of time; obs: [N, C, ...]."""
        if not len(rows):
            return
        C = self.num_frames
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = lanes[1:] != lanes[:-1]
        brought = np.full(len(rows), C)
        for i in range(len(rows)):
            if not is_first[i]:
                brought[i] = self._new_frames(obs[i - 1], obs[i])
            elif self._heads[lanes[i]] > 0:
                brought[i] = self._new_frames(self._last[lanes[i]], obs[i])
        total = brought.cumsum()
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(rows)) - 1
        counts = lasts - firsts + 1
        before_lane = total[firsts] - brought[firsts]
        newest = self._heads[lanes] + total - np.repeat(before_lane, counts) - 1
        self._newest[rows] = newest
        for lane, last, count in zip(lanes[lasts], lasts, counts, strict=True):
            self._last[lane] = obs[last]
            self._heads[lane] = newest[last] + 1
            self._written[lane] += count
            self._make_room(int(lane))
        for back in range(int(brought.max())):  # frames before a row's newest
            new = np.flatnonzero(brought > back)
            self._write(self._places(lanes[new], newest[new] - back), obs[new, C - 1 - back])

    def put_gap(self, row: int, lane: int) -> None:
        """A row without an observation."""
        self._newest[row] = self._heads[lane] - 1
        self._written[lane] += 1

    def get(self, rows: Array) -> Array:
        """rows: int64[...] -> [..., C, ...], a copy."""
        numbers = self._newest[rows][..., None] + self._back
        # A row without an observation has no frames yet where a lane begins.
        places = self._places((rows // self._lane_capacity)[..., None], np.maximum(numbers, 0))
        return self._read(places)

    def get_state(self, rows: Array) -> dict[str, Any]:
        oldest = self._held[:, 0] * PAGE
        frames = [
            self._read(self._places(lane, np.arange(oldest[lane], self._heads[lane]))) for lane in range(len(oldest))
        ]
        return {
            "newest": self._newest[rows],
            "heads": self._heads.copy(),
            "written": self._written.copy(),
            "oldest": oldest,
            "last": self._last.copy(),
            "frames": np.concatenate(frames),
        }

    def set_state(self, rows: Array, state: dict[str, Any]) -> None:
        if "oldest" not in state:
            raise CheckpointError(
                "the saved replay has its frames in an older order: begin with an empty one, --set save_replay=false"
            )
        self._newest[rows] = state["newest"]
        self._heads[:], self._written[:] = state["heads"], state["written"]
        self._last[:] = state["last"]
        self._free = list(range(self._starts[-1] // PAGE))[::-1]
        counts = self._heads - state["oldest"]
        for lane, part in enumerate(np.split(state["frames"], counts.cumsum()[:-1])):
            self._held[lane] = state["oldest"][lane] // PAGE
            self._take_pages(lane)
            numbers = np.arange(state["oldest"][lane], self._heads[lane])
            self._write(self._places(lane, numbers), part)

    def _new_frames(self, before: Array, now: Array) -> int:
        """How many frames `now` is further than `before`: as many as is usual if that can be, else the fewest."""
        C = self.num_frames
        for k in (self._num_new, *range(C)):
            # The first frame alone tells nearly always.
            if np.array_equal(before[k], now[0]) and np.array_equal(before[k + 1 :], now[1 : C - k]):
                self._num_new = k or self._num_new
                return k
        return C

    def _make_room(self, lane: int) -> None:
        """Pages up to the lane's head, and none below what its oldest row needs."""
        tail = max(0, int(self._written[lane]) - self._lane_capacity)
        row = lane * self._lane_capacity + tail % self._lane_capacity
        needed = max(0, int(self._newest[row]) - self.num_frames + 1) // PAGE
        first = int(self._held[lane, 0])
        length = self._table.shape[1]
        for page in range(first, min(needed, int(self._held[lane, 1]))):
            self._free.append(int(self._table[lane, page % length]))
        if needed > first:
            self._held[lane] = needed, max(needed, self._held[lane, 1])
        self._take_pages(lane)

    def _take_pages(self, lane: int) -> None:
        length = self._table.shape[1]
        stop = -(-int(self._heads[lane]) // PAGE)
        for page in range(int(self._held[lane, 1]), stop):
            if not self._free:
                self._add_pages(max(4, self._starts[-1] // PAGE // 8), is_first=False)
            # The page that was given back last is taken first: those that were never used take no memory.
            self._table[lane, page % length] = self._free.pop()
        self._held[lane, 1] = max(stop, self._held[lane, 1])
        self._most_used = max(self._most_used, self._starts[-1] // PAGE - len(self._free))

    def _add_pages(self, num_pages: int, *, is_first: bool = True) -> None:
        frame_bytes = self._frame.nbytes
        if not is_first:
            num_rows = min(int(self._written.sum()), len(self._newest))
            per_row = (self._starts[-1] + num_pages * PAGE) / max(1, num_rows)
            still = int(per_row * (len(self._newest) - num_rows) + num_pages * PAGE) * frame_bytes
            free_bytes = psutil.virtual_memory().available
            if still > free_bytes:
                raise ConfigError(
                    f"the observations bring {per_row:.1f} new ones of their {self.num_frames} images each, more than "
                    f"{self._num_new}: the replay would take {still / 2**30:.1f} GiB more, and "
                    f"{free_bytes / 2**30:.1f} GiB are free; lower replay_capacity"
                )
        first = self._starts[-1] // PAGE
        # Pages of zeros take no memory until they are written.
        self._segments.append(np.zeros((num_pages * PAGE, *self._frame.shape), self._frame.dtype))
        self._starts.append(self._starts[-1] + num_pages * PAGE)
        self._free[:0] = range(first + num_pages - 1, first - 1, -1)

    def _places(self, lanes: Any, numbers: Array) -> Array:
        """Where frames with these numbers lie among those of all segments."""
        pages = numbers // PAGE
        places: Array = self._table[lanes, pages % self._table.shape[1]] * PAGE + numbers % PAGE
        return places

    def _write(self, places: Array, frames: Array) -> None:
        for segment, start in zip(self._segments, self._starts, strict=False):
            inside = (places >= start) & (places < start + len(segment))
            if inside.all():
                segment[places - start] = frames
                return
            segment[places[inside] - start] = frames[inside]

    def _read(self, places: Array) -> Array:
        if len(self._segments) == 1:
            all_of_them: Array = self._segments[0][places]
            return all_of_them
        taken = np.empty((*places.shape, *self._frame.shape), self._frame.dtype)
        for segment, start in zip(self._segments, self._starts, strict=False):
            inside = (places >= start) & (places < start + len(segment))
            taken[inside] = segment[places[inside] - start]
        return taken


def new_frames(leaf: ObsSpec) -> int:
    """How many images of a leaf's first axis are new in each observation; 0: all, or there is no such axis. What random
    steps showed before the run (`ObsSpec.renewed`), else a guess: three channels, or threes of them, are colours."""
    if leaf.kind != "image" or leaf.layout == "HWC":
        return 0
    num_frames = leaf.shape[0]
    if leaf.renewed:
        return leaf.renewed if leaf.renewed < num_frames else 0
    if "T" in leaf.layout:
        return 1 if num_frames > 1 else 0
    if num_frames in (1, 3):
        return 0
    return 1 if num_frames % 3 else 3


def make_storage(leaf: ObsSpec, num_lanes: int, lane_capacity: int) -> PlainStorage | FrameStorage:
    if num_new := new_frames(leaf):
        return FrameStorage(leaf, num_lanes, lane_capacity, num_new)
    return PlainStorage(leaf, num_lanes, lane_capacity)
