"""`torch_module`: a torch model of the user's own as a file that `ExportedModel` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rlplat
from rlplat.errors import UsageError
from rlplat.export import golden, onnx_writing
from rlplat.export.contract import VERSION
from rlplat.export.model_file import CONTRACT, ExportedModel
from rlplat.paths import user_path

NUM_ROWS = (1, 2, 7)


def torch_module(
    module: nn.Module,
    example: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor],
    out: str | os.PathLike[str],
    *,
    output_names: tuple[str, ...] = (),
) -> Path:
    """Write any torch module to `out`; the path.

    example: one input, a tuple of them for `module(*inputs)`, or a dict for `module(**inputs)`; every tensor has a
    first axis of rows, 2 or more, and the file then takes any number of them. Inputs are named as in the dict, else
    `input`, or `input_0`, ...; outputs as in `output_names`, else as in the dict that the module returns, or `output`,
    `output_0`, ...

    Its outputs are compared in onnxruntime at 1, 2 and 7 rows, and 8 of them go into the file as golden rows.
    UsageError where it cannot be traced (names the line) or gives something else, CheckpointError for NaN in its
    weights, ConfigError where the disk refuses; a file that was there before is unchanged then.
    """
    path = user_path(out)
    onnx_writing.require_packages("export.torch_module")
    onnx_writing.require_place(path)
    what = type(module).__name__
    onnx_writing.require_finite(module.state_dict(), what)
    inputs = _named(example, "input")
    num_rows = {tensor.shape[0] if tensor.ndim else 0 for tensor in inputs.values()}
    if len(num_rows) != 1 or min(num_rows) < 2:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
        raise UsageError(f"the example of {what} needs two rows or more in every input, equally many; it has {shapes}")
    flat = _Named(module, list(inputs) if isinstance(example, Mapping) else None)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = _named(module(**inputs) if flat.names else module(*inputs.values()), "output")
        names = list(output_names) or list(outputs)
        if len(names) != len(outputs):
            raise UsageError(
                f"{what} has {len(outputs)} outputs ({', '.join(outputs)}), but output_names has {len(names)}"
            )
        proto = onnx_writing.to_model(flat, list(inputs.values()), list(inputs), names, what)
        rows = _rows(inputs, 8)
        metadata = {
            CONTRACT: json.dumps({"version": VERSION, "kind": "module"}),
            "rlplat.version": rlplat.__version__,
            "rlplat.module": what,
            "rlplat.opset": str(onnx_writing.OPSET),
            "rlplat.golden": golden.dump(_arrays(rows), _run(flat, rows, names)),
        }
        with onnx_writing.new_file(path, onnx_writing.to_bytes(proto, metadata)) as written:
            file = ExportedModel(written)
            for each in (*NUM_ROWS, len(rows)):
                some = _rows(inputs, each)
                _compare(file.run(_arrays(some)), _run(flat, some, names), what)
    finally:
        module.train(was_training)
    return path


class _Named(nn.Module):
    """Takes inputs one after the other, and gives outputs as a tuple."""

    def __init__(self, module: nn.Module, names: list[str] | None) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        found = self.module(**dict(zip(self.names, inputs, strict=True))) if self.names else self.module(*inputs)
        return tuple(_named(found, "output").values())


def _named(tensors: Any, what: str) -> dict[str, Tensor]:
    if isinstance(tensors, Mapping):
        named = dict(tensors)
    elif isinstance(tensors, tuple | list):
        named = {f"{what}_{i}": tensor for i, tensor in enumerate(tensors)}
    else:
        named = {what: tensors}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise UsageError(f"{what} '{name}' is a {type(tensor).__name__}; only tensors go in and out of a file")
    return named


def _rows(inputs: dict[str, Tensor], num: int) -> dict[str, Tensor]:
    """The example's rows, repeated from the first on."""
    return {name: tensor[torch.arange(num) % len(tensor)] for name, tensor in inputs.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> golden.Arrays:
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def _run(module: nn.Module, inputs: dict[str, Tensor], names: list[str]) -> golden.Arrays:
    with torch.no_grad():
        return _arrays(dict(zip(names, module(*inputs.values()), strict=True)))


def _compare(outputs: golden.Arrays, expected: golden.Arrays, what: str) -> None:
    found, name = golden.worst(expected, outputs)
    if found > golden.TOLERANCE:
        raise UsageError(
            f"{what} was not exported: in onnxruntime the output '{name}' of {len(expected[name])} rows differs from "
            f"that of torch by {found:.2g} (at most {golden.TOLERANCE:g} is right)"
        )
