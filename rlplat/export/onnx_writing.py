"""From a torch module to a sealed `.onnx` file that appears under its name whole, or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import rlplat
from rlplat.errors import CheckpointError, ConfigError, MissingExtra, UsageError
from rlplat.export import sealing
from rlplat.given.say import silenced

OPSET = 18
"""That torch's translations are written for: another one would be converted, and older runtimes read it."""
ROWS = "N"


def require_packages(for_what: str) -> None:
    """Raises MissingExtra."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "export", for_what)


def require_place(out: Path) -> None:
    """ConfigError where no file can be written, before anything is computed."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name the file, such as {out / 'policy.onnx'}")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}; make it first")
    if not os.access(out.absolute().parent, os.W_OK):
        raise ConfigError(f"{out} cannot be written: the folder {out.absolute().parent} is not writable")


def to_model(
    module: nn.Module,
    inputs: Sequence[Tensor],
    input_names: list[str],
    output_names: list[str],
    what: str,
    weights: Mapping[str, Tensor] | None = None,
) -> Any:
    """An onnx.ModelProto whose every input and output has N rows; `inputs` are an example of 2 rows or more.

    weights: parameters and buffers of the module by their names in it, which become inputs behind the others
    (`with_weights`): nothing that is computed from them is computed here. UsageError where the module cannot be traced;
    it names the line.
    """
    rows = torch.export.Dim("rows", min=1)
    given = weights or {}
    shapes = (*({0: rows} for _ in inputs), *({} for _ in given))
    flat = _Flat(module, list(given), len(inputs)).eval()
    try:
        # torch's exporter speaks of packages that are not installed and of deprecations inside itself.
        with silenced("torch.onnx"), torch.no_grad():
            program = _trace(flat, (*inputs, *given.values()), (shapes,))
            model = torch.onnx.export(
                program,
                input_names=[*input_names, *given],
                output_names=output_names,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what} cannot be exported: {_cause(error, module)}") from error
    assert model is not None, "with dynamo=True there is one"
    proto = model.model_proto
    _tidy(proto, len(inputs))
    return proto


def with_weights(proto: Any, weights: Mapping[str, Tensor]) -> Any:
    """A copy of a model that was traced with weights as inputs, in which they are constants."""
    made = type(proto)()
    made.CopyFrom(proto)
    inputs = {each.name: each for each in proto.graph.input}
    del made.graph.input[:]
    made.graph.input.extend(each for name, each in inputs.items() if name not in weights)
    for name, each in weights.items():
        array = each.detach().numpy()
        made.graph.initializer.add(
            name=name,
            dims=array.shape,
            data_type=inputs[name].type.tensor_type.elem_type,
            raw_data=np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes(),
        )
    return made


def to_bytes(proto: Any, metadata: Mapping[str, str]) -> bytes:
    """A file's content: the model with its metadata and checksum."""
    del proto.metadata_props[:]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return sealing.seal(proto.SerializeToString())


@contextlib.contextmanager
def new_file(out: Path, data: bytes) -> Iterator[Path]:
    """The file under another name, to be checked; it gets its own when the block ends without an exception. A file that
    was there stays until then. ConfigError where the disk refuses."""
    temporary = out.absolute().parent / f".{out.name}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        os.replace(temporary, out)
    except OSError as error:
        kept = "; the file that was there is unchanged" if out.exists() else ""
        raise ConfigError(f"{out} cannot be written: {error.strerror}{kept}") from None
    finally:
        temporary.unlink(missing_ok=True)


def require_finite(weights: Mapping[str, Any], what: str) -> None:
    """CheckpointError where a weight is NaN or infinite; weights: arrays or tensors by name."""
    for name, each in weights.items():
        tensor = torch.as_tensor(each)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{what} has NaN or infinite numbers in '{name}': the training has diverged, and nothing is exported; "
                "take an earlier checkpoint (--checkpoint best, or step_N)"
            )


class _Flat(nn.Module):
    """`torch.export` names inputs by the arguments of `forward`; here there are as many as needed, the weights last."""

    def __init__(self, module: nn.Module, weights: list[str], num_inputs: int) -> None:
        super().__init__()
        self.module, self.weights, self.num_inputs = module, weights, num_inputs

    def forward(self, *inputs: Tensor) -> Any:
        if not self.weights:
            return self.module(*inputs)
        rows, weights = inputs[: self.num_inputs], inputs[self.num_inputs :]
        return torch.func.functional_call(self.module, dict(zip(self.weights, weights, strict=True)), rows)


def _trace(module: nn.Module, inputs: tuple[Tensor, ...], dynamic_shapes: Any) -> Any:
    """An ExportedProgram. Running the module's own Python is faster; reading its bytecode takes more programs, such as
    those that count rows by `len`."""
    try:
        return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        if "specialized" not in str(error):
            raise
    return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=True)


def _tidy(proto: Any, num_rowed: int) -> None:
    """num_rowed: inputs that have rows. Without the Python stacks of every node; the dynamic axis is called N."""
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del proto.graph.value_info[:]
    del proto.graph.metadata_props[:]
    for value in (*proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    for value in (*proto.graph.input[:num_rowed], *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = ROWS
    for tensor in proto.graph.initializer:
        del tensor.metadata_props[:]
    proto.graph.name = "policy"
    proto.producer_name, proto.producer_version = "rlplat", rlplat.__version__


def _cause(error: BaseException, module: nn.Module) -> str:
    """The last line of a traced module's own code (also the user's) that led to the error, and its first words."""
    files = {_file(type(part)) for part in module.modules()} - {_file(nn.Module), ""}
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    files = {file for file in files if f"{os.sep}site-packages{os.sep}" not in file}
    current: BaseException | None = error
    while current is not None:
        frames = [f for f in traceback.extract_tb(current.__traceback__) if f.filename in files]
        frames = [frame for frame in frames if frame.filename != __file__]
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}: `{frames[-1].line}`: {text}"
        current = current.__cause__ or current.__context__
    return text


def _file(module_class: type) -> str:
    try:
        return inspect.getfile(module_class)
    except (TypeError, OSError):
        return ""
