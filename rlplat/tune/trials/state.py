"""A trial's state in the words of `rlplat.checkpoints`, and back: tensors become arrays, paths become numbers of files.

    files: list[Path] = []
    tree = encode({"w": tensor, "model": Path("model.pt")}, files)      # files == [Path("model.pt")]
    state = decode(tree, [Path("where/it/is/now/model.pt")])

A state is nested dicts (with any keys), lists and tuples of numpy arrays, torch tensors, paths, numbers, texts,
booleans and None. It comes back with equal values, types, shapes and keys; tensors come back on the CPU and without
gradient.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_TENSOR, _PATH, _ESCAPED = "$tensor", "$path", "$escaped"


def encode(value: Any, files: list[Path]) -> Any:
    """`files` gets the paths that were met, to be copied. TypeError for a tensor that is not plain."""
    if isinstance(value, dict):
        encoded = {key: encode(inner, files) for key, inner in value.items()}
        is_ours = len(encoded) == 1 and next(iter(encoded)) in (_TENSOR, _PATH, _ESCAPED)
        return {_ESCAPED: encoded} if is_ours else encoded
    if type(value) in (list, tuple):
        return type(value)(encode(inner, files) for inner in value)
    if isinstance(value, Path):
        files.append(value)
        return {_PATH: len(files) - 1}
    if "torch" in sys.modules and type(value).__module__.startswith("torch"):
        from rlplat.data_parallel.torch import tensor_arrays

        if tensor_arrays.is_tensor(value):
            return {_TENSOR: list(tensor_arrays.to_array(value))}
    return value


def decode(value: Any, files: list[Path]) -> Any:
    if isinstance(value, dict):
        kind = next(iter(value)) if len(value) == 1 else None
        if kind == _TENSOR:
            from rlplat.data_parallel.torch import tensor_arrays

            return tensor_arrays.from_array(*value[_TENSOR])
        if kind == _PATH:
            return files[value[_PATH]]
        inside = value[_ESCAPED] if kind == _ESCAPED else value
        return {key: decode(inner, files) for key, inner in inside.items()}
    if type(value) in (list, tuple):
        return type(value)(decode(inner, files) for inner in value)
    return value
