"""States of modules and optimizers in the words of `rlplat.checkpoints`: tensors become arrays, and back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

_TENSOR = "$tensor"
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode(value: Any) -> Any:
    """value: nested dicts, lists and tuples of tensors, arrays, numbers, texts, booleans, None."""
    if isinstance(value, torch.Tensor):
        return {_TENSOR: list(to_array(value))}
    if isinstance(value, dict):
        return {key: encode(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(encode(inner) for inner in value)
    return value


def decode(value: Any) -> Any:
    """Tensors come back on the CPU."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            name, array = value[_TENSOR]
            return from_array(name, np.array(array))  # a copy: what came by `get` is read-only
        return {key: decode(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(decode(inner) for inner in value)
    return value


def random_state() -> dict[str, Any]:
    """Of Python's, numpy's and torch's global generators, the GPUs' included."""
    name, numbers, *place = np.random.get_state()
    numpy_state = (name, np.asarray(numbers).tolist(), *place)  # torch.load takes no array by default
    state = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return encode(state)


def restore_random_state(encoded: dict[str, Any]) -> None:
    state = decode(encoded)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def to_array(tensor: torch.Tensor) -> tuple[str, np.ndarray]:
    """(dtype by name, a numpy array of the same bits, a copy): types that numpy has not are kept as integers of their
    width (bfloat16) or as pairs (complex). TypeError where the tensor is not plain (sparse, quantized)."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"a tensor of {name} with layout {tensor.layout} is not plain")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    try:
        return name, np.array(plain.numpy(), order="C")
    except TypeError:  # bfloat16 and the 8-bit floats
        return name, np.array(plain.contiguous().view(_SAME_WIDTH[plain.element_size()]).numpy(), order="C")


def from_array(name: str, array: np.ndarray) -> torch.Tensor:
    """A tensor on the CPU, without gradient, that shares the array's memory."""
    dtype = getattr(torch, name)
    tensor = torch.from_numpy(array)
    if dtype.is_complex:
        return torch.view_as_complex(tensor)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
