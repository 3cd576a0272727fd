"""Which Box observations are images, and of what form: one rule, stated in docs/custom-env.md ("Images").

spec = image_spec(box.low, box.high, box.dtype)         # None: numbers side by side

    axes        H W, C H W, H W C, or a stack of these: T H W C, T C H W; T H W are T channels
    which is C  of three axes the one that differs from two equal ones, else the shorter of the first and the last
    bytes       (uint8) of three or four axes are pixels, of whatever size
    whole       numbers with finite bounds are boards and codes: of three axes; of two where both sides have 8 at least
    floats      within [0, x] from 5 pixels a side on (two axes: 20), within other finite bounds from 8 on; without
                bounds from 20 on; two axes: only within [0, x]

Two axes of very different length, or of floats below zero, are a history (steps x features), whatever their size.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.spaces import ObsSpec

MAX_CHANNELS, MAX_FRAMES = 128, 32
MAX_RATIO = 4
"""Of the sides of an image of two axes."""
UNBOUNDED = 2.0**24
"""Bounds beyond are none: float32 has no more whole numbers, and some spaces say the largest float."""

Layout = Literal["CHW", "HWC", "TCHW", "THWC"]


def image_spec(low: Array, high: Array, dtype: Any) -> ObsSpec | None:
    """The spec of a Box with these bounds (`low`, `high`: [*shape]) if it is an image."""
    if (form := _form(tuple(map(int, low.shape)))) is None:
        return None
    layout, shape = form
    dtype = np.dtype(dtype)
    is_bounded = max(np.abs(low.astype(np.float64)).max(), np.abs(high.astype(np.float64)).max()) <= UNBOUNDED
    spec = ObsSpec("image", shape, "uint8" if dtype == np.uint8 else "float32", layout)
    _, height, width = spec.channels_height_width
    if min(height, width) < _least_side(len(low.shape), dtype, is_bounded, float(low.min())):
        return None
    if len(low.shape) == 2 and max(height, width) > MAX_RATIO * min(height, width):
        return None
    return ObsSpec("image", shape, spec.dtype, layout, (), *(_bounds(low, high, spec) if is_bounded else ((), ())))


class StackSeen:
    """How the first axis of images goes on from one observation of an episode to the next.

    seen = StackSeen(num_frames)
    seen.add(before, now)                               # [C, ...] each
    seen.num_new                                        # 0: nothing has moved yet; C: it is no stack
    """

    def __init__(self, num_frames: int) -> None:
        self._candidates = list(range(1, num_frames + 1))
        self._has_moved = False

    def add(self, before: Array, now: Array) -> None:
        if not np.array_equal(before, now):
            self._has_moved = True
            self._candidates = [k for k in self._candidates if np.array_equal(before[k:], now[: len(now) - k])]

    @property
    def num_new(self) -> int:
        return self._candidates[0] if self._has_moved else 0


def _form(shape: tuple[int, ...]) -> tuple[Layout, tuple[int, ...]] | None:
    """(layout, the shape with a channel axis and without one that is 1 in a stack)"""
    if 0 in shape:
        return None
    if len(shape) == 2:
        return "HWC", (*shape, 1)
    if len(shape) == 3:
        first, middle, last = shape
        if first == middle or (last < first and middle != last):
            return ("HWC", shape) if last <= MAX_CHANNELS else None
        is_first = first < last or middle == last
        return ("CHW", shape) if is_first and first <= MAX_CHANNELS else None
    if len(shape) != 4 or shape[0] > MAX_FRAMES or (form := _form(shape[1:])) is None:
        return None
    num_frames, layout = shape[0], form[0]
    sizes = dict(zip(layout, form[1], strict=True))
    if sizes["C"] == 1:
        return "CHW", (num_frames, sizes["H"], sizes["W"])
    return ("THWC" if layout == "HWC" else "TCHW", shape) if num_frames * sizes["C"] <= MAX_CHANNELS else None


def _least_side(rank: int, dtype: Any, is_bounded: bool, low: float) -> float:
    """Pixels that both sides have to have; infinite: it is no image however large."""
    if dtype.kind in "iub" and is_bounded:
        return 8 if rank == 2 else 1
    if rank == 2:
        return 20 if is_bounded and low >= 0 else np.inf
    if is_bounded:
        return 5 if low >= 0 else 8
    return 20


def _bounds(low: Array, high: Array, spec: ObsSpec) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel that networks see, or of all if they are alike; empty for the ones that uint8 has anyway."""
    axes = tuple(i for i, axis in enumerate(spec.layout) if axis in "HW")
    lows = low.astype(np.float64).reshape(spec.shape).min(axis=axes).ravel()
    highs = high.astype(np.float64).reshape(spec.shape).max(axis=axes).ravel()
    if (lows == lows[0]).all() and (highs == highs[0]).all():
        lows, highs = lows[:1], highs[:1]
    if spec.dtype == "uint8" and lows.tolist() == [0.0] and highs.tolist() == [255.0]:
        return (), ()
    highs = np.where(highs > lows, highs, lows + 1.0)  # what never changes is 0
    return tuple(lows.tolist()), tuple(highs.tolist())
