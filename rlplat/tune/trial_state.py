"""The state of a trial on the disk: what a trainable gives as its checkpoint, and the same again.

    name = save(directory, {"w": array, "optimizer": optimizer.state_dict()}, step=7)     # directory/step_7
    state, step = load(directory / name)

A state is nested dicts (with any keys), lists and tuples of numpy arrays, torch tensors, numbers, texts, booleans and
None. It comes back with equal values, types, shapes and keys; tensors come back on the CPU and without gradient.
Written by `rlplat.checkpoints`: whole or absent, verified before use, no pickle.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from rlplat import checkpoints
from rlplat.errors import CheckpointError

_TENSOR, _ESCAPED = "$tensor", "$escaped"
_NAME = re.compile(r"step_(\d+)$")


def save(directory: Path, state: Any, step: int, trial: int, keep: set[str]) -> str:
    """Write `directory/step_<n>` and remove the older ones whose names are not in `keep`.

    n is `step`, or more where that would not be the highest number in the directory: a trial that goes on from another
    trial's checkpoint may have been further itself. Raises CheckpointError for a state that cannot be kept, OSError
    when the disk refuses; what was there before stays.
    """
    n = max([step, *(number + 1 for number in _numbers(directory))])
    try:
        tree = {"step": step, "trial": trial, "state": encode(state)}
    except TypeError as error:
        raise CheckpointError(f"cannot checkpoint trial {trial}: {error}") from None
    info = checkpoints.CheckpointInfo(algorithm=f"trial {trial}", env="", env_steps=n)
    # It would keep the newest by number; which ones are still needed only the caller knows.
    target = checkpoints.save(directory, tree, info, keep=sys.maxsize)
    for number in _numbers(directory):
        if (name := f"step_{number}") != target.name and name not in keep:
            shutil.rmtree(directory / name, ignore_errors=True)
    return target.name


def load(path: Path) -> tuple[Any, int]:
    """(state, reports up to it). Raises CheckpointError where it is damaged or not a trial's."""
    saved = checkpoints.load(path).state
    if "state" not in saved or "step" not in saved:
        raise CheckpointError(f"checkpoint {path} is not one of a trial")
    return decode(saved["state"]), int(saved["step"])


def newest(directory: Path) -> str | None:
    """The name of the checkpoint with the highest number, whether it is good or not."""
    return f"step_{max(numbers)}" if (numbers := _numbers(directory)) else None


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(match[1]) for entry in directory.iterdir() if (match := _NAME.match(entry.name))]


def encode(value: Any) -> Any:
    """Tensors as `{"$tensor": [dtype, array]}`; TypeError for one that is not plain."""
    if isinstance(value, dict):
        encoded = {key: encode(inner) for key, inner in value.items()}
        is_ours = len(encoded) == 1 and next(iter(encoded)) in (_TENSOR, _ESCAPED)
        return {_ESCAPED: encoded} if is_ours else encoded
    if type(value) in (list, tuple):
        return type(value)(encode(inner) for inner in value)
    if "torch" in sys.modules and type(value).__module__.startswith("torch"):
        from rlplat.rl.torch import tensor_arrays

        if tensor_arrays.is_tensor(value):
            return {_TENSOR: list(tensor_arrays.to_array(value))}
    return value


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        kind = next(iter(value)) if len(value) == 1 else None
        if kind == _TENSOR:
            from rlplat.rl.torch import tensor_arrays

            return tensor_arrays.from_array(*value[_TENSOR])
        inside = value[_ESCAPED] if kind == _ESCAPED else value
        return {key: decode(inner) for key, inner in inside.items()}
    if type(value) in (list, tuple):
        return type(value)(decode(inner) for inner in value)
    return value
