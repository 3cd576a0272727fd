"""Golden rows: inputs of a model and what came out when it was exported, as text in the file."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np

TOLERANCE = 1e-5
"""Largest difference of two outputs, as a share of the row's largest number where that is above 1."""
Arrays = dict[str, np.ndarray]


def dump(inputs: Arrays, outputs: Arrays) -> str:
    """JSON: {"inputs": {name: {dtype, shape, data}}, "outputs": ...}; data: base64 of zlib of little-endian bytes."""
    return json.dumps({"inputs": _dump(inputs), "outputs": _dump(outputs)})


def parse(text: str) -> tuple[Arrays, Arrays]:
    """(inputs, outputs)"""
    found = json.loads(text)
    return _parse(found["inputs"]), _parse(found["outputs"])


def difference(expected: np.ndarray, got: np.ndarray) -> float:
    """The largest over all rows, as `TOLERANCE` counts it; infinite where shapes differ or one is not finite."""
    if expected.shape != got.shape:
        return np.inf
    if not expected.size:
        return 0.0
    first, second = (array.astype(np.float64).reshape(len(array), -1) for array in (expected, got))
    scale = np.maximum(1.0, np.abs(first).max(axis=1, keepdims=True))
    largest = float((np.abs(first - second) / scale).max())
    return largest if np.isfinite(largest) else np.inf


def worst(expected: Arrays, got: Arrays) -> tuple[float, str]:
    """(the largest difference, the output that has it)"""
    return max((difference(array, got[name]), name) for name, array in expected.items())


def _dump(arrays: Arrays) -> dict[str, dict[str, object]]:
    return {
        name: {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "data": base64.b64encode(zlib.compress(_little_endian(array).tobytes(), 9)).decode(),
        }
        for name, array in arrays.items()
    }


def _parse(found: dict) -> Arrays:
    return {
        name: np.frombuffer(zlib.decompress(base64.b64decode(each["data"])), np.dtype(each["dtype"]).newbyteorder("<"))
        .astype(each["dtype"])
        .reshape(each["shape"])
        for name, each in found.items()
    }


def _little_endian(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
