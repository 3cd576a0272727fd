"""Tensors as numpy arrays and back, bit for bit, for states that are saved without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
