"""A state as files: arrays into `<part>.safetensors`, the rest into `state.json`, and back. No pickle.

    pack({"learner": {"w": np.ones(3), "step": 7}}).files == {"learner.safetensors": ..., "state.json": ...}
    unpack(files) gives the same state: equal values, dtypes, shapes and kinds of container.

What JSON has no word for is written as an object with one key that starts with `$`:
`$array` (a tensor's name, with its part), `$tuple`, `$scalar` (a numpy scalar),
`$items` (a dict with keys that are not text).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_DEPTH = 64
MAX_HEADER_BYTES = 64 << 20
"""Largest safetensors header that is parsed."""
_RESERVED = "__metadata__"
"""Of a safetensors header: no tensor's name."""


class BadState(Exception):
    """The state holds something that cannot be written, or the files something that cannot be read."""


@dataclass
class PackedState:
    files: dict[str, bytes] = field(default_factory=dict)
    not_a_number: list[str] = field(default_factory=list)
    """Names of the arrays that hold NaN."""


def pack(state: dict[str, Any]) -> PackedState:
    """state: nested dicts, lists, tuples of numpy arrays and scalars, numbers, texts, booleans, None."""
    from safetensors.numpy import save as save_tensors

    packer = _Packer()
    tree = packer.encode(state, "", 0)
    packed = PackedState(not_a_number=packer.not_a_number)
    for part, arrays in packer.arrays.items():
        packed.files[f"{part}.safetensors"] = save_tensors(arrays)
    try:
        packed.files["state.json"] = (json.dumps(tree) + "\n").encode()
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BadState(f"the state cannot be written as JSON: {error}") from None
    return packed


def unpack(files: dict[str, bytes]) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_tensors

    arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, data in files.items():
        if name.endswith(".safetensors"):
            header_bytes = int.from_bytes(data[:8], "little")
            if len(data) < 8 or header_bytes > min(MAX_HEADER_BYTES, len(data) - 8):
                raise BadState(f"file {name} claims a header of {header_bytes} bytes")
            try:
                arrays[name.removesuffix(".safetensors")] = load_tensors(data)
            except (SafetensorError, ValueError, KeyError) as error:
                raise BadState(f"file {name} is not safetensors: {error}") from None
    if "state.json" not in files:
        raise BadState("file state.json is missing")
    try:
        tree = json.loads(files["state.json"])
        state = _decode(tree, arrays)
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        raise BadState(f"file state.json cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(state, dict):
        raise BadState("file state.json holds no state")
    return state


def _can_be_saved(dtype: np.dtype) -> bool:
    return dtype.kind in "biuf" and dtype.itemsize <= 8


class _Packer:
    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, np.ndarray]] = {}
        self.not_a_number: list[str] = []

    def encode(self, value: Any, place: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BadState(f"'{place}' is nested deeper than {MAX_DEPTH} levels (does it contain itself?)")
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray):
            return self._encode_array(value, place)
        if isinstance(value, np.generic) and _can_be_saved(value.dtype):
            return {"$scalar": [value.dtype.str, value.item()]}
        if isinstance(value, dict):
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {
                    key: self.encode(inner, f"{place}.{key}" if place else key, depth + 1)
                    for key, inner in value.items()
                }
            items = [[key, inner] for key, inner in value.items()]
            return {"$items": self.encode(items, place, depth + 1)}
        if type(value) in (list, tuple):
            inner = [self.encode(item, f"{place}.{index}", depth + 1) for index, item in enumerate(value)]
            return inner if type(value) is list else {"$tuple": inner}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise BadState(f"'{place}' is a {kind}; a checkpoint holds numpy arrays, numbers, texts, lists and dicts")

    def _encode_array(self, array: np.ndarray, place: str) -> dict[str, list[str]]:
        if not _can_be_saved(array.dtype):
            raise BadState(
                f"'{place}' is an array of {array.dtype}; only booleans, integers and floats of up to 64 bits can "
                "be saved"
            )
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=not array.flags.c_contiguous)
        if array.dtype.kind == "f" and np.isnan(array).any():
            self.not_a_number.append(place)
        top = place.split(".", 1)[0]
        part = top if re.fullmatch(r"[A-Za-z]\w{0,63}", top, re.ASCII) else "arrays"
        tensors = self.arrays.setdefault(part, {})
        name = place.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no UTF-8
        while name in tensors or name == _RESERVED:  # {"a.b": x, "a": {"b": y}} would collide
            name += "'"
        tensors[name] = array
        return {"$array": [part, name]}


def _decode(tree: Any, arrays: dict[str, dict[str, np.ndarray]]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "") if len(tree) == 1 else ""
    if kind == "$array":
        part, name = tree[kind]
        return arrays[part][name]
    if kind == "$scalar":
        name, number = tree[kind]
        dtype = np.dtype(name)
        if not _can_be_saved(dtype):
            raise ValueError(f"{name} is no number's type")
        return dtype.type(number)
    if kind == "$tuple":
        return tuple(_decode(item, arrays) for item in tree[kind])
    if kind == "$items":
        return dict(_decode(tree[kind], arrays))
    return {key: _decode(inner, arrays) for key, inner in tree.items()}
