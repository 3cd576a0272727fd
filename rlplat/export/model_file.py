"""`ExportedModel`: an `.onnx` file that rlplat wrote, run by onnxruntime; needs that and numpy only.

model = ExportedModel("policy.onnx")
outputs = model.run({"obs": obs, "noise": noise})       # by name
model.check()                                           # its golden rows
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.errors import BadObservation, CheckpointError, MissingExtra
from rlplat.export import golden, sealing
from rlplat.paths import expanded

DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({kind}{bits})": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""onnxruntime's names of types -> numpy's."""
CONTRACT = "rlplat.contract"
"""The key of the contract in the metadata."""


class ExportedModel:
    def __init__(self, path: str | os.PathLike[str], *, num_threads: int = 1, data: bytes | None = None) -> None:
        """CheckpointError for a file that is damaged, or that rlplat did not write; num_threads: of onnxruntime; data:
        the file's bytes, where they came here in another way."""
        self.path = expanded(path)
        if data is None:
            data = _read(self.path)
        self.data = data
        if sealing.is_sealed(data):
            sealing.require_whole(data, str(path))
        self._session = open_session(data, str(path), num_threads)
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        """What the file says of itself: rlplat.algorithm, rlplat.env, ... (docs/export.md)."""
        if CONTRACT not in self.metadata:
            raise CheckpointError(
                f"{path} is an ONNX model without rlplat's contract: `rlplat export` did not write it, so what its "
                "inputs mean is not known"
            )
        self._inputs = {each.name: (tuple(each.shape), DTYPES[each.type]) for each in self._session.get_inputs()}
        self.output_names = [each.name for each in self._session.get_outputs()]

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """(shape of one row, dtype) by name."""
        return {name: (shape[1:], dtype) for name, (shape, dtype) in self._inputs.items()}

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """feeds: every input by name, N rows each -> every output by name.

        BadObservation (also a ValueError) for what does not fit: nothing is cast.
        """
        self._require_fit(feeds)
        outputs = self._session.run(None, dict(feeds))
        return dict(zip(self.output_names, outputs, strict=True))

    def check(self) -> float:
        """Runs the golden rows; the largest difference (`golden.difference`), which is at most `golden.TOLERANCE`.

        CheckpointError where the file computes something else here than when it was written.
        """
        inputs, expected = golden.parse(self.metadata["rlplat.golden"])
        largest, name = golden.worst(expected, self.run(inputs))
        if largest > golden.TOLERANCE:
            raise CheckpointError(
                f"{self.path}: the output '{name}' of its golden rows differs by {largest:.2g} from what it was when "
                f"the file was written (at most {golden.TOLERANCE:g} is right): export it again"
            )
        return largest

    def _require_fit(self, feeds: Mapping[str, np.ndarray]) -> None:
        if feeds.keys() != self._inputs.keys():
            wrong = [*(feeds.keys() - self._inputs.keys()), *(self._inputs.keys() - feeds.keys())]
            raise BadObservation(
                f"{self.path} has the inputs {', '.join(self._inputs)}, but given are {', '.join(feeds) or 'none'} "
                f"(see '{wrong[0]}')"
            )
        num_rows: int | None = None
        for name, (shape, dtype) in self._inputs.items():
            array = feeds[name]
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape[1:] != shape[1:]:
                got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
                sizes = ", ".join(["N", *map(str, shape[1:])])
                raise BadObservation(f"input '{name}' is {got}; expected {dtype}[{sizes}]")
            if num_rows is None:
                num_rows = len(array)
            if not len(array) or len(array) != num_rows:
                raise BadObservation(
                    f"input '{name}' has {len(array)} rows; expected {num_rows or 'at least one'}, as every input"
                )


def open_session(model: bytes, file: str, num_threads: int = 1) -> Any:
    """CheckpointError where onnxruntime cannot read it."""
    # From 1.28 on it sends reports to its maker from a thread of its own, unless told otherwise before it is imported.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", "export", file) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each cause
        if "opset" in str(error) or "IR_VERSION" in str(error):
            raise CheckpointError(f"{file} needs a later onnxruntime than {onnxruntime.__version__}: {error}") from None
        raise CheckpointError(f"{file} is damaged, or no ONNX model; onnxruntime: {str(error)[:200]}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
