"""Values whose sizes and layouts lie at the edges at which bytes are cut, padded and joined; and when two are equal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

EDGES = [
    0, 1, 8, 63, 64, 4096, 8192,
    16_384,  # the finest step between size classes
    65_536,  # from here on outside of the stream
    65_536 + 4096, 81_920, 98_304, 114_688, 131_072, 163_840, 196_608, 262_144,
]  # fmt: skip
"""Bytes: what is held apart in codec and store changes about here."""
DTYPES = [
    "?",
    "i1",
    "u2",
    "f2",
    "f4",
    "f8",
    "c16",
    "S3",
    "U5",
    "V7",
    "M8[s]",
    ">f4",
    "i8,f4",
    "u8,S3,?",
    "3f4,i1",
    "O",
]


def num_bytes(chooser: random.Random) -> int:
    """At an edge, beside it, or within the next few hundred bytes."""
    beside = chooser.choice([0, 0, 1, -1, chooser.randrange(-130, 131), chooser.randrange(-700, 701)])
    return max(0, chooser.choice(EDGES) + beside)


def array(chooser: random.Random) -> np.ndarray:
    """Of any dtype, in any layout: contiguous in either order, strided, backwards, without axes, repeated, empty."""
    dtype = np.dtype(chooser.choice(DTYPES))
    if dtype.hasobject:
        return np.array([None, 1, "x"] * chooser.randrange(100), dtype=dtype)
    count = num_bytes(chooser) // dtype.itemsize
    data = np.frombuffer(chooser.randbytes(max(1, count) * dtype.itemsize), np.uint8).copy()
    flat = np.arange(count).astype(dtype) if dtype.kind in "U?" else data.view(dtype)[:count]
    layout = chooser.choice(["plain", "fortran", "stepped", "backwards", "0-d", "within", "repeated", "read-only"])
    if layout == "fortran":
        num_rows = chooser.choice([1, 2, 3, 5])
        return np.asfortranarray(flat[: count // num_rows * num_rows].reshape(num_rows, -1))
    if layout == "stepped":
        return np.repeat(flat, 2, axis=0)[::2]
    if layout == "backwards":
        return flat[::-1]
    if layout == "0-d" and count:
        return flat[:1].reshape(())
    if layout == "within":
        return np.concatenate([flat, flat])[count // 3 : count // 3 + count]
    if layout == "repeated":
        return np.broadcast_to(flat[:1], (3, count))[:, : count // 3] if count else flat
    flat.flags.writeable = layout != "read-only"
    return flat


def value(chooser: random.Random, depth: int = 3) -> Any:
    """An array, bytes, text, a number, or a container of such."""
    kind = chooser.randrange(12)
    if depth and kind < 3:
        return [value(chooser, depth - 1) for _ in range(chooser.randrange(4))]
    if depth and kind == 3:
        return {chooser.choice([i, f"k{i}"]): value(chooser, depth - 1) for i in range(chooser.randrange(4))}
    if depth and kind == 4:
        return tuple(value(chooser, depth - 1) for _ in range(chooser.randrange(3)))
    if kind == 5:
        return chooser.randbytes(num_bytes(chooser))
    if kind == 6:
        return bytearray(chooser.randbytes(num_bytes(chooser)))
    if kind == 7:
        return "é" * (num_bytes(chooser) // 2)
    if kind == 8:
        return chooser.choice([None, 1, 2.5, 1 << 70, True, ""])
    return array(chooser)


def assert_same(got: Any, sent: Any) -> None:
    """Equal in kinds, dtypes, shapes and every bit. (numpy itself brings strided arrays home in native byte order.)"""
    assert type(got) is type(sent)
    if isinstance(sent, np.ndarray):
        assert got.shape == sent.shape
        assert got.dtype.newbyteorder("=") == sent.dtype.newbyteorder("=")
        if sent.dtype.hasobject:
            assert got.tolist() == sent.tolist()
        else:
            assert np.ascontiguousarray(got).astype(sent.dtype).tobytes() == sent.tobytes()
    elif isinstance(sent, list | tuple):
        assert len(got) == len(sent)
        for one, other in zip(got, sent, strict=True):
            assert_same(one, other)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key in sent:
            assert_same(got[key], sent[key])
    else:
        assert got == sent
